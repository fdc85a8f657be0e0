"""The publication of the tables that a slot is read for: created, checked, and left to the owner where we lack rights.

A table that leaves a publication, or a publication that is dropped, silently loses changes (PostgreSQL 18 only
warns). So how a table is published has a fingerprint, which must be the same at each read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.postgres.locked_names import MovedError, Named, hold
from millstream.sources.postgres.server.lock_retries import with_locks
from millstream.sources.postgres.server.reading_errors import moved_error
from millstream.sources.postgres.server.relations import Relation
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings

_GENERATED_SINCE = 180_000


@dataclass(frozen=True, slots=True)
class Published:
    """How a publication publishes some tables.

    Args:
        missing: why it does not publish one of them fully, by oid; all must be published before a slot is created.
        fingerprints: by oid; if one differs later, changes in between may be missing.
    """

    missing: dict[int, str]
    fingerprints: dict[int, str]


_STATE = """
SELECT to_jsonb(p) || jsonb_build_object('oid', p.oid::bigint, 'xmin', p.xmin::text)
FROM pg_publication p WHERE p.pubname = %s
"""
_TABLES = """
SELECT c.oid::bigint, to_jsonb(t) FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = %s AND c.oid = ANY(%s)
"""
_MEMBERS = "SELECT prrelid::bigint, oid::bigint FROM pg_publication_rel WHERE prpubid = %s AND prrelid = ANY(%s)"
_MEMBER = """
SELECT c.relkind::text, n.nspname, c.relname FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s AND r.prrelid = %s
"""
_PARTLY = """
SELECT r.prrelid::bigint, coalesce(to_jsonb(r) ->> 'prattrs', to_jsonb(r) ->> 'prqual') IS NOT NULL
FROM pg_publication_rel r WHERE r.prpubid = %s AND r.prrelid = ANY(%s)
"""
_NESTED = """
SELECT DISTINCT ON (c.oid) c.oid::bigint, concat(n.nspname, '.', t.relname)
FROM pg_class c CROSS JOIN LATERAL pg_partition_ancestors(c.oid) a
JOIN pg_class t ON t.oid = a.relid JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE c.oid = ANY(%(oids)s) AND c.relispartition AND t.oid <> c.oid AND (t.oid = ANY(%(oids)s)
  OR (n.nspname, t.relname) IN (SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %(name)s))
