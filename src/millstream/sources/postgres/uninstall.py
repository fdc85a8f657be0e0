"""Everything that capture owns in an attached database: one schema of buffers, one slot and its publication."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.sources.postgres.triggers.buffer_sql import buffer_name, uninstall_sql
from millstream.sources.postgres.triggers.buffers import remove_all
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings, captured_tables, is_own_table
from millstream.sources.postgres.wal.publication import drop_publication, drop_statement, publication_owner
from millstream.sources.postgres.wal.slot import Slot, drop_slot, slot_state

_MOST_COUNTED = 1_000_000


def current_role(connection: Connection) -> str:
    """The role that owns what a connection creates."""
    row = connection.execute("SELECT current_user::text").fetchone()
    assert row is not None
    return str(row[0])


def refuse_foreign_schema(connection: Connection, settings: BufferSettings) -> None:
    """Refuse a buffer schema that another lake or role owns: two lakes that capture the same database need two schemas.

    Raises:
        MillstreamError: NAME_TAKEN.
    """
    if _is_foreign(connection, settings):
        raise MillstreamError(
            Code.NAME_TAKEN,
            f"the database already has a schema {settings.schema}, which belongs to another lake or another role",
            hint="set change_buffer_schema to another name; or, if that lake no longer exists, "
            f"run in the database: DROP SCHEMA {settings.schema} CASCADE",
        )


def remove_everything(connection: Connection, settings: BufferSettings, slot: Slot) -> list[str]:
    """Remove all that capture has created in a database; returns the statements for what only other roles may remove.

    Raises:
        MillstreamError: LOCK_TIMEOUT.
    """
    left: list[str] = []
    if slot_state(connection, slot.name) is not None:  # dropping fails without REPLICATION, even if there is no slot
        drop_slot(connection, slot.name)
    if not drop_publication(connection, slot.publication):
        statement = drop_statement(slot.publication).as_string(connection)
        left.append(f"{statement}; -- as {publication_owner(connection, slot.publication)}")
    if not _is_foreign(connection, settings):
        remove_all(connection, settings)
    elif (owner := _other_owner(connection, settings)) is not None:
        drop = sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(settings.schema))
        left.append(f"{drop.as_string(connection)}; -- as {owner}, with the triggers on captured tables")
    return left


def own_tables(connection: Connection, settings: BufferSettings) -> list[int]:
    """The oids of all tables that this lake's capture has, or had, any object for."""
    return [] if _is_foreign(connection, settings) else captured_tables(connection, settings)


# Dropping them runs nobody's code, so the script's caller does it: an owner or a superuser may do more than the role
# that captures.
_REMOVE_READING = """
BEGIN
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  PERFORM set_config('lock_timeout', '10s', true);
  BEGIN
    DROP PUBLICATION IF EXISTS {publication};
  EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'only its owner % can drop the publication, with: %',
      (SELECT pg_get_userbyid(pubowner) FROM pg_publication WHERE pubname = {publication_name}), {drop_publication};
  END;
  BEGIN
    -- only this database's: a copy of the database on the same server has the triggers, but not the slot
    PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots
      WHERE slot_name = {slot} AND database = current_database();
  EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'only a role with REPLICATION can drop the slot, with: %', {drop_slot};
  END;
END
"""


def removal_script(settings: BufferSettings, slot: Slot, role: str | None = None) -> str:
    """The same as a script, which the role that captures or a superuser can run without millstream.

    It drops the triggers first, since they affect other roles. What the role may not drop is reported
    as a warning, and the script continues.
    """
    drop_slot = sql.SQL("SELECT pg_drop_replication_slot({})").format(sql.Literal(slot.name))
    body = sql.SQL(_REMOVE_READING).format(
        publication=sql.Identifier(slot.publication),
        publication_name=sql.Literal(slot.publication),
        drop_publication=sql.Literal(drop_statement(slot.publication).as_string()),
        slot=sql.Literal(slot.name),
        drop_slot=sql.Literal(drop_slot.as_string()),
    )
    reading = sql.SQL("DO {};").format(sql.Literal(body.as_string())).as_string()
    about = "-- Removes the publication and the replication slot by which the WAL was read."
    return f"{uninstall_sql(settings.schema, settings.mark, role)}{about}\n{reading}\n"


def buffered_rows(
    connection: Connection, settings: BufferSettings, oids: Sequence[int], most: int = _MOST_COUNTED
) -> dict[int, int]:
    """How many changes wait in the buffers of the tables that have one; counting stops at `most` per buffer."""
    found: dict[int, int] = {}
    for oid in oids:
        buffer = sql.Identifier(settings.schema, buffer_name(oid))
        if not is_own_table(connection, settings.schema, buffer_name(oid)):
            continue
        counted = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS waiting").format(buffer, most)
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


def _other_owner(connection: Connection, settings: BufferSettings) -> str | None:
    """The role that owns the schema of this lake's buffers, if it is another one."""
    row = connection.execute(
        "SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = %s "
        "AND NOT pg_has_role(nspowner, 'USAGE') AND obj_description(oid, 'pg_namespace') = %s",
        [settings.schema, settings.mark],
    ).fetchone()
    return str(row[0]) if row is not None else None
