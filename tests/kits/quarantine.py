"""Tables that cannot be brought forward, whichever way their database is captured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millstream import Code, MillstreamError
from millstream.capture import quarantine

if TYPE_CHECKING:
    from kits.capture import Kit


@dataclass(frozen=True)
class Fault:
    """What somebody does to a table, what error its readers get, and how it is cleared."""

    code: Code
    made: str
    cleared: str


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tick tries again."""
    monkeypatch.setattr(quarantine, "_RESTS", 0.0)


def run(connection: psycopg.Connection[Any], statements: str) -> None:
    for statement in statements.split("; "):
        connection.execute(statement.encode())


def refused(kit: Kit, *tables: str) -> MillstreamError:
    """The error that readers of tables get."""
    with pytest.raises(MillstreamError) as caught:
        kit.tick(*tables)
    return caught.value
