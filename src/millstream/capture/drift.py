"""Detects how a captured table has drifted from its record, and decides what a tick does about it. Pure."""

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
from millstream.sources.postgres.triggers.kept_columns import has_user_type
from millstream.sources.postgres.values.types import MirrorColumn, has_range, mirror_columns


class Action(Enum):
    """What a tick does about a captured table."""

    FOLLOW = auto()
    """Land its changes."""
    RESYNC = auto()
    """Compare the mirror with the table: capture has missed something."""
    REINSTALL = auto()
    """Recreate its buffer and triggers, or publish it again; then compare."""
    REBIND = auto()
    """Its mirror can no longer hold it: stop bringing it forward until its dependents are recompiled."""
    DROP = auto()
    """It is gone: stop bringing it forward."""
    QUARANTINE = auto()
    """It cannot be brought forward for now."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a poll sees of a captured table.

    Args:
        fingerprint: the fingerprint of the table with the recorded OID; None if there is none.
        triggers: the fingerprint of the triggers that capture it.
        named: what the poll sees of the relation that has its name now, if `needs_closer_look`.
    """

    fingerprint: TableFingerprint | None
    triggers: str | None
    named: NamedSighting | None = None


@dataclass(frozen=True, slots=True)
class NamedSighting:
    """The relation that has a captured table's name now; all None if there is none."""

    relation: Relation | None = None
    fingerprint: TableFingerprint | None = None
    triggers: str | None = None


@dataclass(frozen=True)
class Decision:
    """What to do about a capture, and why.

    Args:
        fingerprint: the current fingerprint of the table.
        relation: the table itself, if it was looked up.
        columns: the captured columns from now on, if their PostgreSQL types have changed.
    """

    action: Action
    reason: str = ""
    fingerprint: TableFingerprint | None = None
    relation: Relation | None = None
    columns: tuple[tuple[str, str, str], ...] | None = None


def needs_closer_look(capture: Capture, fingerprint: TableFingerprint | None, ranges: Mapping[str, str]) -> bool:
    """Whether the fingerprint alone does not decide, because the name, OID or captured columns have changed.

    Args:
        ranges: the ranges that users have declared for its `numeric` columns.
    """
    if fingerprint is None or (fingerprint.schema, fingerprint.name) != (capture.schema, capture.table):
        return True
    if capture.state.missing or capture.state.stale or fingerprint.shape != capture.shape:
        return True
    return not all(has_range(pg_type, spark_type, ranges.get(name)) for name, pg_type, spark_type in capture.columns)


def decide(capture: Capture, seen: Sighting, ranges: Mapping[str, str]) -> Decision:
    """Decide what to do about a captured table, from its record and what a poll sees of it."""
    if seen.named is not None:
        return _decide_by_name(capture, seen.named, ranges)
    fingerprint = seen.fingerprint
    assert fingerprint is not None, "otherwise the poll has looked up the name"
    if _has_other_triggers(capture, seen.triggers):
        return Decision(Action.REINSTALL, CaptureReason.TRIGGERS_CHANGED, fingerprint)
    if capture.state.resync:
        return Decision(Action.RESYNC, capture.state.resync, fingerprint)
    if fingerprint.storage != capture.filenodes:
        return Decision(Action.RESYNC, CaptureReason.ROWS_REWRITTEN, fingerprint)
    return Decision(Action.FOLLOW, fingerprint=fingerprint)


def _decide_by_name(capture: Capture, seen: NamedSighting, ranges: Mapping[str, str]) -> Decision:
    """Decide about a table whose name, OID or captured columns have changed."""
    relation, fingerprint, state = seen.relation, seen.fingerprint, capture.state
    if relation is None or fingerprint is None:
        return Decision(Action.DROP, CaptureReason.DROPPED.format(table=f"{capture.schema}.{capture.table}"))
    try:
        now = mirror_columns(relation, [name for name, _, _ in capture.columns], ranges)
    except MillstreamError as error:
        return Decision(Action.REBIND, error.message, fingerprint, relation)
    if change := _changed(capture.columns, now):
        return Decision(Action.REBIND, change, fingerprint, relation)
    types = {c.name: (c.name, c.pg_type, c.spark_type) for c in now}
    columns = tuple(types[name] for name, _, _ in capture.columns)  # in the mirror's order
    if state.stale:
        return Decision(Action.REBIND, state.stale, fingerprint, relation)
    if relation.oid != capture.oid or state.missing:
        return Decision(Action.REINSTALL, CaptureReason.NAME_TAKEN_OVER, fingerprint, relation, columns)
    if columns != capture.columns:
        return Decision(Action.REINSTALL, CaptureReason.TYPE_WIDENED, fingerprint, relation, columns)
    if _has_other_triggers(capture, seen.triggers):
        return Decision(Action.REINSTALL, CaptureReason.TRIGGERS_CHANGED, fingerprint, relation)
    users = [name for name, _, _ in columns if has_user_type(relation.column(name))]
    if users and state.buffer is not None and columns_made_for(capture) != fingerprint.shape:
        reason = CaptureReason.TYPE_REPLACED.format(columns=", ".join(users))
        return Decision(Action.REINSTALL, reason, fingerprint, relation)
    return Decision(Action.RESYNC, CaptureReason.COLUMNS_ALTERED, fingerprint, relation)


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
    """Whether the triggers that should capture a table have changed."""
    known = capture.state.buffer.state if capture.state.buffer is not None else None
    return not capture.is_whole and known != triggers


def key_of(capture: Capture, fingerprint: TableFingerprint) -> tuple[str, ...]:
    """The table's key, which identifies the mirror's rows; empty if its columns are not all captured."""
    captured = {name for name, _, _ in capture.columns}
    return fingerprint.key if captured.issuperset(fingerprint.key) else ()


def after_tick(
    capture: Capture, decision: Decision, before: AttachedDatabase, *, is_landed: bool, pending: str | None
) -> Capture:
    """A capture as it is recorded at the end of a tick.

    Args:
        before: the database before the tick.
        is_landed: whether the tick has brought its mirror forward.
        pending: why its mirror still has to be compared with the table.
    """
    state = capture.state if pending is None else replace(capture.state, resync=pending)
    match decision.action:
        case Action.REBIND:
            state = replace(state, buffer=None, missing=None, quarantine=None, stale=decision.reason)
        case Action.DROP:
            state = replace(state, buffer=None, stale=None, quarantine=None, missing=decision.reason)
    is_followed = decision.action is Action.FOLLOW and not capture.is_whole and pending is None
    if not is_landed and not is_followed:
        return replace(
            capture,
            state=replace(
                state, position=state.position or before.position, reached_at=state.reached_at or before.reached_at
            ),
        )
    fingerprint = decision.fingerprint
    assert fingerprint is not None
    state = replace(
        state,
        position=None,
        reached_at=None,
        resync=None,
        missing=None,
        quarantine=None,
        not_null=tuple(fingerprint.not_null),
    )
    return replace(
        capture, key=key_of(capture, fingerprint), shape=fingerprint.shape, filenodes=fingerprint.storage, state=state
    )
