"""Capture by triggers: installed on a table, widened to more columns, removed without a trace.

Writers need no rights on any of it, and nobody but the role that installed it sees a buffer. What is done to a table
takes a lock that keeps its writers out for milliseconds, is given up soon if it has to wait, and is tried again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg import sql

from millstream.errors import Code, MillstreamError
from millstream.postgres.closed import Grant, close
from millstream.postgres.named import MovedError, require
from millstream.postgres.turns import CollidedError, colliding, prepare_turns, take_turn
from millstream.sources.postgres.buffer_sql import (
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
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.grants import required_grants
from millstream.sources.postgres.installed import (
    NEVER_FIRES,
    BufferInfo,
    BufferSettings,
    always_statements,
    buffer_info,
    captured_tables,
    find_buffer,
    firing,
    tables_of,
    triggers_of,
)
from millstream.sources.postgres.kept_columns import columns_in, kept_columns
from millstream.sources.postgres.partition_owners import let_owners_add_partitions, owners_adding_partitions
from millstream.sources.postgres.relations import Relation, RelationKind
from millstream.sources.postgres.snapshot import moved_error
from millstream.sources.postgres.trims import create_trims, forget_trims, note_trims
from millstream.sources.postgres.types import MirrorColumn

Result = TypeVar("Result")

_MAX_SCHEMA_NAME = 63 - len("_truncate_part_4294967295")  # a trigger's name begins with it
_PLANTED = """
SELECT made.name, pg_get_userbyid(made.owner)::text FROM pg_namespace n CROSS JOIN LATERAL (
  SELECT c.relname::text, c.relowner FROM pg_class c WHERE c.relnamespace = n.oid
  UNION ALL SELECT p.proname::text, p.proowner FROM pg_proc p WHERE p.pronamespace = n.oid
) made(name, owner) WHERE n.nspname = %s AND made.owner <> n.nspowner ORDER BY 1 LIMIT 1
"""
_ROW_EVENTS = (Event.INSERT, Event.UPDATE, Event.DELETE)


def install(
    connection: Connection, relation: Relation, columns: Sequence[MirrorColumn], settings: BufferSettings | None = None
) -> BufferInfo:
    """Begin to capture some columns of a table, or begin anew: what an older buffer of it held is gone.

    All that was written before is committed when this returns, so any later snapshot holds it.

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
        lambda: put_in_place(connection, relation, columns, settings),
    )


def widen(
    connection: Connection, relation: Relation, columns: Sequence[MirrorColumn], settings: BufferSettings | None = None
) -> BufferInfo:
    """Capture more columns of a table; what is in the buffer stays, with NULL for them.

    The mirror must be read anew at a later snapshot to have them; until then its other columns can go on.

    Raises:
        MillstreamError: CAPTURE_LOST if there is no buffer to widen; LOCK_TIMEOUT.
    """
    settings = settings or BufferSettings()

    def work() -> BufferInfo:
        found = find_buffer(connection, relation, settings)
        if found is None:
            raise MillstreamError(Code.CAPTURE_LOST, f"the buffer of {relation.qualified} is gone")
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
    """End the capture of a table, which may be gone already.

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


def prepare_schema(connection: Connection, relation: Relation, settings: BufferSettings) -> None:
    """Check that a table can be captured, and make the schema of the buffers.

    Raises:
        MillstreamError: as `install`.
    """
    if len(settings.schema.encode()) > _MAX_SCHEMA_NAME:
        raise MillstreamError(
            Code.SETTING_INVALID,
            f"the name of the buffers' schema has more than {_MAX_SCHEMA_NAME} characters",
            hint="choose a shorter one",
        )
    _check_source(connection, relation)
    missing = required_grants(connection, relation, settings.schema)
    if missing:
        raise MillstreamError(
            Code.PRIVILEGE_MISSING, f"the role may not capture {relation.qualified}", hint="run: " + " ".join(missing)
        )
    failed = f"the schema {settings.schema} cannot be made"
    with_locks(connection, settings, failed, lambda: _make_schema(connection, settings))


def _make_schema(connection: Connection, settings: BufferSettings) -> None:
    name = sql.Identifier(settings.schema)
    found = connection.execute(
        "SELECT pg_get_userbyid(nspowner) = current_user, obj_description(oid, 'pg_namespace') FROM pg_namespace "
        "WHERE nspname = %s",
        [settings.schema],
    ).fetchone()
    if found is not None and found != (True, settings.mark):
        raise MillstreamError(
            Code.NAME_TAKEN,
            f"the schema {settings.schema} of the database belongs to somebody else: {found[1] or 'no comment'}",
            hint="choose another schema for the buffers",
        )
    if found is None:
        with colliding():
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        connection.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(name, sql.Literal(settings.mark)))
    else:
        _refuse_planted(connection, settings.schema)
    prepare_turns(connection, settings.schema)
    take_turn(connection, settings.schema)
    create_trims(connection, settings.schema)
    close_schema(connection, settings.schema)


def _refuse_planted(connection: Connection, schema: str) -> None:
    """What others have put there while they could would be taken for ours, and run with our rights.

    Raises:
        MillstreamError: NAME_TAKEN.
    """
    row = connection.execute(_PLANTED, [schema]).fetchone()
    if row is not None:
        raise MillstreamError(
            Code.NAME_TAKEN,
            f"{row[0]} in the schema {schema} of the buffers belongs to the role {row[1]}",
            hint="drop it, or choose another schema for the buffers",
        )


def close_schema(connection: Connection, schema: str) -> None:
    """Have what was made there be for nobody else; the owners of captured partitioned tables need their functions."""
    owners: set[tuple[str, str]] | None = None

    def is_meant(grant: Grant) -> bool:
        nonlocal owners
        if grant.kind != "ROUTINE" or grant.grantee is None:
            return False
        if owners is None:
            owners = owners_adding_partitions(connection, schema)
        return (grant.name, grant.grantee) in owners

    close(connection, schema, is_meant)


def put_in_place(
    connection: Connection, relation: Relation, columns: Sequence[MirrorColumn], settings: BufferSettings
) -> BufferInfo:
    """As `install`, in the caller's transaction: he has prepared the schema, and tries again if a lock is taken."""
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
    note_trims(connection, schema, [relation.oid], row[0])  # writers are locked out: it sees all that is not buffered
    close_schema(connection, schema)
    return buffer_info(connection, relation, settings)


