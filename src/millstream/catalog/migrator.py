"""Brings a catalog to the newest version: each step in one transaction, by one process at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import sqlalchemy as sa

from millstream.catalog.migrations import MIGRATIONS
from millstream.catalog.schema import migrations
from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from millstream.catalog.database import Database

_ADVISORY_KEY = 0x6D696C6C73747265  # "millstre"


class Migration(Protocol):
    """A module of `migrations`."""

    __name__: str

    def upgrade(self, connection: Connection, root: Path | None, /) -> None:
        """Change the tables of the lake at `root`."""


def number(migration: Migration) -> int:
    """The number in a migration's module name."""
    return int(_short_name(migration)[1:5])


def migrate(
    database: Database,
    clock: Callable[[], datetime],
    steps: Sequence[Migration] = MIGRATIONS,
    root: Path | None = None,
) -> None:
    """Apply the steps that a catalog lacks.

    Args:
        root: the lake's directory, if the caller knows it.

    Raises:
        MillstreamError: `CATALOG_TOO_NEW` if the catalog has steps that this code does not know.
    """
    with database.read() as connection:
        done = _version(connection)
    _refuse_newer(done, len(steps), database.label)
    while done < len(steps):
        with database.write() as connection:
            if not database.is_embedded:  # in SQLite, the transaction already holds the write lock
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_KEY)))
            done = _version(connection)  # another process may have been faster
            _refuse_newer(done, len(steps), database.label)
            if done < len(steps):
                _apply(connection, steps[done], root, clock())
                done += 1


def _apply(connection: Connection, step: Migration, root: Path | None, now: datetime) -> None:
    migrations.create(connection, checkfirst=True)
    step.upgrade(connection, root)
    row = {"version": number(step), "name": _short_name(step), "applied_at": now}
    connection.execute(sa.insert(migrations).values(row))


def _version(connection: Connection) -> int:
    if not sa.inspect(connection).has_table(migrations.name):
        return 0
    return int(connection.execute(sa.select(sa.func.max(migrations.c.version))).scalar() or 0)


def _refuse_newer(done: int, known: int, label: str) -> None:
    if done > known:
        raise MillstreamError(
            Code.CATALOG_TOO_NEW,
            f"the catalog {label} has version {done}; this millstream knows versions up to {known}",
            hint="upgrade millstream",
        )


def _short_name(migration: Migration) -> str:
    return migration.__name__.rpartition(".")[2]
