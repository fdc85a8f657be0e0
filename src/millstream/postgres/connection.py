"""Opens connections to attached databases, with session settings under which a value always has the same text."""

from __future__ import annotations

from typing import Any, TypeAlias

from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address, ResolvedAddress
from millstream.postgres.driver import conninfo, psycopg

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

# COPY, queries and a walsender write values in the same way; a SELECT that row security would filter fails instead of
# returning fewer rows; and planning a query runs no CHECK constraint of a table's owner.
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
# a network that has become silent is noticed after a minute, not after the two hours of the operating system
_ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}


def connect(address: Address, *, replication: bool = False, for_users: bool = False) -> Connection:
    """A new connection in autocommit mode.

    Args:
        for_users: use the role's own settings, which users' triggers expect.

    Raises:
        MillstreamError: DATABASE_UNREACHABLE, ADDRESS_INVALID.
    """
    info: dict[str, Any] = dict(conninfo.conninfo_to_dict(address.conninfo()))
    if not for_users:
        settings = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
        info["options"] = f"{info['options']} {settings}" if info.get("options") else settings
    info = {"connect_timeout": _CONNECT_SECONDS, **_ALIVE, **info}
    info.setdefault("application_name", "millstream")
    info["client_encoding"] = "UTF8"  # not the database's own encoding: COPY and the WAL come as bytes
    if replication:
        info["replication"] = "database"
    try:
        return psycopg.connect(conninfo.make_conninfo(**info), autocommit=True)
    except psycopg.OperationalError as e:
        raise unreachable(address, e) from None


def resolved(address: Address, connection: Connection, application_name: str = "millstream") -> ResolvedAddress:
    """The address that an open connection used, with what came from variables, passfiles and service files."""
    found: dict[str, Any] = dict(connection.info.get_parameters())
    for key in ("service", "servicefile", "passfile", "options", "client_encoding"):
        found.pop(key, None)
    given = conninfo.conninfo_to_dict(address.conninfo())
    if given.get("options"):
        found["options"] = given["options"]
    if connection.info.password:
        found["password"] = connection.info.password
    return ResolvedAddress(address.reference, conninfo.make_conninfo(**{**found, "application_name": application_name}))


def unreachable(address: Address, error: psycopg.Error) -> MillstreamError:
    """A coded error for a connection that could not be opened, or was lost."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return MillstreamError(
        Code.DATABASE_UNREACHABLE,
        f"the database {address} cannot be reached: {lines[-1] if lines else type(error).__name__}",
        hint="check that the server is running, the address and password are right, and pg_hba.conf admits the role",
    )
