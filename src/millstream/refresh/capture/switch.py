"""From triggers to the WAL and back: the steps a tick takes around its own work.

A database begins with triggers. Where its WAL can be read, and the user wants it or leaves it to us, a slot is made
while ticks go on; the first tick that has outlived all older transactions is the last one by triggers. Where something
comes in the way, triggers are put back first, and the WAL is read until it is past that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from millstream.catalog import Catalog
from millstream.catalog.attached import HINDERED, LEFT, AttachedDatabase, Capture, CaptureMode
from millstream.errors import Code, MillstreamError
from millstream.refresh.capture.cut import Cut
from millstream.refresh.capture.ways import WAL, captured_tables
from millstream.settings import Settings
from millstream.sources.postgres.address import Address
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.slot import Slot, slot_of
from millstream.sources.postgres.snapshots import PgSnapshot
from millstream.sources.postgres.transition import (
    Pursuit,
    Step,
    Transition,
    begin,
    cut_to_wal,
    next_step,
    reason_of,
    survey,
)

TRANSITION, INSTALLED, LOST = "transition", "installed", "lost"
"""Details of a database: a move to the WAL that is under way; a snapshot by which triggers were in place again, while
the WAL is still read; how often and when changes were missing from the WAL."""

_SURVEY_SECONDS = 60.0
_BACK_OFF = timedelta(minutes=10)
"""How long a database stays on triggers whose slot was lost, as all its tables are compared then; twice as long each
time that happens within `_FORGIVEN`, which is also the longest."""
_FORGIVEN = timedelta(days=1)


@dataclass
class Switch:
    """What a process knows of the way a database is captured, between its ticks."""

    pursuit: Pursuit | None = None
    next_survey: float = field(default=0.0)
    wanted: str = ""
    """What the database's user wanted when it was surveyed last."""

    def close(self) -> None:
        """Leave a slot that is not complete."""
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
            if time.monotonic() < self.next_survey or now() < _retried_at(database):
                return database
            self.next_survey = time.monotonic() + _SURVEY_SECONDS
            return self._begin(catalog, now, connection, database, captures)
        except MillstreamError as error:
            if error.code is Code.DATABASE_UNREACHABLE:
                raise
            stayed = self.abandon(catalog, connection, database, reason_of(error))
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
        found = survey(connection, slot, captured)
        if next_step(database.cdc, database.mode, found) is not Step.BEGIN:
            reason = "; ".join(str(o) for o in found.obstacles)
            return _recorded(catalog, database, CaptureMode.TRIGGER, {HINDERED: reason or None})
        self.pursuit = Pursuit(begin(connection, slot, captured, now()))
        transition = self.pursuit.transition.dump()
        begun: dict[str, object] = {TRANSITION: transition, HINDERED: None, LEFT: None}  # a slot of that name is gone
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
            self.pursuit = Pursuit(Transition.load(database.details[TRANSITION]))
        address, limit = Address(database.address), settings.wal_transition_timeout
        if not self.pursuit.pursue(address, connection, now(), limit, wait_seconds=0.0):
            return database
        return _recorded(catalog, database, database.mode, {TRANSITION: self.pursuit.transition.dump()})

    def abandon(
        self, catalog: Catalog, connection: Connection, database: AttachedDatabase, reason: str | None
    ) -> AttachedDatabase:
        """Stay with the triggers, which were never touched."""
        if self.pursuit is None and TRANSITION in database.details:
            self.pursuit = Pursuit(Transition.load(database.details[TRANSITION]))
        details: dict[str, object] = {TRANSITION: None, HINDERED: reason}
        if self.pursuit is not None:
            try:
                self.pursuit.abandon(connection)
            except MillstreamError as error:
                if error.code not in (Code.LOCK_TIMEOUT, Code.PRIVILEGE_MISSING):
                    raise
                details[LEFT] = as_left(self.pursuit.transition.slot)  # another process is making it, or was
            self.pursuit = None
        self.next_survey = time.monotonic() + _SURVEY_SECONDS
        return _recorded(catalog, database, CaptureMode.TRIGGER, details)

    def cut(self, cut: Cut, database: AttachedDatabase, captures: Sequence[Capture]) -> AttachedDatabase:
        """The database once a tick by triggers has ended at the cut: at its WAL, if that could be the last one.

        Raises:
            MillstreamError: what has come in the way: then `abandon`.
        """
        if database.mode is not CaptureMode.TRANSITIONING:
            return database
        transition = Transition.load(database.details[TRANSITION])
        captured = captured_tables(cut.connection, captures)
        position = cut_to_wal(cut.connection, transition, captured, PgSnapshot.parse(cut.position))
        if position is None:
            return database
        self.pursuit = None
        slot = transition.slot
        way = {"slot": slot.name, "publication": slot.publication, "published": dict(transition.published)}
        moved = with_details(database, {TRANSITION: None, WAL: way})
        return replace(moved, mode=CaptureMode.WAL, position=position.dump())


def wanted_as(database: AttachedDatabase, cdc: str) -> AttachedDatabase:
    """The database as its user wants it captured from now on: another way is tried at once, whatever was before."""
    return database if cdc == database.cdc else replace(with_details(database, {HINDERED: None, LOST: None}), cdc=cdc)


def with_loss(database: AttachedDatabase, now: datetime, reason: str) -> AttachedDatabase:
    """The database with the record that changes were missing from its WAL, and how long it stays on triggers then."""
    before, times = database.details.get(LOST), 1
    if before is not None and now - datetime.fromisoformat(before["at"]) < _FORGIVEN:
        times = int(before["times"]) + 1
    after = with_details(database, {LOST: {"at": now.isoformat(), "times": times}})
    until = _retried_at(after)
    return with_details(after, {HINDERED: f"{reason}; the WAL is tried again at {until:%Y-%m-%d %H:%M} UTC"})


def _retried_at(database: AttachedDatabase) -> datetime:
    lost = database.details.get(LOST)
    if lost is None:
        return datetime.min.replace(tzinfo=UTC)
    return datetime.fromisoformat(lost["at"]) + min(_FORGIVEN, _BACK_OFF * (1 << min(int(lost["times"]) - 1, 20)))


def as_left(slot: Slot) -> dict[str, object]:
    """What is recorded of a slot that is to be dropped."""
    return {"slot": slot.name, "publication": slot.publication}


def with_details(database: AttachedDatabase, more: Mapping[str, object]) -> AttachedDatabase:
    """The database with other details; None takes one away."""
    details = {**database.details, **more}
    return replace(database, details={k: v for k, v in details.items() if v is not None})


def _recorded(
    catalog: Catalog, database: AttachedDatabase, mode: CaptureMode, details: dict[str, object]
) -> AttachedDatabase:
    after = replace(with_details(database, details), mode=mode)
    if after != database:
        catalog.put_database(after)
    return after
