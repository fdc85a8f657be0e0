"""Mode switches of a database, from triggers to its WAL and back: each tick takes a step, for all tables together.

Both capture modes count the same transactions as read: those that the position's snapshot sees. So nothing has to be
read twice and deduplicated, and a switch is a change of the reader between two ticks:

- To the WAL: publish the tables, create a slot, and wait until the transactions have ended that were running when the
  slot was complete. From then on the slot has everything that a tick's snapshot does not see. The first tick whose
  snapshot has outlived them reads the last changes from the buffers; the next one reads the slot. The triggers can be
  dropped later.
- Back: install the triggers, which waits for all writers. A tick whose snapshot was taken after that reads the last
  changes from the slot; the next one reads the buffers. Then the slot can be dropped.

Each step can run in another process than the one before, and again after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.server.relations import Relation
from millstream.sources.postgres.values.types import MirrorColumn
from millstream.sources.postgres.wal.eligibility import (
    Hindrance,
    WalTable,
    ineligible_error,
    nested_hindrance,
    server_hindrances,
    wal_tables,
)
from millstream.sources.postgres.wal.publication import (
    drop_publication,
    drop_statement,
    ensure_published,
    may_publish,
    nested,
    publication_sql,
    read_published,
)
from millstream.sources.postgres.wal.slot import Slot, check_slot, drop_slot, slot_lost, slot_state, slot_timeout
from millstream.sources.postgres.wal.slot_creation import SlotCreation, current_snapshot, has_new_definitions
from millstream.sources.postgres.wal.wal_position import WalPosition


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """A captured table: the capture's id, the table as it is now, the captured columns."""

    id: str
    relation: Relation
    columns: tuple[MirrorColumn, ...]


@dataclass(frozen=True, slots=True)
class WalReadiness:
    """Whether some tables can be read from a slot.

    Args:
        tables: those that can.
        hindrances: those of the others, or of all; only an administrator of the database can remove them.
        unpublished: what the publication still lacks, and we may add; what we may not add is a hindrance.
        published: a fingerprint of how each table is published, by capture; if it differs, changes may be lost.
        unread: the captures whose changes the publication does not report as their own, for any reason.
    """

    tables: tuple[WalTable, ...]
    hindrances: tuple[Hindrance, ...]
    unpublished: tuple[Hindrance, ...]
    published: dict[str, str]
    unread: frozenset[str] = frozenset()


def check_readiness(connection: Connection, slot: Slot, captured: Sequence[CapturedTable]) -> WalReadiness:
    """Check everything that reading a slot depends on, in the connection's transaction if one is open."""
    tables, unfit = wal_tables(connection, [(c.id, c.relation, c.columns) for c in captured])
    published = read_published(connection, slot.publication, [_wanted(c) for c in captured])
    inside = nested(connection, slot.publication, [c.relation.oid for c in captured])
    missing = [c.relation for c in captured if c.relation.oid in published.missing and c.relation.oid not in inside]
    statements = publication_sql(connection, slot.publication, missing) if missing else []
    remedy = "; ".join(s.as_string(connection) for s in statements)
    unpublished = [Hindrance(r.qualified, published.missing[r.oid], remedy) for r in missing]
    hindrances = [*server_hindrances(connection, slot.name), *unfit]
    hindrances += [
        nested_hindrance(c.relation.qualified, inside[c.relation.oid]) for c in captured if c.relation.oid in inside
    ]
    if unpublished and not may_publish(connection, slot.publication, [c.relation for c in captured]):
        hindrances += unpublished
        unpublished = []
    fingerprints = {c.id: published.fingerprints[c.relation.oid] for c in captured}
    unread = frozenset(c.id for c in captured if c.relation.oid in published.missing)
    return WalReadiness(tables, tuple(hindrances), tuple(unpublished), fingerprints, unread)


class Step(StrEnum):
    """What a tick does about the capture mode, before it reads changes."""

    STAY = "STAY"
    BEGIN = "BEGIN"
    CONTINUE = "CONTINUE"
    ABANDON = "ABANDON"
    BACK = "BACK"


