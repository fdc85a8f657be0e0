"""Plans a tick: pure functions that turn the catalog's records and a poll into a frozen plan.

A tick plans twice. At its outset it knows the catalog and the database's state, and decides what the database as a
whole needs (`Outset`). Once it has polled the tables under a snapshot, it decides what each table needs (`TickPlan`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto

from millstream.capture.drift import Action, Decision, Sighting, decide
from millstream.capture.quarantine import error_of, rests
from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode
from millstream.catalog.numeric_ranges import NumericRanges
from millstream.errors import MillstreamError
from millstream.postgres.identity import Identity
from millstream.reasons import CaptureReason
from millstream.sources.postgres.values.types import MirrorColumn

_UNREADABLE = (Action.REBIND, Action.DROP)


@dataclass(frozen=True)
class TickRequest:
    """What the caller of a tick asks for.

    Args:
        wanted: names of tables; of the tables that are always read as a whole or are quarantined, only these are read.
        wider: columns to add to captures.
        needs_snapshot: whether the caller uses the snapshot; the tick then takes one even if nothing was written.
        is_first: the first tick of this process, which checks every mirror: an older copy of the catalog may have
            been restored, and the buffers then lack the changes since that copy.
    """

    wanted: Collection[str] = ()
    wider: Mapping[str, Sequence[MirrorColumn]] = field(default_factory=dict)
    needs_snapshot: bool = False
    is_first: bool = False

    def missing_columns(self, captures: Mapping[str, Capture]) -> dict[str, list[MirrorColumn]]:
        """The columns of `wider` that the mirrors lack: an earlier attempt may have added some."""
        have = {id_: {name for name, _, _ in capture.columns} for id_, capture in captures.items()}
        more = {id_: [c for c in columns if c.name not in have[id_]] for id_, columns in self.wider.items()}
        return {id_: columns for id_, columns in more.items() if columns}


# --- At the outset ----------------------------------------------------------------------------------------------------


class DatabaseStep(Enum):
    """What a database as a whole needs before its changes are read."""

    START_OVER = auto()
    """It was replaced, restored or put back: compare all its tables."""
    SWITCH_FORWARD = auto()
    """Triggers capture it: take the next step of a switch to the WAL, if there is one."""
    PUBLISH = auto()
    """Its WAL is read: publish the tables that the WAL does not provide."""


@dataclass(frozen=True)
class Outset:
    """What a tick does before it polls.

    Args:
        step: what the database needs.
        reasons: why captures have to be compared, as far as the catalog and the mirrors show.
        quarantined: captures that are not retried, and why.
        unpublished: followed captures that the WAL does not provide.
    """

    step: DatabaseStep
    reasons: Mapping[str, str]
    quarantined: Mapping[str, MillstreamError]
    unpublished: tuple[str, ...] = ()


def unasked(captures: Collection[Capture], request: TickRequest) -> dict[str, MillstreamError]:
    """The quarantined captures that the caller did not request, and why they are quarantined."""
    found = [c for c in captures if c.state.quarantine is not None]
    return {c.id: error_of(c) for c in found if c.name not in request.wanted and c.id not in request.wider}


def known_reasons(
    captures: Mapping[str, Capture], quarantined: Collection[str], request: TickRequest, moved: Mapping[str, str]
) -> dict[str, str]:
    """Why captures have to be compared, as far as the catalog and the mirrors show.

    Args:
        moved: why mirrors are not at their recorded versions.
    """
    wider = request.missing_columns(captures).items()
    more = CaptureReason.MORE_COLUMNS
    found = {id_: more.format(columns=", ".join(c.name for c in columns)) for id_, columns in wider}
    for capture in captures.values():
        if capture.id in quarantined:
            continue
        if capture.is_whole and capture.name in request.wanted:
            found[capture.id] = CaptureReason.UNRECORDED
        elif capture.state.resync:
            found[capture.id] = capture.state.resync
        elif capture.is_kept and capture.id in moved:
            found[capture.id] = moved[capture.id]
    return found


def followed(captures: Mapping[str, Capture], quarantined: Collection[str]) -> list[Capture]:
    """The captures whose changes are read."""
    return [c for c in captures.values() if c.is_kept and not c.is_whole and c.id not in quarantined]


def is_idle(
    database: AttachedDatabase,
    captures: Mapping[str, Capture],
    seen: tuple[Identity, str],
    request: TickRequest,
    moved: Mapping[str, str],
    views: Collection[str],
) -> bool:
    """Whether there is nothing to do: nothing was written since the last tick, and no snapshot is requested.

    Args:
        seen: the identity of the connected database, and its snapshot.
        views: the views of the database that queries read.
    """
    quarantined = unasked(captures.values(), request)
    identity, snapshot = seen
    if identity != Identity.recorded(database) or known_reasons(captures, quarantined, request, moved):
        return False
    if request.needs_snapshot or database.mode is CaptureMode.TRANSITIONING:
        return False
    if database.position is None or database.position.get("snapshot") != snapshot:
        return False
    if database.mode is CaptureMode.WAL and database.cdc == "trigger":  # the switch back needs no writes
        return False
    if not set(views) <= database.state.views.keys():
        return False
    return all(c.state.position is None for c in followed(captures, quarantined))


def plan_outset(
    database: AttachedDatabase,
    captures: Mapping[str, Capture],
    identity: Identity,
    request: TickRequest,
    moved: Mapping[str, str],
    now: datetime,
) -> Outset:
    """What to do before the tables are polled.

    Args:
        identity: the identity of the connected database.
    """
    asked = unasked(captures.values(), request).items()
    quarantined = {id_: error for id_, error in asked if rests(captures[id_], now)}
    reasons = known_reasons(captures, quarantined, request, moved)
    if identity != Identity.recorded(database):
        return Outset(DatabaseStep.START_OVER, reasons, quarantined)
    if database.mode is not CaptureMode.WAL:
        return Outset(DatabaseStep.SWITCH_FORWARD, reasons, quarantined)
    assert database.state.wal is not None
    published = database.state.wal.published
    unpublished = tuple(c.id for c in followed(captures, quarantined) if c.id not in published)
    return Outset(DatabaseStep.PUBLISH, reasons, quarantined, unpublished)


# --- Under a snapshot -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TickPlan:
    """What a tick does about each captured table, under one snapshot.

    Args:
        decisions: what to do about each capture, and why.
        reasons: why captures have to be compared with their tables.
        follow: captures whose changes are read.
        resync: captures that are compared with their tables, and why.
        reinstall: captures whose tables are captured again before another attempt is made.
        drop: captures that are no longer brought forward: their tables are gone, or their columns have changed.
        quarantine: captures that are not brought forward, and why.
        unlocked: captures to be compared whose tables this attempt has not locked; the next attempt locks them.
    """

    decisions: Mapping[str, Decision]
    reasons: Mapping[str, str]
    follow: tuple[str, ...]
    resync: Mapping[str, str]
    reinstall: Mapping[str, Decision]
    drop: frozenset[str]
    quarantine: Mapping[str, MillstreamError]
    unlocked: frozenset[str]

    @property
    def is_executable(self) -> bool:
        """Whether changes can be read and landed now; otherwise the tick prepares another attempt."""
        return not self.reinstall and not self.unlocked


def plan_tick(
    captures: Mapping[str, Capture],
    seen: Mapping[str, Sighting],
    ranges: NumericRanges,
    reasons: Mapping[str, str],
    quarantined: Mapping[str, MillstreamError],
    locked: Collection[str],
) -> TickPlan:
    """What to do about each captured table.

    Args:
        captures: the captures, by id, as this tick has made them so far.
        seen: what a poll sees of each.
        ranges: the ranges that users have declared.
        reasons: why captures have to be compared, as far as known.
        quarantined: captures that are not retried, and why.
        locked: captures whose tables are locked, so that they can be read as a whole.
    """
    decisions = {
        id_: _decision(capture, seen[id_], ranges, is_compared=id_ in reasons, is_quarantined=id_ in quarantined)
        for id_, capture in captures.items()
    }
    compared = dict(reasons)
    for id_, decision in decisions.items():
        if decision.action in (Action.RESYNC, Action.REINSTALL):
            compared.setdefault(id_, decision.reason)
    kept = {id_: error for id_, error in quarantined.items() if decisions[id_].action is Action.QUARANTINE}
    read = [c.id for c in followed(captures, kept) if decisions[c.id].action is Action.FOLLOW]
    resync = (Action.FOLLOW, Action.RESYNC)
    return TickPlan(
        decisions=decisions,
        reasons=compared,
        follow=tuple(id_ for id_ in read if id_ not in compared),
        resync={id_: reason for id_, reason in compared.items() if decisions[id_].action in resync},
        reinstall={id_: v for id_, v in decisions.items() if v.action is Action.REINSTALL},
        drop=frozenset(id_ for id_, v in decisions.items() if v.action in _UNREADABLE),
        quarantine=kept,
        unlocked=frozenset(id_ for id_ in compared if id_ not in locked and decisions[id_].action not in _UNREADABLE),
    )


def _decision(
    capture: Capture, seen: Sighting, ranges: NumericRanges, *, is_compared: bool, is_quarantined: bool
) -> Decision:
    decision = decide(capture, seen, ranges.of_table(capture.schema, capture.table))
    if decision.action is Action.RESYNC and capture.is_whole and not is_compared:
        decision = replace(decision, action=Action.FOLLOW)  # it is compared only when it is wanted
    if is_quarantined and decision.action not in _UNREADABLE:
        decision = replace(decision, action=Action.QUARANTINE)
    return decision
