"""What is to be done about a captured table, from what it was and what a poll sees of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from millstream.catalog.attached import BEHIND, MISSING, POSITION, REACHED_AT, RESYNC, STALE, AttachedDatabase, Capture
from millstream.errors import MillstreamError
from millstream.refresh.capture.record import BUFFER, NOT_NULL, is_whole, made_for
from millstream.sources.postgres.kept_columns import is_named_by_users
from millstream.sources.postgres.looks import Look
from millstream.sources.postgres.relations import Relation
from millstream.sources.postgres.types import MirrorColumn, has_range, mirror_columns


class Answer(Enum):
    """What to do."""

    FOLLOW = auto()
    """Land its window."""
    RESYNC = auto()
    """Compare the mirror with the table: something happened that no capture has seen."""
    REINSTALL = auto()
    """Make its buffer and triggers anew; then compare."""
    GIVE_UP = auto()
    """Its mirror cannot hold it any more; whoever reads it binds anew."""
    MISS = auto()
    """It is gone."""
    LEAVE = auto()
    """It cannot be brought forward for now."""


@dataclass(frozen=True)
class Verdict:
    """What to do about a capture, and why; `look` is what the table is like now, `relation` where it was needed."""

    answer: Answer
    reason: str = ""
    look: Look | None = None
    relation: Relation | None = None
    columns: tuple[tuple[str, str, str], ...] | None = None
    """The captured columns as they are to be from now on, where their PostgreSQL types are others."""


def judge(capture: Capture, look: Look | None, triggers: str | None, ranges: Mapping[str, str]) -> Verdict | None:
    """What to do, by fingerprints alone; None if the table has to be looked at more closely.

    Args:
        triggers: the state of the triggers that capture it.
        ranges: those that users have declared for its columns of `numeric`.
    """
    if look is None or (look.schema, look.name) != (capture.schema, capture.table):
        return None
    if capture.details.get(MISSING) or capture.details.get(STALE):
        return None
    if look.shape != capture.shape:
        return None
    if not all(has_range(pg_type, spark_type, ranges.get(name)) for name, pg_type, spark_type in capture.columns):
        return None
    if _is_untriggered(capture, triggers):
        return Verdict(Answer.REINSTALL, "its triggers were changed", look)
    if reason := capture.details.get(RESYNC):
        return Verdict(Answer.RESYNC, str(reason), look)
    if look.storage != capture.filenodes:
        return Verdict(Answer.RESYNC, "its rows were rewritten, truncated, or other partitions hold them", look)
    return Verdict(Answer.FOLLOW, look=look)


def judge_closely(
    capture: Capture, relation: Relation | None, look: Look | None, triggers: str | None, ranges: Mapping[str, str]
) -> Verdict:
    """What to do about a table whose name, oid or captured columns are not what they were.

    Args:
        relation: what has its name now.
        look: of the same.
    """
    if relation is None or look is None:
        return Verdict(Answer.MISS, f"{capture.schema}.{capture.table} was dropped or renamed")
    try:
        now = mirror_columns(relation, [name for name, _, _ in capture.columns], ranges)
    except MillstreamError as error:
        return Verdict(Answer.GIVE_UP, error.message, look, relation)
    if change := _changed(capture.columns, now):
        return Verdict(Answer.GIVE_UP, change, look, relation)
    types = {c.name: (c.name, c.pg_type, c.spark_type) for c in now}
    columns = tuple(types[name] for name, _, _ in capture.columns)  # in the mirror's order
    if capture.details.get(STALE):
        return Verdict(Answer.GIVE_UP, str(capture.details[STALE]), look, relation)
    if relation.oid != capture.oid or capture.details.get(MISSING):
        return Verdict(Answer.REINSTALL, "another table has its name", look, relation, columns)
    if columns != capture.columns:
        return Verdict(Answer.REINSTALL, "a column has another type of the same values", look, relation, columns)
    if _is_untriggered(capture, triggers):
        return Verdict(Answer.REINSTALL, "its triggers were changed", look, relation)
    users = [name for name, _, _ in columns if is_named_by_users(relation.column(name))]
    if users and BUFFER in capture.details and made_for(capture) != look.shape:
        return Verdict(Answer.REINSTALL, f"{', '.join(users)} may be of another type of the same name", look, relation)
    return Verdict(Answer.RESYNC, "its columns were altered", look, relation)


def _changed(before: Sequence[tuple[str, str, str]], now: Sequence[MirrorColumn]) -> str | None:
    found = {c.name: c for c in now}
    for name, pg_type, spark_type in before:
        if name not in found:
            return f"has lost its column {name}"
        if found[name].spark_type != spark_type:
            old, new = (pg_type, found[name].pg_type)
            if old == new:
                old, new = spark_type.upper(), found[name].spark_type.upper()
            return f"has changed its column {name} from {old} to {new}"
    return None


def _is_untriggered(capture: Capture, triggers: str | None) -> bool:
    """Whether the triggers that should capture it are not what they were."""
    return not is_whole(capture) and capture.details.get(BUFFER, {}).get("state") != triggers


def key_of(capture: Capture, look: Look) -> tuple[str, ...]:
    """The key by which the mirror's rows can be told, now and before; empty if it is another one or not captured."""
    captured = {name for name, _, _ in capture.columns}
    return look.key if captured.issuperset(look.key) else ()


def recorded(
    capture: Capture, verdict: Verdict, before: AttachedDatabase, *, is_landed: bool, pending: str | None
) -> Capture:
    """A capture as it is once a tick has ended.

    Args:
        before: the database as it was before.
        pending: why it is still to be compared with its table.
    """
    details = {**capture.details, RESYNC: pending} if pending is not None else dict(capture.details)
    match verdict.answer:
        case Answer.GIVE_UP:
            details = {k: v for k, v in details.items() if k not in (BUFFER, MISSING, BEHIND)} | {STALE: verdict.reason}
        case Answer.MISS:
            details = {k: v for k, v in details.items() if k not in (BUFFER, STALE, BEHIND)} | {MISSING: verdict.reason}
    is_followed = verdict.answer is Answer.FOLLOW and not is_whole(capture) and pending is None
    if not is_landed and not is_followed:
        if not details.get(POSITION):
            details[POSITION] = dict(before.position) if before.position is not None else None
        if REACHED_AT not in details:
            details[REACHED_AT] = before.reached_at.isoformat() if before.reached_at is not None else None
        return replace(capture, details=details)
    details = {k: v for k, v in details.items() if k not in (POSITION, REACHED_AT, RESYNC, MISSING, BEHIND)}
    look = verdict.look
    assert look is not None
    details[NOT_NULL] = list(look.not_null)
    return replace(capture, key=key_of(capture, look), shape=look.shape, filenodes=look.storage, details=details)
