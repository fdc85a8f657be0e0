"""Which columns of a table a capture records, and which changes it does not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.catalog.attached import Capture
from millstream.errors import Code, MillstreamError
from millstream.naming import postgres_name
from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.relations import Relation, RelationKind, find_named
from millstream.sources.postgres.values.types import MirrorColumn, has_range, mirror_columns


def columns_of(capture: Capture) -> tuple[MirrorColumn, ...]:
    """The columns of a capture's mirror."""
    table = postgres_name(capture.schema, capture.table)
    return tuple(MirrorColumn(*column, table=table) for column in capture.columns)


def refuse_view(relation: Relation) -> None:
    """Refuse a relation that has become a view: queries read a view's underlying tables, and views are not captured.

    Raises:
        MillstreamError: SOURCE_CHANGED.
    """
    if relation.kind is RelationKind.VIEW:
        raise MillstreamError(
            Code.SOURCE_CHANGED,
            f"{relation.qualified} has become a view since the query was read",
            hint="redefine the stream tables that read it",
        )


def is_unchanged(
    connection: Connection, relation: Relation, columns: Sequence[MirrorColumn], ranges: Mapping[str, str]
) -> bool:
    """Whether a table still has these columns in the snapshot of the connection's transaction."""
    now = find_named(connection, relation.schema, relation.name)
    if now is None or now.oid != relation.oid:
        return False
    try:
        return mirror_columns(now, [c.name for c in columns], ranges) == tuple(columns)
    except MillstreamError:
        return False


def is_of(capture: Capture, relation: Relation, ranges: Mapping[str, str]) -> bool:
    """Whether a capture belongs to this relation, with the ranges that are declared now."""
    return capture.oid == relation.oid and all(
        has_range(pg_type, spark_type, ranges.get(name)) for name, pg_type, spark_type in capture.columns
    )


def wanted_columns(relation: Relation, used: Sequence[str], ranges: Mapping[str, str]) -> tuple[MirrorColumn, ...]:
    """The columns a query uses, and those of the key, which identify rows.

    Args:
        ranges: the ranges that users have declared for `numeric` columns.
    """
    wanted = set(used)
    try:
        mirror_columns(relation, relation.key, ranges)
        wanted |= set(relation.key)
    except MillstreamError:
        pass  # then all captured columns together identify a row
    if wanted:
        return mirror_columns(relation, sorted(wanted), ranges)
    for column in relation.columns:  # a query that only counts rows needs any one column
        try:
            return mirror_columns(relation, [column.name], ranges)
        except MillstreamError:
            continue
    raise MillstreamError(
        Code.UNSUPPORTED_TYPE,
        f"{relation.qualified} has no column that can be captured",
        hint="add a key column of a supported type",
    )


def unseen(capture: Capture, statements: Sequence[str]) -> str:
    """A warning about sessions whose changes are not captured until the table's owner runs the statements."""
    return (
        f"writes to {capture.name} by sessions with session_replication_role = replica are not captured "
        "(pg_restore --disable-triggers and subscriptions may use such sessions), because only the table's owner can "
        "enable triggers for them; if there are such sessions, ask the owner to run:\n  " + "\n  ".join(statements)
    )
