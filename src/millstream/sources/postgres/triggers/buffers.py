"""Capture by triggers: installing it on a table, widening it to more columns, removing it completely.

Writers need no rights on any of it, and no role but the one that installed it sees a buffer. DDL on a captured table
takes a lock that keeps its writers out for milliseconds, gives up soon if it has to wait, and is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.ddl_turns import take_turn
from millstream.postgres.driver import psycopg, sql
from millstream.postgres.locked_names import MovedError, require
from millstream.sources.postgres.server.lock_retries import with_locks
from millstream.sources.postgres.server.reading_errors import moved_error
from millstream.sources.postgres.server.relations import Relation, RelationKind
from millstream.sources.postgres.triggers.buffer_schema import close_schema, prepare_schema
from millstream.sources.postgres.triggers.buffer_sql import (
    BufferColumn,
    Event,
    buffer_name,
    buffer_statements,
    create_trigger,
    fitting_name,
    fitting_statements,
    function_name,
    function_statements,
    trigger_name,
)
from millstream.sources.postgres.triggers.kept_columns import columns_in, kept_columns
from millstream.sources.postgres.triggers.partition_owners import grant_to_partition_owners
from millstream.sources.postgres.triggers.trigger_catalog import (
    NEVER_FIRES,
    BufferInfo,
    BufferSettings,
    buffer_info,
    captured_tables,
    enable_always_statements,
    find_buffer,
    tables_of,
    trigger_states,
    triggers_of,
)
from millstream.sources.postgres.triggers.trims import forget_trims, record_trims
from millstream.sources.postgres.values.types import MirrorColumn

_ROW_EVENTS = (Event.INSERT, Event.UPDATE, Event.DELETE)


def install(
    connection: Connection, relation: Relation, columns: Sequence[MirrorColumn], settings: BufferSettings | None = None
) -> BufferInfo:
    """Begin to capture some columns of a table, or begin again: the contents of an older buffer are lost.

    Everything that was written before is committed when this returns, so any later snapshot sees it.

    Raises:
        MillstreamError: PRIVILEGE_MISSING with the GRANTs to run; SOURCE_NO_CHANGE_FEED for what has no triggers, or
            loses its rows without them; LOCK_TIMEOUT.
    """
    settings = settings or BufferSettings()
    prepare_schema(connection, relation, settings)
    return with_locks(
        connection,
        settings,
        f"{relation.qualified} cannot be captured",
        lambda: _install(connection, relation, columns, settings),
    )


def widen(
    connection: Connection, relation: Relation, columns: Sequence[MirrorColumn], settings: BufferSettings | None = None
) -> BufferInfo:
    """Capture more columns of a table; the rows in the buffer stay, with NULL for them.

    The mirror must be read again at a later snapshot to have them; until then its other columns are brought forward.

    Raises:
        MillstreamError: CAPTURE_LOST if there is no buffer to widen; LOCK_TIMEOUT.
    """
    settings = settings or BufferSettings()

    def work() -> BufferInfo:
        found = find_buffer(connection, relation, settings)
        if found is None:
            raise MillstreamError(Code.CAPTURE_LOST, f"the buffer of {relation.qualified} no longer exists")
        more = kept_columns(connection, [relation.column(c.name) for c in columns if c.name not in found.columns])
        kept = columns_in(connection, found, relation)
        _put_fitting(connection, settings.schema, [*kept, *more])
        is_disabled = _is_disabled(connection, relation, settings.schema)
        if is_disabled:
            _drop_functions(connection, relation.oid, settings.schema)
            _put_functions(connection, relation, (), found.by_row, settings.schema, (Event.LOCK,))
        _lock_writers_out(connection, relation, settings.schema)
        for column in more:
            connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {}").format(found.table, column.definition))
        _put_functions(connection, relation, [*kept, *more], found.by_row, settings.schema)
        if is_disabled:
            _put_triggers(connection, relation, found.by_row, settings.schema)
        close_schema(connection, settings.schema)
        return buffer_info(connection, relation, settings)

    return with_locks(connection, settings, f"{relation.qualified} cannot be captured", work)


def remove(connection: Connection, oid: int, settings: BufferSettings | None = None) -> None:
    """End the capture of a table, which may have been dropped already.

    Raises:
        MillstreamError: LOCK_TIMEOUT.
    """
    settings = settings or BufferSettings()
    with_locks(
        connection, settings, f"capture of table {oid} cannot be removed", lambda: _drop(connection, oid, settings)
    )


def remove_all(connection: Connection, settings: BufferSettings | None = None) -> None:
    """End all capture of a database, table by table, and leave nothing; `uninstall_sql` is the same as a script.

    Raises:
        MillstreamError: LOCK_TIMEOUT.
    """
    settings = settings or BufferSettings()
    for oid in captured_tables(connection, settings):
        remove(connection, oid, settings)
    drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(settings.schema))
    with_locks(
        connection, settings, f"the schema {settings.schema} cannot be dropped", lambda: connection.execute(drop)
    )


def _install(
    connection: Connection, relation: Relation, columns: Sequence[MirrorColumn], settings: BufferSettings
) -> BufferInfo:
    """Do what `install` does, in a transaction that `with_locks` retries."""
    schema = settings.schema
    by_row = settings.by_row or _needs_rows(connection, relation)
    found = find_buffer(connection, relation, settings)
    if (found is not None and found.by_row != by_row) or _is_disabled(connection, relation, schema):
        _drop(connection, relation.oid, settings)
    kept = kept_columns(connection, [relation.column(c.name) for c in columns])
    _put_fitting(connection, schema, kept)
    _put_functions(connection, relation, (), by_row, schema, (Event.LOCK,))
    _lock_writers_out(connection, relation, schema)
    buffer = sql.Identifier(schema, buffer_name(relation.oid))
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(buffer))
    for statement in buffer_statements(schema, relation.oid, kept, by_row):
        connection.execute(statement)
    connection.execute(
        sql.SQL("COMMENT ON TABLE {} IS {}").format(buffer, sql.Literal(f"changes of {relation.qualified}"))
    )
    _put_functions(connection, relation, kept, by_row, schema)
    _put_triggers(connection, relation, by_row, schema)
    row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    record_trims(connection, schema, [relation.oid], row[0])  # writers are locked out: it sees all that is not buffered
    close_schema(connection, schema)
    return buffer_info(connection, relation, settings)


def _needs_rows(connection: Connection, relation: Relation) -> bool:
    """Whether statement triggers would miss rows: those written through a parent, a child or a subscription."""
    if relation.kind is RelationKind.PARTITIONED or [leaf.oid for leaf in relation.leaves] != [relation.oid]:
        return True
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = %(oid)s) "
        "OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = %(oid)s)",
        {"oid": relation.oid},
    ).fetchone()
    return row == (True,)


def _put_fitting(connection: Connection, schema: str, columns: Sequence[BufferColumn]) -> None:
    """Create the functions that compare types, for the types that no captured table has had yet."""
    types = {fitting_name(c.type): c.type for c in columns if not c.by_output}
    found = connection.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace AND proname = ANY(%s)",
        [sql.Identifier(schema).as_string(connection), list(types)],
    )
    missing = set(types).difference(name for (name,) in found)
    if missing:
        take_turn(connection, schema)
    for name in sorted(missing):
        for statement in fitting_statements(schema, types[name]):
            connection.execute(statement)


def _is_disabled(connection: Connection, relation: Relation, schema: str) -> bool:
    """Whether the owner has disabled a trigger. Only the owner can enable it; but we can create all triggers again."""
    fire = trigger_states(connection, [relation.oid], schema).get(relation.oid, "")
    return bool(set(fire) & set(NEVER_FIRES))


def _lock_writers_out(connection: Connection, relation: Relation, schema: str) -> None:
    """Keep writers out, and check under the locks that the names still mean these tables."""
    named = [relation.named, *(leaf.named for leaf in relation.leaves if leaf.oid != relation.oid)]
    try:
        for table in tables_of(relation).values():
            connection.execute(create_trigger(schema, relation.oid, Event.LOCK, table, by_row=False))
        require(connection, named)
    except (MovedError, psycopg.errors.UndefinedTable, psycopg.errors.WrongObjectType) as e:
        raise moved_error(f"{relation.qualified} was replaced while capture was being installed: {e}") from e


def _put_functions(
    connection: Connection,
    relation: Relation,
    columns: Sequence[BufferColumn],
    by_row: bool,
    schema: str,
    events: Sequence[Event] = (*_ROW_EVENTS, Event.TRUNCATE, Event.TRUNCATE_PART),
) -> None:
    # a partition is altered with its parent
    altered = [relation.oid] if relation.kind is RelationKind.PARTITIONED else list(tables_of(relation))
    for event in events:
        if event is Event.TRUNCATE_PART and not by_row:
            continue
        for statement in function_statements(schema, relation.oid, event, columns, by_row, altered):
            connection.execute(statement)


def _put_triggers(connection: Connection, relation: Relation, by_row: bool, schema: str) -> None:
    """Create the missing ones: creating one again would undo an ENABLE ALWAYS of the table's owner."""
    root, tables = relation.oid, tables_of(relation)
    is_partitioned = relation.kind is RelationKind.PARTITIONED
    wanted = [
        *((event, root) for event in _ROW_EVENTS),
        # an inheritance parent is only one of the tables with rows: TRUNCATE ONLY leaves the others
        *([(Event.TRUNCATE, root)] if is_partitioned or len(tables) == 1 else []),
        *((Event.TRUNCATE_PART, oid) for oid in tables if len(tables) > 1 and not (is_partitioned and oid == root)),
        # only partitions get their parent's triggers by themselves
        *((event, oid) for event in _ROW_EVENTS for oid in tables if oid != root and not is_partitioned),
    ]
    has = {(oid, trigger) for *_, trigger, _, oid in triggers_of(connection, relation, schema)}
    for event, oid in wanted:
        if (oid, trigger_name(schema, event, root)) not in has:
            connection.execute(create_trigger(schema, root, event, tables[oid], by_row))
    may_alter = connection.execute(
        "SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM pg_class WHERE oid = ANY(%s)", [list(tables)]
    ).fetchone()
    if may_alter == (True,):
        for statement in enable_always_statements(connection, relation, schema):
            connection.execute(sql.SQL(statement))
    grant_to_partition_owners(connection, [root], schema)


def _drop(connection: Connection, oid: int, settings: BufferSettings) -> None:
    _drop_functions(connection, oid, settings.schema)
    has = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [settings.schema]).fetchone()
    if has is not None:
        forget_trims(connection, settings.schema, oid)
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(settings.schema, buffer_name(oid))))


def _drop_functions(connection: Connection, oid: int, schema: str) -> None:
    for event in Event:
        function = sql.Identifier(schema, function_name(event, oid))
        if connection.execute("SELECT to_regprocedure(%s)", [function.as_string(connection) + "()"]).fetchone() != (
            None,
        ):
            # Only its table's owner can drop a trigger, but it is dropped with its function.
            connection.execute(sql.SQL("DROP FUNCTION {}() CASCADE").format(function))
