"""Values as people read them and as JSON carries them."""

from __future__ import annotations

import datetime as dt
import decimal
import doctest
from collections import namedtuple

import pytest

from millstream.cli import formats
from millstream.results import Action, VerifyResult


def test_doctests() -> None:
    assert doctest.testmod(formats).failed == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 ms"),
        (-1, "0 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (86399, "23 h 59 min"),
        (86400, "1 d 0 h"),
        (8_640_000, "100 d 0 h"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, None),
        (True, True),
        (2**70, 2**70),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (decimal.Decimal("1.10"), "1.10"),
        (dt.datetime(2025, 1, 2, 3, 4, 5), "2025-01-02T03:04:05"),
        (dt.date(2025, 1, 2), "2025-01-02"),
        (b"\x00\xff", "00ff"),
        (Action.NO_DATA, "NO_DATA"),
        (VerifyResult(True, 0, 1), {"ok": True, "missing": 0, "extra": 1}),
        ({Action.FULL: (1, {2})}, {"FULL": [1, [2]]}),
        (dt.timedelta(seconds=90), "0:01:30"),
    ],
)
def test_plain(value: object, data: object) -> None:
    assert formats.plain(value) == data
    assert type(formats.plain(value)) is type(data)


def test_structs_of_a_row_keep_their_names() -> None:
    point = namedtuple("point", "x y")  # made like a Row of Spark's
    point.asDict = lambda self: self._asdict()  # type: ignore[attr-defined]
    assert formats.plain(point(1, None)) == {"x": 1, "y": None}
    assert formats.cell(point(1, None)) == "{x: 1, y: NULL}"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "NULL"), ("", ""), (True, "true"), (1234, "1234"), (1e-9, "1e-09"), ([1, None], "[1, NULL]")],
)
def test_cell(value: object, text: str) -> None:
    assert formats.cell(value) == text
