"""The records, locks and connections of attached databases.

There are three kinds of locks, always taken in this order: those of stream tables; `captures-<database>`, under which
captures begin and end; `database-<database>`, under which mirrors are brought forward. The second is held from before
a capture begins until its dependent is recorded, so that no other process counts the capture as unread. A table is
loaded under the second alone, so the other tables of its database can be brought forward meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import LockManager
from millstream.naming import TableName
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection, connect
from millstream.postgres.driver import psycopg
from millstream.postgres.pool import coded


@dataclass(frozen=True)
class DatabaseAccess:
    """The attached databases of a lake."""

    catalog: Catalog
    locks: LockManager

    def get(self, name: str) -> AttachedDatabase:
        """The record of a database.

        Raises:
            MillstreamError: NOT_ATTACHED.
        """
        found = self.catalog.find_database(name)
        if found is None:
            raise MillstreamError(Code.NOT_ATTACHED, f"there is no attached database {name}", hint="attach it again")
        return found

    def capture_named(self, database: str, name: str) -> Capture | None:
        """The record of a captured table, by its name in queries."""
        return next((c for c in self.catalog.captures(database) if c.name == name), None)

    def defining(self, databases: Collection[str], timeout: float | None = None) -> AbstractContextManager[None]:
        """Hold the locks under which captures of some databases begin and end."""
        keys = [f"captures-{name}" for name in databases]
        return self.locks.acquire(keys, timeout=timeout)

    def ticking(self, database: str, timeout: float | None = None) -> AbstractContextManager[None]:
        """Hold the lock under which the mirrors of a database are brought forward, and its record changes."""
        return self.locks.acquire([f"database-{database}"], timeout=timeout)

    @contextmanager
    def own_connection(self, database: AttachedDatabase) -> Iterator[Connection]:
        """A connection for work outside the database's lock, or work that is not retried if it fails."""
        try:
            with connect(Address(database.address)) as connection:
                yield connection
        except psycopg.Error as error:
            raise coded(error, database.name) from error


def databases_of(names: Collection[str]) -> list[str]:
    """The attached databases of some tables or views, by their names in queries."""
    return sorted({d for n in names if (d := TableName.parse(n).database) is not None})