def with_locks(connection: Connection, settings: BufferSettings, failed: str, work: Callable[[], Result]) -> Result:
    """Do DDL in a transaction of its own, again and again until its locks are to be had.

    Raises:
        MillstreamError: LOCK_TIMEOUT, PRIVILEGE_MISSING.
    """
    until = time.monotonic() + settings.patience_seconds
    pause = 0.05
    while True:
        try:
            with connection.transaction(), _coded(failed):
                connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(settings.lock_timeout_ms))
                return work()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, CollidedError, MovedError) as e:
            if time.monotonic() + pause > until:
                raise MillstreamError(
                    Code.LOCK_TIMEOUT,
                    f"{failed}: a transaction has held a lock on it for {settings.patience_seconds:.0f} seconds",
                    hint="look for long transactions in pg_stat_activity, and try again",
                ) from e
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 5.0)


@contextmanager
def _coded(failed: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as e:
        raise MillstreamError(
            Code.PRIVILEGE_MISSING, f"{failed}: {e.diag.message_primary}", hint="grant the role what it lacks"
        ) from e


def _check_source(connection: Connection, relation: Relation) -> None:
    if not relation.kind.is_captured:
        raise _uncapturable(relation, "has no triggers that see its changes")
    rows = connection.execute(
        "SELECT bool_or(relkind = 'f'), bool_or(relpersistence <> 'p') FROM pg_class WHERE oid = ANY(%s)",
        [[leaf.oid for leaf in relation.leaves]],
    ).fetchone()
    assert rows is not None
    has_foreign, has_unlogged = rows
    if has_foreign:
        raise _uncapturable(relation, "has a foreign table among its partitions, which may change elsewhere")
    if has_unlogged:
        raise _uncapturable(relation, "is unlogged, and a crash would empty it unseen", "ALTER TABLE ... SET LOGGED")


def _uncapturable(
    relation: Relation, why: str, hint: str = "it can be read as a whole: refresh mode FULL"
) -> Exception:
    return MillstreamError(Code.SOURCE_NO_CHANGE_FEED, f"{relation.qualified} {why}", hint=hint)


def _needs_rows(connection: Connection, relation: Relation) -> bool:
    """Whether a statement's trigger would not see all: rows written by way of a parent, a child, or a subscription."""
    if relation.kind is RelationKind.PARTITIONED or [leaf.oid for leaf in relation.leaves] != [relation.oid]:
        return True
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = %(oid)s) "
        "OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = %(oid)s)",
        {"oid": relation.oid},
    ).fetchone()
    return row == (True,)


def _put_fitting(connection: Connection, schema: str, columns: Sequence[BufferColumn]) -> None:
    """The functions that compare types, for the types that no captured table has had yet."""
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
    """Whether the owner has switched a trigger off, which only he could undo: but we can make all anew."""
    fire = firing(connection, [relation.oid], schema).get(relation.oid, "")
    return bool(set(fire) & set(NEVER_FIRES))


def _lock_writers_out(connection: Connection, relation: Relation, schema: str) -> None:
    """Keep writers out, and see that under the locks the names mean the tables that were looked at."""
    named = [relation.named, *(leaf.named for leaf in relation.leaves if leaf.oid != relation.oid)]
    try:
        for table in tables_of(relation).values():
            connection.execute(create_trigger(schema, relation.oid, Event.LOCK, table, by_row=False))
        require(connection, named)
    except (MovedError, psycopg.errors.UndefinedTable, psycopg.errors.WrongObjectType) as e:
        raise moved_error(f"{relation.qualified} was exchanged while it was to be captured: {e}") from e


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
    """Those that are missing: to make one anew would undo an ENABLE ALWAYS of the table's owner."""
    root, tables = relation.oid, tables_of(relation)
    is_partitioned = relation.kind is RelationKind.PARTITIONED
    wanted = [
        *((event, root) for event in _ROW_EVENTS),
        # what a child inherits from is no more than one of the tables with rows: TRUNCATE ONLY leaves the others
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
        for statement in always_statements(connection, relation, schema):
            connection.execute(sql.SQL(statement))
    let_owners_add_partitions(connection, [root], schema)


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
            # A trigger can be dropped by its table's owner only, but goes with its function.
            connection.execute(sql.SQL("DROP FUNCTION {}() CASCADE").format(function))
