"""How a captured table has drifted from what was recorded of it, and what a tick does about that: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from millstream.capture.change_buffers import columns_made_for
from millstream.catalog.attached import AttachedDatabase, Capture
from millstream.errors import MillstreamError
from millstream.reasons import CaptureReason
from millstream.sources.postgres.server.relations import Relation
from millstream.sources.postgres.server.table_fingerprints import TableFingerprint
from millstream.sources.postgres.triggers.kept_columns import is_named_by_users
from millstream.sources.postgres.values.types import MirrorColumn, has_range, mirror_columns


class Action(Enum):
    """What a tick does about a captured table."""

    FOLLOW = auto()
    """Land its window."""
    RESYNC = auto()
    """Compare the mirror with the table: something happened that no capture has seen."""
    REINSTALL = auto()
    """Make its buffer and triggers again, or publish it again; then compare."""
    REBIND = auto()
    """Its mirror cannot hold it any more: no longer bring it forward, until its readers have bound again."""
    DROP = auto()
    """It is gone: no longer bring it forward."""
    QUARANTINE = auto()
    """It cannot be brought forward for now."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a poll sees of a captured table.

    Args:
        look: the fingerprints of the table of the recorded oid; None if there is none.
        triggers: the fingerprint of the triggers that capture it.
        named: what the poll sees of the relation that has its name now, where `needs_closer_look`.
    """

    look: TableFingerprint | None
    triggers: str | None
    named: NamedSighting | None = None


@dataclass(frozen=True, slots=True)
class NamedSighting:
    """What has a captured table's name now; all None if nothing has it."""

    relation: Relation | None = None
    look: TableFingerprint | None = None
    triggers: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What to do about a capture, and why; `look` is what the table is like now, `relation` where it was needed.

    Args:
        columns: the captured columns as they are to be from now on, where their PostgreSQL types are others.
    """

    action: Action
    reason: str = ""
    look: TableFingerprint | None = None
    relation: Relation | None = None
    columns: tuple[tuple[str, str, str], ...] | None = None


def needs_closer_look(capture: Capture, look: TableFingerprint | None, ranges: Mapping[str, str]) -> bool:
    """Whether fingerprints alone do not decide: name, oid or captured columns are not what they were.

    Args:
        ranges: those that users have declared for its columns of `numeric`.
    """
    if look is None or (look.schema, look.name) != (capture.schema, capture.table):
        return True
    if capture.state.missing or capture.state.stale or look.shape != capture.shape:
        return True
    return not all(has_range(pg_type, spark_type, ranges.get(name)) for name, pg_type, spark_type in capture.columns)


def judge(capture: Capture, seen: Sighting, ranges: Mapping[str, str]) -> Verdict:
    """What to do about a captured table, from its record and what a poll sees of it."""
    if seen.named is not None:
        return _judge_closely(capture, seen.named, ranges)
    look = seen.look
    assert look is not None, "else the poll looks more closely"
    if _has_other_triggers(capture, seen.triggers):
        return Verdict(Action.REINSTALL, CaptureReason.TRIGGERS_CHANGED, look)
    if capture.state.resync:
        return Verdict(Action.RESYNC, capture.state.resync, look)
    if look.storage != capture.filenodes:
        return Verdict(Action.RESYNC, CaptureReason.ROWS_REWRITTEN, look)
    return Verdict(Action.FOLLOW, look=look)


def _judge_closely(capture: Capture, seen: NamedSighting, ranges: Mapping[str, str]) -> Verdict:
    """What to do about a table whose name, oid or captured columns are not what they were."""
    relation, look, state = seen.relation, seen.look, capture.state
    if relation is None or look is None:
        return Verdict(Action.DROP, CaptureReason.DROPPED.format(table=f"{capture.schema}.{capture.table}"))
    try:
        now = mirror_columns(relation, [name for name, _, _ in capture.columns], ranges)
    except MillstreamError as error:
        return Verdict(Action.REBIND, error.message, look, relation)
    if change := _changed(capture.columns, now):
        return Verdict(Action.REBIND, change, look, relation)
    types = {c.name: (c.name, c.pg_type, c.spark_type) for c in now}
    columns = tuple(types[name] for name, _, _ in capture.columns)  # in the mirror's order
    if state.stale:
        return Verdict(Action.REBIND, state.stale, look, relation)
    if relation.oid != capture.oid or state.missing:
        return Verdict(Action.REINSTALL, CaptureReason.NAME_TAKEN_OVER, look, relation, columns)
    if columns != capture.columns:
        return Verdict(Action.REINSTALL, CaptureReason.TYPE_WIDENED, look, relation, columns)
    if _has_other_triggers(capture, seen.triggers):
        return Verdict(Action.REINSTALL, CaptureReason.TRIGGERS_CHANGED, look, relation)
    users = [name for name, _, _ in columns if is_named_by_users(relation.column(name))]
    if users and state.buffer is not None and columns_made_for(capture) != look.shape:
        reason = CaptureReason.TYPE_REPLACED.format(columns=", ".join(users))
        return Verdict(Action.REINSTALL, reason, look, relation)
    return Verdict(Action.RESYNC, CaptureReason.COLUMNS_ALTERED, look, relation)


def _changed(before: Sequence[tuple[str, str, str]], now: Sequence[MirrorColumn]) -> str | None:
    found = {c.name: c for c in now}
    for name, pg_type, spark_type in before:
        if name not in found:
            return CaptureReason.COLUMN_LOST.format(column=name)
        if found[name].spark_type != spark_type:
            old, new = (pg_type, found[name].pg_type)
            if old == new:
                old, new = spark_type.upper(), found[name].spark_type.upper()
            return CaptureReason.COLUMN_CHANGED.format(column=name, old=old, new=new)
    return None


def _has_other_triggers(capture: Capture, triggers: str | None) -> bool:
    """Whether the triggers that should capture it are not what they were."""
    known = capture.state.buffer.state if capture.state.buffer is not None else None
    return not capture.is_whole and known != triggers


def key_of(capture: Capture, look: TableFingerprint) -> tuple[str, ...]:
    """The key that identifies the mirror's rows, now and before; empty if it is another one or not captured."""
    captured = {name for name, _, _ in capture.columns}
    return look.key if captured.issuperset(look.key) else ()


def after_tick(
    capture: Capture, verdict: Verdict, before: AttachedDatabase, *, is_landed: bool, pending: str | None
) -> Capture:
    """A capture as it is recorded once a tick has ended.

    Args:
        before: the database as it was before.
        is_landed: whether the tick has brought its mirror forward.
        pending: why it is still to be compared with its table.
    """
    state = capture.state if pending is None else replace(capture.state, resync=pending)
    match verdict.action:
        case Action.REBIND:
            state = replace(state, buffer=None, missing=None, quarantine=None, stale=verdict.reason)
        case Action.DROP:
            state = replace(state, buffer=None, stale=None, quarantine=None, missing=verdict.reason)
    is_followed = verdict.action is Action.FOLLOW and not capture.is_whole and pending is None
    if not is_landed and not is_followed:
        return replace(
            capture,
            state=replace(
                state, position=state.position or before.position, reached_at=state.reached_at or before.reached_at
            ),
        )
    look = verdict.look
    assert look is not None
    state = replace(
        state,
        position=None,
        reached_at=None,
        resync=None,
        missing=None,
        quarantine=None,
        not_null=tuple(look.not_null),
    )
    return replace(capture, key=key_of(capture, look), shape=look.shape, filenodes=look.storage, state=state)
