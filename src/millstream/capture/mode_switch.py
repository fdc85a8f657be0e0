"""From triggers to the WAL and back: the steps a tick takes around its own work.

A database begins with triggers. Where its WAL can be read, and the user wants that or leaves the choice to us, a slot
is made while ticks go on; the first tick whose snapshot has outlived all older transactions is the last one by
triggers. Where the WAL can no longer be read, triggers are installed first, and the WAL is read until it is past that.
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
"""How long a database stays on triggers whose slot was lost, as all its tables are compared then; twice as long each
time that happens within `_FORGIVEN`, which is also the longest."""
_FORGIVEN = timedelta(days=1)


@dataclass
class Switch:
    """What a process knows of how a database is captured, between its ticks."""

    pursuit: OngoingTransition | None = None
    next_survey: float = field(default=0.0)
    wanted: str = ""
    """What the database's user wanted when it was surveyed last."""

    def close(self) -> None:
        """Abandon a slot that is not complete."""
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
        """What there is to do before a tick by triggers; gives the database as it is recorded then.

        Raises:
            MillstreamError: DATABASE_UNFIT and the like, if the user wants the WAL and nothing else.
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
            reason = "; ".join(str(o) for o in found.obstacles)
            return _recorded(catalog, database, CaptureMode.TRIGGER, replace(database.state, hindered=reason or None))
        self.pursuit = OngoingTransition(begin(connection, slot, captured, now()))
        transition = self.pursuit.transition.dump()
        # Without an unread slot: the one of that name is gone.
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
        """Stay with the triggers, which were never touched."""
        if self.pursuit is None and database.state.transition is not None:
            self.pursuit = OngoingTransition(_transition_of(database))
        state = replace(database.state, transition=None, hindered=reason)
        if self.pursuit is not None:
            try:
                self.pursuit.abandon(connection)
            except MillstreamError as error:
                if error.code not in (Code.LOCK_TIMEOUT, Code.PRIVILEGE_MISSING):
                    raise
                # Another process is making it, or was.
                state = replace(state, unread_slot=slot_names(self.pursuit.transition.slot))
            self.pursuit = None
        self.next_survey = time.monotonic() + _SURVEY_SECONDS
        return _recorded(catalog, database, CaptureMode.TRIGGER, state)

    def finish(
        self, snapshot: SourceSnapshot, database: AttachedDatabase, captures: Sequence[Capture]
    ) -> AttachedDatabase:
        """The database once a tick by triggers has reached the snapshot: at its WAL, if that could be the last one.

        Raises:
            MillstreamError: why the WAL cannot be read after all: then `abandon`.
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
    """The database once its WAL was read past the installation of triggers; None before, or if none are installed."""
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
    assert database.state.transition is not None, "it is moving to its WAL"
    return Transition.load(database.state.transition)


def wanted_as(database: AttachedDatabase, cdc: str) -> AttachedDatabase:
    """The database as its user wants it captured from now on: another mode is tried at once, even after a loss."""
    if cdc == database.cdc:
        return database
    return replace(database, cdc=cdc, state=replace(database.state, hindered=None, lost=None))


def with_loss(database: AttachedDatabase, now: datetime, reason: str) -> AttachedDatabase:
    """The database with the record that changes were missing from its WAL, and how long it stays on triggers then."""
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