def next_step(cdc: str, mode: str, found: WalReadiness) -> Step:
    """What to do, given what is wanted (`auto`, `trigger`, `wal`), the present mode and the hindrances.

    Args:
        mode: `TRIGGER`, `TRANSITIONING` or `WAL`; in the last, call `check_published` first.

    Raises:
        MillstreamError: DATABASE_UNFIT for `wal`, naming all that is missing.
    """
    hindered = bool(found.hindrances)
    if cdc == "wal" and hindered:
        raise ineligible_error(found.hindrances)
    wants_wal = cdc in ("auto", "wal")
    match mode:
        case "TRIGGER":
            return Step.BEGIN if wants_wal and not hindered and found.tables else Step.STAY
        case "TRANSITIONING":
            return Step.CONTINUE if wants_wal and not hindered else Step.ABANDON
        case _:
            return Step.STAY if wants_wal and not hindered else Step.BACK


@dataclass(frozen=True, slots=True)
class Transition:
    """A mode switch to the WAL that has begun; the catalog holds it before anything is created on the server.

    Args:
        published: fingerprints of how the tables are published, by capture.
        began: a snapshot taken before the creation of the slot began.
        complete: a snapshot taken when the slot was complete; None before.
    """

    slot: Slot
    published: Mapping[str, str]
    started_at: datetime
    began: PgSnapshot
    complete: PgSnapshot | None = None

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Transition:
        """The transition that the catalog holds."""
        complete = stored.get("complete")
        return cls(
            Slot(stored["slot"], stored["publication"]),
            dict(stored["published"]),
            datetime.fromisoformat(stored["started_at"]),
            PgSnapshot.parse(stored["began"]),
            PgSnapshot.parse(complete) if complete else None,
        )

    def dump(self) -> dict[str, Any]:
        """What the catalog holds."""
        return {
            "slot": self.slot.name,
            "publication": self.slot.publication,
            "published": dict(self.published),
            "started_at": self.started_at.isoformat(),
            "began": str(self.began),
            "complete": str(self.complete) if self.complete is not None else None,
        }

    def seconds_left(self, now: datetime, timeout_seconds: float) -> float:
        """How long it may still take."""
        return timeout_seconds - (now - self.started_at).total_seconds()


def begin(connection: Connection, slot: Slot, captured: Sequence[CapturedTable], now: datetime) -> Transition:
    """Publish the tables, and drop a slot that an earlier attempt has left; `advance` creates the new one.

    Raises:
        MillstreamError: PRIVILEGE_MISSING with the statements for the tables' owner; LOCK_TIMEOUT.
    """
    published = ensure_published(connection, slot.publication, [_wanted(c) for c in captured])
    drop_slot(connection, slot.name)
    fingerprints = {c.id: published.fingerprints[c.relation.oid] for c in captured}
    return Transition(slot, fingerprints, now, current_snapshot(connection))


