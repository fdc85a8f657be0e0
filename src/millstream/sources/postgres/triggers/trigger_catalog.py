"""The buffers and triggers of capture in a database, read from the server's catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.sources.postgres.server.relations import Relation
from millstream.sources.postgres.triggers.buffer_sql import LEAF, Event, buffer_name, trigger_name

NEVER_FIRES = "DR"
"""The states of triggers (pg_trigger.tgenabled) that do not fire in ordinary sessions."""
FIRES_ALWAYS = "A"
"""The state of those that fire in sessions with session_replication_role = replica too."""


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """How buffers are kept.

    Args:
        schema: the one they are in; it belongs to the role that captures.
        lake: the one they belong to; they are trimmed to what it has read, so another lake needs another schema.
        lock_timeout_ms: how long writers may be held up at a time. It is below the server's deadlock_timeout, so that
            of two sessions that wait for each other ours gives up.
        patience_seconds: how long to retry.
        by_row: use row triggers even where statement triggers would do.
    """

    schema: str = "millstream_changes"
    lake: str | None = None
    lock_timeout_ms: int = 500
    patience_seconds: float = 60.0
    by_row: bool = False

    @property
    def mark(self) -> str:
        """The comment on the schema, which names its lake."""
        return f"millstream's capture, lake {self.lake or 'unnamed'}"


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """A buffer that is being written.

    Args:
        oid: the source's.
        columns: those captured, in the buffer's order.
        by_row: each row says which leaf it belongs to.
        leaves: the tables that hold the source's rows, as they were when it was installed.
        is_always: whether sessions with session_replication_role = replica are captured too. Only the owner of a table
            can enable that, by `enable_always_statements`.
        state: its fingerprint in `trigger_fingerprints`.
    """

    schema: str
    oid: int
    columns: tuple[str, ...]
    by_row: bool
    leaves: tuple[int, ...]
    is_always: bool
    state: str

    @property
    def table(self) -> sql.Identifier:
        """The buffer's name."""
        return sql.Identifier(self.schema, buffer_name(self.oid))


def captured_tables(connection: Connection, settings: BufferSettings | None = None) -> list[int]:
    """The oids of all tables for which there is an object of ours, including dropped tables."""
    settings = settings or BufferSettings()
    rows = connection.execute(
        """SELECT DISTINCT substring(name FROM '_(\\d+)$')::bigint FROM (
             SELECT relname AS name FROM pg_class WHERE relkind = 'r' AND relnamespace = to_regnamespace(%(schema)s)
             UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace(%(schema)s)) ours
           WHERE name ~ '_\\d+$' ORDER BY 1""",
        {"schema": sql.Identifier(settings.schema).as_string(connection)},
    )
    return [oid for (oid,) in rows]


def find_buffer(
    connection: Connection, relation: Relation, settings: BufferSettings | None = None
) -> BufferInfo | None:
    """The buffer of a table, if there is one."""
    settings = settings or BufferSettings()
    has = is_own_table(connection, settings.schema, buffer_name(relation.oid))
    return buffer_info(connection, relation, settings) if has else None


def is_own_table(connection: Connection, schema: str, name: str) -> bool:
    """Whether there is a table of that name that we own, in a schema that we own: nobody else can replace it.

    If the schema was dropped, another role may have created one of its name, with a view that runs with our rights.
    """
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'r' AND pg_get_userbyid(c.relowner) = current_user "
        "AND pg_get_userbyid(n.nspowner) = current_user)",
        [schema, name],
    ).fetchone()
    return row == (True,)


