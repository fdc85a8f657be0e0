"""The schema that holds a lake's buffers and trigger functions: created once, and closed to every other role."""

from __future__ import annotations

from millstream.errors import Code, MillstreamError
from millstream.postgres.closed_objects import Grant, close
from millstream.postgres.connection import Connection
from millstream.postgres.ddl_turns import colliding, prepare_turns, take_turn
from millstream.postgres.driver import sql
from millstream.sources.postgres.server.lock_retries import with_locks
from millstream.sources.postgres.server.privileges import missing_table_grants
from millstream.sources.postgres.server.relations import Relation
from millstream.sources.postgres.triggers.partition_owners import granted_partition_owners
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.sources.postgres.triggers.trims import create_trims

_MAX_SCHEMA_NAME = 63 - len("_truncate_part_4294967295")  # a trigger's name begins with it
_PLANTED = """
SELECT made.name, pg_get_userbyid(made.owner)::text FROM pg_namespace n CROSS JOIN LATERAL (
  SELECT c.relname::text, c.relowner FROM pg_class c WHERE c.relnamespace = n.oid
  UNION ALL SELECT p.proname::text, p.proowner FROM pg_proc p WHERE p.pronamespace = n.oid
) made(name, owner) WHERE n.nspname = %s AND made.owner <> n.nspowner ORDER BY 1 LIMIT 1
"""


def prepare_schema(connection: Connection, relation: Relation, settings: BufferSettings) -> None:
    """Check that a table can be captured, and create the schema of the buffers.

    Raises:
        MillstreamError: as `install`.
    """
    if len(settings.schema.encode()) > _MAX_SCHEMA_NAME:
        raise MillstreamError(
            Code.SETTING_INVALID,
            f"the name of the buffers' schema has more than {_MAX_SCHEMA_NAME} characters",
            hint="choose a shorter name",
        )
    _check_source(connection, relation)
    missing = missing_table_grants(connection, relation, settings.schema)
    if missing:
        raise MillstreamError(
            Code.PRIVILEGE_MISSING, f"the role may not capture {relation.qualified}", hint="run: " + " ".join(missing)
        )
    failed = f"the schema {settings.schema} cannot be created"
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
            f"the schema {settings.schema} of the database belongs to another lake or role: {found[1] or 'no comment'}",
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
    """Refuse objects that other roles have created there: they would be taken for ours, and run with our rights.

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
    """Close the schema to other roles; the owners of captured partitioned tables keep the functions they need."""
    owners: set[tuple[str, str]] | None = None

    def is_meant(grant: Grant) -> bool:
        nonlocal owners
        if grant.kind != "ROUTINE" or grant.grantee is None:
            return False
        if owners is None:
            owners = granted_partition_owners(connection, schema)
        return (grant.name, grant.grantee) in owners

    close(connection, schema, is_meant)


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
