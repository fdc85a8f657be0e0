"""Switches a database from triggers to the WAL and back, one step per tick.

A database begins with triggers. If its WAL can be read, and the user requests the WAL or leaves the choice open, a slot
is created while ticks continue; the first tick whose snapshot has outlived all older transactions is the last one that
reads buffers. If the WAL can no longer be read, triggers are installed first, and the WAL is read past that point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from millstream.capture.change_readers import captured_tables
from millstream.capture.orphans import leaving_wal, slot_names
from millstream.capture.source_snapshot import SourceSnapshot
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode
from millstream.catalog.capture_state import DatabaseState, WalLoss, WalState
from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection
from millstream.settings import Settings
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.wal.mode_switch import (
    OngoingTransition,
    Step,
    Transition,
    begin,
    check_readiness,
    error_line,
    may_return_to_triggers,
    next_step,
    wal_start_position,
)
from millstream.sources.postgres.wal.slot import slot_of
from millstream.sources.postgres.wal.wal_position import WalPosition

_SURVEY_SECONDS = 60.0
_BACK_OFF = timedelta(minutes=10)
"""How long a database stays on triggers after its slot was lost, because all its tables are then compared. The time
doubles with each loss within `_FORGIVEN`, which is also the maximum."""
_FORGIVEN = timedelta(days=1)


@dataclass
class Switch:
    """The state of a database's mode switch that a process keeps between ticks."""

    pursuit: OngoingTransition | None = None
    next_survey: float = field(default=0.0)
    wanted: str = ""
    """The requested `cdc` at the last survey."""

    def close(self) -> None:
        """Abandon a slot whose creation is not complete."""
        if self.pursuit is not None and self.pursuit.creation is not None:
            self.pursuit.creation.close()
        self.pursuit = None

    def forward(
        self,
        catalog: Catalog,
        settings: Settings,
        now: Callable[[], datetime],
        connection: Connection,
        database: AttachedDatabase,
        captures: Sequence[Capture],
    ) -> AttachedDatabase:
        """Take the next step towards the WAL before a tick that reads buffers; returns the recorded database.

        Raises:
            MillstreamError: DATABASE_UNFIT, ..., if the user requires the WAL.
        """
        if database.cdc != self.wanted:
            self.wanted, self.next_survey = database.cdc, 0.0
        if database.cdc == "trigger" and database.mode is CaptureMode.TRANSITIONING:
            return self.abandon(catalog, connection, database, None)
        if database.cdc == "trigger" or not captures:
            return database
        try:
            if database.mode is CaptureMode.TRANSITIONING:
                return self._pursue(catalog, settings, now, connection, database)
            if time.monotonic() < self.next_survey or now() < _retried_at(database.state.lost):
                return database
            self.next_survey = time.monotonic() + _SURVEY_SECONDS
            return self._begin(catalog, now, connection, database, captures)
        except MillstreamError as error:
            if error.code is Code.DATABASE_UNREACHABLE:
                raise
            stayed = self.abandon(catalog, connection, database, error_line(error))
            if database.cdc == "wal" and error.code is not Code.LOCK_TIMEOUT:
                raise
            return stayed

    def _begin(
        self,
        catalog: Catalog,
        now: Callable[[], datetime],
        connection: Connection,
        database: AttachedDatabase,
        captures: Sequence[Capture],
    ) -> AttachedDatabase:
        slot = slot_of(catalog.lake_id(), database.name)
        captured = captured_tables(connection, captures)
        found = check_readiness(connection, slot, captured)
        if next_step(database.cdc, database.mode, found) is not Step.BEGIN:
            reason = "; ".join(str(o) for o in found.hindrances)
            return _recorded(catalog, database, CaptureMode.TRIGGER, replace(database.state, hindered=reason or None))
        self.pursuit = OngoingTransition(begin(connection, slot, captured, now()))
        transition = self.pursuit.transition.dump()
        # No unread slot any more: `begin` has dropped the old slot of that name.
        begun = replace(database.state, transition=transition, hindered=None, unread_slot=None)
        return _recorded(catalog, database, CaptureMode.TRANSITIONING, begun)

    def _pursue(
        self,
        catalog: Catalog,
        settings: Settings,
        now: Callable[[], datetime],
        connection: Connection,
        database: AttachedDatabase,
    ) -> AttachedDatabase:
        if self.pursuit is None:
            self.pursuit = OngoingTransition(_transition_of(database))
        address, limit = Address(database.address), settings.wal_transition_timeout
        if not self.pursuit.advance(address, connection, now(), limit, wait_seconds=0.0):
            return database
        pursued = replace(database.state, transition=self.pursuit.transition.dump())
        return _recorded(catalog, database, database.mode, pursued)

    def abandon(
        self, catalog: Catalog, connection: Connection, database: AttachedDatabase, reason: str | None
    ) -> AttachedDatabase:
        """Abandon the switch; the triggers are still installed and continue to capture."""
        if self.pursuit is None and database.state.transition is not None:
            self.pursuit = OngoingTransition(_transition_of(database))
        state = replace(database.state, transition=None, hindered=reason)
        if self.pursuit is not None:
            try:
                self.pursuit.abandon(connection)
            except MillstreamError as error:
                if error.code not in (Code.LOCK_TIMEOUT, Code.PRIVILEGE_MISSING):
                    raise
                # Another process is creating the slot, or was.
                state = replace(state, unread_slot=slot_names(self.pursuit.transition.slot))
            self.pursuit = None
        self.next_survey = time.monotonic() + _SURVEY_SECONDS
        return _recorded(catalog, database, CaptureMode.TRIGGER, state)

    def finish(
        self, snapshot: SourceSnapshot, database: AttachedDatabase, captures: Sequence[Capture]
    ) -> AttachedDatabase:
        """The database after a tick by triggers; in WAL mode if this tick can be the last one that reads buffers.

        Raises:
            MillstreamError: why the WAL cannot be read after all; the caller then calls `abandon`.
        """
        if database.mode is not CaptureMode.TRANSITIONING:
            return database
        transition = _transition_of(database)
        captured = captured_tables(snapshot.connection, captures)
        position = wal_start_position(snapshot.connection, transition, captured, PgSnapshot.parse(snapshot.position))
        if position is None:
            return database
        self.pursuit = None
        slot = transition.slot
        wal = WalState(slot.name, slot.publication, dict(transition.published))
        moved = replace(database.state, transition=None, wal=wal)
        return replace(database, mode=CaptureMode.WAL, position=position.dump(), state=moved)