def trigger_fingerprints(connection: Connection, oids: Sequence[int], schema: str) -> dict[int, str]:
    """A fingerprint of the triggers of each captured table: if it has changed since installation, changes were missed.

    It changes when a trigger is dropped, disabled or enabled, even if that was undone since; when a partition is
    detached and attached again; when the table becomes a partition, a child or the target of a subscription; and when
    it becomes unlogged. A dropped table is missing. Triggers whose functions are in another role's schema do not count:
    buffers there must not be read.
    """
    rows = connection.execute(
        """WITH RECURSIVE below AS (
             SELECT c.oid AS top, c.oid FROM pg_class c WHERE c.oid = ANY(%(oids)s)
             UNION ALL SELECT b.top, i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.oid
             WHERE NOT i.inhdetachpending)
           SELECT b.top::bigint, md5(string_agg(concat_ws('/', b.oid, c.relpersistence,
             (SELECT string_agg(concat_ws(':', t.oid, t.tgenabled, t.xmin), ',' ORDER BY t.oid)
              FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
              WHERE t.tgrelid = b.oid AND p.pronamespace = (SELECT n.oid FROM pg_namespace n
                  WHERE n.nspname = %(schema)s AND pg_get_userbyid(n.nspowner) = current_user)
                AND p.proname IN (SELECT e || '_' || b.top FROM unnest(%(events)s::text[]) e)),
             (SELECT string_agg(i.inhparent::text, ',' ORDER BY 1) FROM pg_inherits i WHERE i.inhrelid = b.oid),
             EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = b.oid)), ' ' ORDER BY b.oid))
           FROM below b JOIN pg_class c ON c.oid = b.oid GROUP BY b.top""",
        {
            "oids": list(oids),
            "schema": schema,
            "events": [event.value for event in Event if event is not Event.LOCK],
        },
    )
    return dict(rows.fetchall())


def trigger_states(connection: Connection, oids: Sequence[int], schema: str) -> dict[int, str]:
    """The different states of the triggers that capture each table, on itself and on all below it, as letters."""
    rows = connection.execute(
        """WITH RECURSIVE below AS (
             SELECT c.oid AS top, c.oid FROM pg_class c WHERE c.oid = ANY(%(oids)s)
             UNION ALL SELECT b.top, i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.oid
             WHERE NOT i.inhdetachpending)
           SELECT b.top::bigint, string_agg(DISTINCT t.tgenabled::text, '') FROM below b
           JOIN pg_trigger t ON t.tgrelid = b.oid JOIN pg_proc p ON p.oid = t.tgfoid
           WHERE p.pronamespace = to_regnamespace(%(schema)s)
             AND p.proname IN (SELECT e || '_' || b.top FROM unnest(%(events)s::text[]) e)
           GROUP BY b.top""",
        {
            "oids": list(oids),
            "schema": sql.Identifier(schema).as_string(connection),
            "events": [event.value for event in Event if event is not Event.LOCK],
        },
    )
    return dict(rows.fetchall())


def enable_always_statements(connection: Connection, relation: Relation, schema: str) -> list[str]:
    """The statements with which a table's owner also captures sessions that switch ordinary triggers off."""
    return [
        sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER {};")
        .format(sql.Identifier(namespace, table), sql.Identifier(trigger))
        .as_string(connection)
        for namespace, table, trigger, enabled, _ in triggers_of(connection, relation, schema)
        if enabled != FIRES_ALWAYS
    ]


def tables_of(relation: Relation) -> dict[int, sql.Identifier]:
    """The source and its leaves, always in the same order: they are locked one after the other."""
    tables = {leaf.oid: sql.Identifier(leaf.schema, leaf.name) for leaf in relation.leaves}
    tables[relation.oid] = sql.Identifier(relation.schema, relation.name)
    return dict(sorted(tables.items()))


def triggers_of(connection: Connection, relation: Relation, schema: str) -> list[tuple[str, str, str, str, int]]:
    """Schema, table, name, state and table's oid of each trigger that captures."""
    return connection.execute(
        "SELECT n.nspname, c.relname, t.tgname, t.tgenabled::text, c.oid::bigint FROM pg_trigger t "
        "JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE t.tgrelid = ANY(%s) AND t.tgname = ANY(%s) ORDER BY t.tgrelid, t.tgname",
        [list(tables_of(relation)), [trigger_name(schema, e, relation.oid) for e in Event if e is not Event.LOCK]],
    ).fetchall()


def buffer_info(connection: Connection, relation: Relation, settings: BufferSettings) -> BufferInfo:
    """What the catalog says about an existing buffer."""
    oid, schema = relation.oid, settings.schema
    names = [
        name
        for (name,) in connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
            "ORDER BY attnum",
            [sql.Identifier(schema, buffer_name(oid)).as_string(connection)],
        )
    ]
    by_row = LEAF in names
    return BufferInfo(
        schema=schema,
        oid=oid,
        columns=tuple(names[4 if by_row else 3 :]),
        by_row=by_row,
        leaves=tuple(leaf.oid for leaf in relation.leaves),
        is_always=not enable_always_statements(connection, relation, schema),
        state=trigger_fingerprints(connection, [oid], schema).get(oid, ""),
    )