"""
_ANY_ROWS = "SET LOCAL row_security = on"  # no rows are read, so a policy must not keep us from locking the table
_SCHEMAS = "SELECT pnnspid::bigint, oid::bigint FROM pg_publication_namespace WHERE pnpubid = %s"


def read_published(connection: Connection, name: str, wanted: Sequence[tuple[Relation, Sequence[str]]]) -> Published:
    """How a publication publishes some columns of some tables."""
    row = connection.execute(_STATE, [name]).fetchone()
    oids = [relation.oid for relation, _ in wanted]
    if row is None:
        return Published(dict.fromkeys(oids, f"there is no publication {name}"), dict.fromkeys(oids, ""))
    state: dict[str, Any] = row[0]
    unfit = _unfit(state)
    listed: dict[int, dict[str, Any]] = dict(connection.execute(_TABLES, [name, oids]).fetchall())
    missing: dict[int, str] = {}
    for relation, columns in wanted:
        reason = unfit or _unpublished(listed.get(relation.oid), columns)
        if reason is not None:
            missing[relation.oid] = f"the publication {name} {reason}"
    members: dict[int, int] = dict(connection.execute(_MEMBERS, [state["oid"], oids]).fetchall())
    has_schemas = connection.info.server_version >= 150_000
    schemas = connection.execute(_SCHEMAS, [state["oid"]]).fetchall() if has_schemas else []
    common = repr((sorted(state.items(), key=lambda item: item[0]), sorted(schemas)))
    return Published(missing, {oid: _digest(common, str(members.get(oid))) for oid in oids})


def nested(connection: Connection, name: str, oids: Sequence[int]) -> dict[int, str]:
    """The partitions among some tables whose changes are reported as those of a table above, by oid, and that table.

    This is so if the table above is published already, or will be because it is one of the tables.
    """
    return dict(connection.execute(_NESTED, {"oids": list(oids), "name": name}).fetchall())


def may_publish(connection: Connection, name: str, relations: Sequence[Relation]) -> bool:
    """Whether the role may publish some tables: it owns them, and the publication if there is one."""
    row = connection.execute(
        "SELECT coalesce((SELECT pg_has_role(p.pubowner, 'USAGE') FROM pg_publication p WHERE p.pubname = %s),"
        " has_database_privilege(current_database(), 'CREATE')),"
        " coalesce((SELECT bool_and(pg_has_role(c.relowner, 'USAGE')) FROM pg_class c WHERE c.oid = ANY(%s)), true)",
        [name, [r.oid for r in relations]],
    ).fetchone()
    return row == (True, True)


def ensure_published(
    connection: Connection,
    name: str,
    wanted: Sequence[tuple[Relation, Sequence[str]]],
    settings: BufferSettings | None = None,
) -> Published:
    """Publish what is not published yet.

    Args:
        settings: how long to wait for locks.

    Raises:
        MillstreamError: PRIVILEGE_MISSING with the statements for the tables' owner; LOCK_TIMEOUT.
    """
    published = read_published(connection, name, wanted)
    if not published.missing:
        return published
    statements = publication_sql(connection, name, [r for r, _ in wanted if r.oid in published.missing])

    def publish() -> None:
        for relation, _ in wanted:
            if relation.oid in published.missing:
                _hold(connection, relation.named)
        for statement in statements:
            connection.execute(statement)

    try:
        with_locks(connection, settings or BufferSettings(), f"the publication {name} cannot be altered", publish)
    except MillstreamError as e:
        if e.code is not Code.PRIVILEGE_MISSING:
            raise
        raise unpublished(connection, name, wanted, published) from e
    published = read_published(connection, name, wanted)
    if published.missing:
        raise unpublished(connection, name, wanted, published)
    return published


def publication_sql(connection: Connection, name: str, relations: Sequence[Relation]) -> list[sql.Composed]:
    """The statements that publish some tables, for a role that owns the tables and has CREATE on the database."""
    publication = sql.Identifier(name)
    options = [sql.SQL("publish_via_partition_root = true")]
    if connection.info.server_version >= _GENERATED_SINCE:
        options.append(sql.SQL("publish_generated_columns = stored"))
    row = connection.execute(_STATE, [name]).fetchone()
    if row is None:
        statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH ({})")
        return [statement.format(publication, _listed(relations), sql.SQL(", ").join(options))]
    state: dict[str, Any] = row[0]
    statements = []
    if _unfit(state) is not None or state.get("pubgencols", "s") != "s":
        options.append(sql.SQL("publish = 'insert, update, delete, truncate'"))
        statements.append(sql.SQL("ALTER PUBLICATION {} SET ({})").format(publication, sql.SQL(", ").join(options)))
    members = connection.execute(_PARTLY, [state["oid"], [r.oid for r in relations]]).fetchall()
    is_partly: dict[int, bool] = dict(members)
    filtered = [r for r in relations if is_partly.get(r.oid, False)]
    if filtered:
        statements.append(sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(publication, _listed(filtered)))
    added = [r for r in relations if is_partly.get(r.oid, True)]
    if added:
        statements.append(sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(publication, _listed(added)))
    return statements


def _listed(relations: Sequence[Relation]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(r.schema, r.name) for r in relations)


def unpublished(
    connection: Connection, name: str, wanted: Sequence[tuple[Relation, Sequence[str]]], published: Published
) -> MillstreamError:
    """A coded error with the statements for the owner."""
    relations = [r for r, _ in wanted if r.oid in published.missing]
    statements = publication_sql(connection, name, relations)
    return MillstreamError(
        Code.PRIVILEGE_MISSING,
        f"the role may not publish {', '.join(r.qualified for r in relations)}: only a table's owner can",
        hint="ask the owner to run: " + "; ".join(s.as_string(connection) for s in statements),
    )


def unpublish(connection: Connection, name: str, oid: int, settings: BufferSettings) -> None:
    """Take a table out of a publication, if the publication names it and we may alter the publication.

    Raises:
        MillstreamError: LOCK_TIMEOUT.
    """

    def drop() -> None:
        row = connection.execute(_MEMBER, [name, oid]).fetchone()
        if row is not None:
            member = Named(oid, *row)
            connection.execute(_ANY_ROWS)
            hold(connection, member)
            statement = sql.SQL("ALTER PUBLICATION {} DROP TABLE {}")
            connection.execute(statement.format(sql.Identifier(name), member.identifier))

    try:
        with_locks(connection, settings, f"table {oid} cannot be taken out of the publication {name}", drop)
    except MillstreamError as error:
        if error.code is not Code.PRIVILEGE_MISSING:
            raise


def _hold(connection: Connection, table: Named) -> None:
    """Lock a table, so that its name keeps its meaning until the end of the transaction.

    Raises:
        MillstreamError: SOURCE_CHANGED.
    """
    connection.execute(_ANY_ROWS)
    try:
        hold(connection, table)
    except MovedError as e:
        raise moved_error(str(e)) from e


def publication_owner(connection: Connection, name: str) -> str | None:
    """The owner of a publication, if there is one."""
    row = connection.execute(
        "SELECT pg_get_userbyid(pubowner)::text FROM pg_publication WHERE pubname = %s", [name]
    ).fetchone()
    return str(row[0]) if row is not None else None


def drop_statement(name: str) -> sql.Composed:
    """The statement with which the owner of a publication drops it."""
    return sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name))


def drop_publication(connection: Connection, name: str, settings: BufferSettings | None = None) -> bool:
    """Drop a publication if it is ours; returns whether it is gone.

    Raises:
        MillstreamError: LOCK_TIMEOUT.
    """
    drop = sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name))
    failed = f"the publication {name} cannot be dropped"
    try:
        with_locks(connection, settings or BufferSettings(), failed, lambda: connection.execute(drop))
    except MillstreamError as error:
        if error.code is not Code.PRIVILEGE_MISSING:
            raise
        return False
    return True


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _unfit(state: dict[str, Any]) -> str | None:
    if not state["pubviaroot"]:
        return "publishes partitions instead of their parents"
    left_out = [what for what in ("insert", "update", "delete", "truncate") if not state[f"pub{what}"]]
    return f"leaves out {', '.join(left_out)}" if left_out else None


def _unpublished(listed: dict[str, Any] | None, columns: Sequence[str]) -> str | None:
    if listed is None:
        return "does not publish it under its own name"  # not at all, or as a part of a partitioned parent
    if listed.get("rowfilter") is not None:
        return "filters its rows"
    names = listed.get("attnames")  # since 15
    absent = [c for c in columns if names is not None and c not in names]
    return f"does not publish the column {absent[0]}" if absent else None
