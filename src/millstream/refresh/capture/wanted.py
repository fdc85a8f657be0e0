"""What a new capture records of its table, and what it does not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.catalog.attached import Capture
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.relations import Relation, RelationKind, find_named
from millstream.sources.postgres.types import MirrorColumn, has_range, mirror_columns


def refuse_view(relation: Relation) -> None:
    """Refuse what has become a view: queries read through views to their tables, and no capture reads one.

    Raises:
        MillstreamError: SOURCE_CHANGED.
    """
    if relation.kind is RelationKind.VIEW:
        raise MillstreamError(
            Code.SOURCE_CHANGED,
            f"{relation.qualified} is a view now, and was none when the query was read",
            hint="define what reads it again",
        )


def is_as_it_was(
    connection: Connection, relation: Relation, columns: Sequence[MirrorColumn], ranges: Mapping[str, str]
) -> bool:
    """Whether a table still has those columns, as a transaction sees it."""
    now = find_named(connection, relation.schema, relation.name)
    if now is None or now.oid != relation.oid:
        return False
    try:
        return mirror_columns(now, [c.name for c in columns], ranges) == tuple(columns)
    except MillstreamError:
        return False


def is_of(capture: Capture, relation: Relation, ranges: Mapping[str, str]) -> bool:
    """Whether a capture is of that very table, and of the ranges that are declared now."""
    return capture.oid == relation.oid and all(
        has_range(pg_type, spark_type, ranges.get(name)) for name, pg_type, spark_type in capture.columns
    )


def wanted_columns(relation: Relation, used: Sequence[str], ranges: Mapping[str, str]) -> tuple[MirrorColumn, ...]:
    """The columns a query uses, and those of the key, which identify rows.

    Args:
        ranges: those that users have declared for columns of `numeric`.
    """
    wanted = set(used)
    try:
        mirror_columns(relation, relation.key, ranges)
        wanted |= set(relation.key)
    except MillstreamError:
        pass  # then rows are told apart by all captured columns
    if wanted:
        return mirror_columns(relation, sorted(wanted), ranges)
    for column in relation.columns:  # of a query that only counts rows, one column will do
        try:
            return mirror_columns(relation, [column.name], ranges)
        except MillstreamError:
            continue
    raise MillstreamError(
        Code.UNSUPPORTED_TYPE, f"{relation.qualified} has no column that can be captured", hint="give it a key"
    )


def unseen(capture: Capture, statements: Sequence[str]) -> str:
    """A sentence about the sessions whose changes are not captured before the table's owner runs some statements."""
    return (
        f"what sessions with session_replication_role = replica write to {capture.name} is not captured "
        "(pg_restore --disable-triggers, or a subscription, may be such a session), because only the table's owner can "
        "have their triggers fire; if there are such sessions, let him run:\n  " + "\n  ".join(statements)
    )
