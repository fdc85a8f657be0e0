"""Tables that cannot be brought forward, whichever way their database is captured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millstream import Code, MillstreamError
from millstream.refresh.capture import behind

if TYPE_CHECKING:
    from capture_kit import Kit


@dataclass(frozen=True)
class Fault:
    """What somebody does to a table, what its readers are told, and how it is cleared."""

    code: Code
    made: str
    cleared: str


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tick tries again."""
    monkeypatch.setattr(behind, "_RESTS", 0.0)


def run(connection: psycopg.Connection[Any], statements: str) -> None:
    for statement in statements.split("; "):
        connection.execute(statement.encode())


def refused(kit: Kit, *tables: str) -> MillstreamError:
    """What readers of tables are told."""
    with pytest.raises(MillstreamError) as caught:
        kit.tick(*tables)
    return caught.value