def back_to_triggers(
    database: AttachedDatabase, captures: Sequence[Capture], hindrance: str | None
) -> AttachedDatabase | None:
    """The database in trigger mode, once its WAL has been read past the installation of triggers; None before that."""
    installed = database.state.triggers_installed
    if installed is None or not all(c.state.buffer is not None for c in captures):
        return None
    assert database.position is not None
    if not may_return_to_triggers(WalPosition.load(database.position), PgSnapshot.parse(installed)):
        return None
    left = leaving_wal(database)
    position = {"snapshot": database.position["snapshot"]}
    return replace(left, mode=CaptureMode.TRIGGER, position=position, state=replace(left.state, hindered=hindrance))


def _transition_of(database: AttachedDatabase) -> Transition:
    assert database.state.transition is not None, "it is switching to its WAL"
    return Transition.load(database.state.transition)


def wanted_as(database: AttachedDatabase, cdc: str) -> AttachedDatabase:
    """The database with another requested capture mode, which is tried at once, even after a loss."""
    if cdc == database.cdc:
        return database
    return replace(database, cdc=cdc, state=replace(database.state, hindered=None, lost=None))


def with_loss(database: AttachedDatabase, now: datetime, reason: str) -> AttachedDatabase:
    """The database with the record that its WAL lacked changes, and how long it stays on triggers because of that."""
    before, times = database.state.lost, 1
    if before is not None and now - before.at < _FORGIVEN:
        times = before.times + 1
    lost = WalLoss(now, times)
    hindered = f"{reason}; the WAL is tried again at {_retried_at(lost):%Y-%m-%d %H:%M} UTC"
    return replace(database, state=replace(database.state, lost=lost, hindered=hindered))


def _retried_at(lost: WalLoss | None) -> datetime:
    if lost is None:
        return datetime.min.replace(tzinfo=UTC)
    return lost.at + min(_FORGIVEN, _BACK_OFF * (1 << min(lost.times - 1, 20)))


def _recorded(
    catalog: Catalog, database: AttachedDatabase, mode: CaptureMode, state: DatabaseState
) -> AttachedDatabase:
    after = replace(database, mode=mode, state=state)
    if after != database:
        catalog.put_database(after)
    return after
