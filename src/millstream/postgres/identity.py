"""Which database a connection leads to, and whether it is the one that was attached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection

MIN_SERVER_VERSION = 140_000
"""PostgreSQL 14: it scans a range of ctids without reading the whole table, and decodes logical messages."""


class AttachedRecord(Protocol):
    """What connections need of the catalog's record of an attached database."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def system(self) -> int: ...
    @property
    def timeline(self) -> int: ...
    @property
    def database(self) -> str: ...
    @property
    def database_oid(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Which database this is: another one under the same address has none of the changes that were captured.

    Identities are equal only if nothing was restored in between: a failover changes the timeline, and transaction ids
    may have been used twice; a database that was created from a copy and then renamed has a different oid.
    """

    system: int
    timeline: int
    database: str
    oid: int

    @classmethod
    def recorded(cls, database: AttachedRecord) -> Identity:
        """The identity of an attached database when it was last seen."""
        return cls(database.system, database.timeline, database.database, database.database_oid)

    def has_place_of(self, other: Identity) -> bool:
        """Whether both have the same name on the same server: one may be the other, restored."""
        return (self.system, self.database) == (other.system, other.database)

    def is_same_database(self, other: Identity) -> bool:
        """Whether both are the same database, perhaps after a failover."""
        return self.has_place_of(other) and self.oid == other.oid


def identify(connection: Connection) -> Identity:
    """The identity of the database a connection is open to.

    Raises:
        MillstreamError: DATABASE_UNFIT for a standby, whose snapshots list no running transactions, or an old server.
    """
    row = connection.execute(
        "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int, datname, oid::bigint"
        " FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    is_standby, version, database, oid = row
    if is_standby:
        raise standby_refused()
    if version < MIN_SERVER_VERSION:
        raise MillstreamError(
            Code.DATABASE_UNFIT,
            f"the server is PostgreSQL {version // 10_000}",
            hint="PostgreSQL 14 or later is required",
        )
    row = connection.execute(
        "SELECT system_identifier, pg_walfile_name(pg_current_wal_lsn()) FROM pg_control_system()"
    ).fetchone()
    assert row is not None
    return Identity(system=int(row[0]), timeline=int(row[1][:8], 16), database=database, oid=oid)


def standby_refused() -> MillstreamError:
    """The error for a server that is a standby."""
    return MillstreamError(
        Code.DATABASE_UNFIT,
        "the server is a standby: its snapshots do not show which transactions are still running",
        hint="attach the primary",
    )


def require_same_place(connection: Connection, attached: AttachedRecord) -> None:
    """Check that a connection leads to the attached database, or to one that was restored in its place.

    Raises:
        MillstreamError: DATABASE_REPLACED, DATABASE_UNFIT.
    """
    if not identify(connection).has_place_of(Identity.recorded(attached)):
        raise MillstreamError(
            Code.DATABASE_REPLACED,
            f"the address of {attached.name} now leads to another database",
            hint=f"DETACH {attached.name} and attach it again",
        )
