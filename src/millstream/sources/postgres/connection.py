"""Connections to a source database: one set of session settings, so that a value has one text everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.address import Address, ResolvedAddress

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# How values are written as text, by COPY, by queries and by a walsender alike; a SELECT that row security would filter
# fails instead of giving fewer rows; and planning one runs no CHECK of a table's owner.
_SESSION = {
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "row_security": "off",
    "constraint_exclusion": "off",
    "search_path": "pg_catalog",
}
_CONNECT_SECONDS = 10
MIN_SERVER_VERSION = 140_000
"""PostgreSQL 14: ranges of ctid are scanned as such, and logical messages can be decoded."""


def connect(address: Address, *, replication: bool = False, for_users: bool = False) -> Connection:
    """A new connection in autocommit mode.

    Args:
        for_users: with the role's own settings, as triggers of users expect them.

    Raises:
        MillstreamError: DATABASE_UNREACHABLE, ADDRESS_INVALID.
    """
    info: dict[str, Any] = dict(conninfo_to_dict(address.conninfo()))
    if not for_users:
        settings = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
        info["options"] = f"{info['options']} {settings}" if info.get("options") else settings
    info.setdefault("connect_timeout", _CONNECT_SECONDS)
    info.setdefault("application_name", "millstream")
    info["client_encoding"] = "UTF8"  # whatever the database's own is: COPY and the WAL come as bytes
    if replication:
        info["replication"] = "database"
    try:
        return psycopg.connect(make_conninfo(**info), autocommit=True)
    except psycopg.OperationalError as e:
        raise unreachable(address, e) from None


def resolved(address: Address, connection: Connection, application_name: str = "millstream") -> ResolvedAddress:
    """The address as an open connection found it: what came from variables, passfiles and service files is in it."""
    found: dict[str, Any] = dict(connection.info.get_parameters())
    for key in ("service", "servicefile", "passfile", "options", "client_encoding"):
        found.pop(key, None)
    given = conninfo_to_dict(address.conninfo())
    if given.get("options"):
        found["options"] = given["options"]
    if connection.info.password:
        found["password"] = connection.info.password
    return ResolvedAddress(address.reference, make_conninfo(**{**found, "application_name": application_name}))


def unreachable(address: Address, error: psycopg.Error) -> MillstreamError:
    """A coded error for a connection that could not be made, or was lost."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return MillstreamError(
        Code.DATABASE_UNREACHABLE,
        f"the database {address} cannot be reached: {lines[-1] if lines else type(error).__name__}",
        hint="check that the server runs and that the address, the password and pg_hba.conf let you in",
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """Which database this is: another one under the same address has none of the changes that were captured.

    After a failover the timeline is another one, and transaction ids may have been used twice. A database that was made
    from a copy and then renamed has another oid.
    """

    system: int
    timeline: int
    database: str
    oid: int


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
        raise MillstreamError(
            Code.DATABASE_UNFIT,
            "the server is a standby: its snapshots cannot tell which transactions are still running",
            hint="attach the primary",
        )
    if version < MIN_SERVER_VERSION:
        raise MillstreamError(
            Code.DATABASE_UNFIT, f"the server is PostgreSQL {version // 10_000}", hint="14 is the oldest that fits"
        )
    row = connection.execute(
        "SELECT system_identifier, pg_walfile_name(pg_current_wal_lsn()) FROM pg_control_system()"
    ).fetchone()
    assert row is not None
    return Identity(system=int(row[0]), timeline=int(row[1][:8], 16), database=database, oid=oid)
