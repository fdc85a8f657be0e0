"""Every error code has a failure class."""

from __future__ import annotations

import pytest

from millstream.errors import Code
from millstream.scheduler.failures import FailureClass, class_of

TRANSIENT, SOURCE, DATA = FailureClass.TRANSIENT, FailureClass.SOURCE, FailureClass.DATA


@pytest.mark.parametrize("code", Code)
def test_every_code_is_classified(code: Code) -> None:
    assert class_of(code) in FailureClass


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.DATABASE_UNREACHABLE, TRANSIENT),
        (Code.LOCK_TIMEOUT, TRANSIENT),
        (Code.COMMIT_CONFLICT, TRANSIENT),
        (Code.CATALOG_UNAVAILABLE, TRANSIENT),
        (Code.REFRESH_OPEN, TRANSIENT),
        (Code.SUSPENDED, TRANSIENT),
        (Code.SOURCE_MISSING, SOURCE),
        (Code.SOURCE_CHANGED, SOURCE),
        (Code.DATABASE_REPLACED, SOURCE),
        (Code.PRIVILEGE_MISSING, SOURCE),
        (Code.REFRESH_FAILED, DATA),
        (Code.VALUE_UNSUPPORTED, DATA),
        (Code.RECURSION_LIMIT, DATA),
        (Code.FULL_REQUIRED, DATA),
    ],
)
def test_the_class_says_who_can_help(code: Code, expected: FailureClass) -> None:
    assert class_of(code) is expected
