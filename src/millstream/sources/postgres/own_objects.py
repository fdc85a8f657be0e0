"""What capture owns in an attached database, as a whole: one schema of buffers, one slot and its publication."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.buffer_sql import buffer_name, uninstall_sql
from millstream.sources.postgres.buffers import remove_all
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.installed import BufferSettings, captured_tables
from millstream.sources.postgres.publication import drop_publication
from millstream.sources.postgres.slot import Slot, drop_slot, slot_state

_MOST_COUNTED = 1_000_000


def current_role(connection: Connection) -> str:
    """The role that owns what a connection makes."""
    row = connection.execute("SELECT current_user::text").fetchone()
    assert row is not None
    return str(row[0])


def refuse_foreign_schema(connection: Connection, settings: BufferSettings) -> None:
    """Refuse a schema for buffers that is somebody else's: two lakes may capture one database, each with its own.

    Raises:
        MillstreamError: NAME_TAKEN.
    """
    if _is_foreign(connection, settings):
        raise MillstreamError(
            Code.NAME_TAKEN,
            f"the database has a schema {settings.schema} already, of another lake or of somebody else",
            hint="set change_buffer_schema to another name; or, if that lake is no more, "
            f"run in the database: DROP SCHEMA {settings.schema} CASCADE",
        )


def remove_everything(connection: Connection, settings: BufferSettings, slot: Slot) -> None:
    """Remove all that capture has put into a database.

    Raises:
        MillstreamError: LOCK_TIMEOUT.
    """
    if slot_state(connection, slot.name) is not None:  # a role that may not have one cannot be asked to drop it
        drop_slot(connection, slot.name)
    drop_publication(connection, slot.publication)
    if not _is_foreign(connection, settings):
        remove_all(connection, settings)


def own_tables(connection: Connection, settings: BufferSettings) -> list[int]:
    """The oids of all tables that this lake's capture has put anything on, or had."""
    return [] if _is_foreign(connection, settings) else captured_tables(connection, settings)


def removal_script(settings: BufferSettings, slot: Slot, role: str | None = None) -> str:
    """The same, to be run without millstream by the role that captures or by a superuser."""
    drops = [
        sql.SQL("SET search_path = pg_catalog, pg_temp;"),  # names mean PostgreSQL's own, whoever runs it
        sql.SQL("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {};").format(
            sql.Literal(slot.name)
        ),
        sql.SQL("DROP PUBLICATION IF EXISTS {};").format(sql.Identifier(slot.publication)),
        sql.SQL("RESET search_path;"),
    ]
    return "\n".join([*(drop.as_string() for drop in drops), uninstall_sql(settings.schema, settings.mark, role)])


def buffered_rows(connection: Connection, settings: BufferSettings, oids: Sequence[int]) -> dict[int, int]:
    """How many changes wait in the buffers of those tables that have one; of very many not all are counted."""
    found: dict[int, int] = {}
    for oid in oids:
        buffer = sql.Identifier(settings.schema, buffer_name(oid))
        if connection.execute("SELECT to_regclass(%s)", [buffer.as_string(connection)]).fetchone() == (None,):
            continue
        counted = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS waiting").format(buffer, _MOST_COUNTED)
        row = connection.execute(counted).fetchone()
        assert row is not None
        found[oid] = row[0]
    return found


def _is_foreign(connection: Connection, settings: BufferSettings) -> bool:
    row = connection.execute(
        "SELECT pg_has_role(nspowner, 'USAGE'), obj_description(oid, 'pg_namespace') FROM pg_namespace "
        "WHERE nspname = %s",
        [settings.schema],
    ).fetchone()
    return row is not None and row != (True, settings.mark)