@dataclass(slots=True)
class OngoingTransition:
    """A transition, and the slot that this process is creating for it, if any."""

    transition: Transition
    creation: SlotCreation | None = None

    def advance(
        self, address: Address, connection: Connection, now: datetime, timeout_seconds: float, wait_seconds: float = 0.5
    ) -> bool:
        """Continue to create the slot, waiting a little; returns whether `transition` has changed and must be recorded.

        Raises:
            MillstreamError: LOCK_TIMEOUT when the time is up, or why the slot cannot be created; then call `abandon`.
        """
        if self.transition.seconds_left(now, timeout_seconds) <= 0:
            raise slot_timeout(self.transition.slot.name)
        if self.transition.complete is not None:
            return False
        name = self.transition.slot.name
        state = slot_state(connection, name)
        has_begun = state is None and self.creation is None
        if has_begun:
            self.transition = replace(self.transition, began=current_snapshot(connection))
        if (has_begun or self.creation is not None) and self._poll(address, now, timeout_seconds, wait_seconds):
            state = slot_state(connection, name)
        if self.creation is not None or state is None or not state.is_ready:
            return has_begun
        if has_new_definitions(connection, self.transition.began):
            drop_slot(connection, name)  # the next tick creates it again
            return has_begun
        self.transition = replace(self.transition, complete=current_snapshot(connection))
        return True

    def _poll(self, address: Address, now: datetime, timeout_seconds: float, wait_seconds: float) -> bool:
        """Wait a little for the slot; returns whether there is one to check.

        A connection that is refused or lost does not end the switch: a later tick begins the slot again.
        """
        try:
            if self.creation is None:
                left = self.transition.seconds_left(now, timeout_seconds)
                self.creation = SlotCreation(address, self.transition.slot.name, left)
            if not self.creation.poll(wait_seconds):
                return False
        except MillstreamError as error:
            self.creation = None
            if error.code is not Code.DATABASE_UNREACHABLE:
                raise
            return False
        self.creation = None
        return True

    def abandon(self, connection: Connection) -> None:
        """Drop what was created; the triggers were never touched.

        Raises:
            MillstreamError: LOCK_TIMEOUT, PRIVILEGE_MISSING if the slot cannot be dropped yet.
        """
        if self.creation is not None:
            self.creation.close()
            self.creation = None
        drop_slot(connection, self.transition.slot.name)


def wal_start_position(
    connection: Connection, transition: Transition, captured: Sequence[CapturedTable], snapshot: PgSnapshot
) -> WalPosition | None:
    """The position from which the slot is read, if a tick that ends at `snapshot` can be the last one by triggers.

    Everything that reading the WAL depends on is checked once more, in the tick's own transaction: a later change of it
    has to wait for locks that the snapshot's transactions have released.

    Args:
        connection: the tick's, in whose transaction the snapshot was taken.

    Raises:
        MillstreamError: what has come to hinder the switch; then call `abandon`.
    """
    if transition.complete is None or not snapshot.has_outlived(transition.complete):
        return None
    found = check_readiness(connection, transition.slot, captured)
    if found.hindrances or found.unpublished:
        raise ineligible_error((*found.hindrances, *found.unpublished))
    check_published(transition.slot, transition.published, found)
    state = slot_state(connection, transition.slot.name)
    if state is None or state.confirmed_flush_lsn is None:
        raise slot_lost(transition.slot, "the slot no longer exists")
    check_slot(connection, transition.slot, state.confirmed_flush_lsn)
    return WalPosition(snapshot, state.confirmed_flush_lsn)


def check_published(slot: Slot, known: Mapping[str, str], found: WalReadiness) -> None:
    """Check, before a tick reads the WAL, that the publication is the same: what left it leaves no trace in the WAL.

    Raises:
        MillstreamError: CAPTURE_LOST.
    """
    if any(known.get(id_) != fingerprint for id_, fingerprint in found.published.items()):
        raise slot_lost(
            slot, f"the publication {slot.publication} was changed, and changes in between were not published"
        )


def may_return_to_triggers(position: WalPosition, installed: PgSnapshot) -> bool:
    """Whether the WAL was read past the installation of the triggers, so that buffers can be read from there on.

    Args:
        installed: a snapshot taken after the triggers were in place on every table.
    """
    return position.snapshot.covers(installed)


def drop_slot_and_publication(connection: Connection, slot: Slot, wait_seconds: float = 5.0) -> str | None:
    """Drop a slot and its publication; returns the statement for the owner if another role owns the publication.

    Raises:
        MillstreamError: LOCK_TIMEOUT while another session reads the slot.
    """
    drop_slot(connection, slot.name, wait_seconds)
    if drop_publication(connection, slot.publication):
        return None
    return drop_statement(slot.publication).as_string(connection)


def error_line(error: MillstreamError) -> str:
    """Why a database stays on triggers, in one line."""
    return f"{error.code}: {error.message}" + (f" ({error.hint})" if error.hint else "")


def _wanted(item: CapturedTable) -> tuple[Relation, Sequence[str]]:
    return item.relation, [c.name for c in item.columns]
