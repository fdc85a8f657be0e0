"""The context of a tick, its state so far, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from millstream.capture.dependents import Dependents
from millstream.capture.mode_switch import Switch
from millstream.capture.quarantine import is_about_one_table, quarantined
from millstream.capture.tick_plan import TickPlan, followed
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture
from millstream.engine.worker import Worker
from millstream.errors import MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.identity import Identity
from millstream.postgres.own_transactions import OwnTransactions
from millstream.settings import Settings
from millstream.sources.postgres.server.table_error import TableError


@dataclass(frozen=True)
class TickContext:
    """What the stages of a tick work with.

    Args:
        connection: in autocommit mode; `second` gives another one.
        own: our transactions that need no reading.
        switch: the state of the database's mode switch in this process.
        began: when the tick began, by the monotonic clock.
    """

    catalog: Catalog
    dependents: Dependents
    worker: Worker
    settings: Settings
    now: Callable[[], datetime]
    progress: Callable[[str], None]
    connection: Connection
    second: Callable[[], Connection]
    own: OwnTransactions
    switch: Switch
    began: float


@dataclass(frozen=True)
class TickState:
    """A database and its captures, as a tick has made them so far.

    Args:
        captures: the loaded captures, by id.
        recorded: the same captures as the catalog records them.
        reasons: why captures have to be compared with their tables, as far as known.
        quarantined: why captures are not brought forward.
        identity: the identity of the database that the tick is about to read.
        started: the server's start time, as seen at the tick's outset.
    """

    database: AttachedDatabase
    captures: Mapping[str, Capture]
    recorded: Mapping[str, Capture]
    reasons: Mapping[str, str]
    quarantined: Mapping[str, MillstreamError]
    identity: Identity
    started: str

    @property
    def followed(self) -> list[Capture]:
        """The captures whose changes are read."""
        return followed(self.captures, self.quarantined)

    def with_capture(self, capture: Capture) -> TickState:
        """The state with a changed capture."""
        return replace(self, captures={**self.captures, capture.id: capture})

    def with_plan(self, plan: TickPlan) -> TickState:
        """The state with what a plan has determined."""
        return replace(self, reasons=plan.reasons, quarantined=plan.quarantine)


def quarantine(context: TickContext, state: TickState, capture_id: str, error: MillstreamError) -> TickState:
    """Quarantine a table and continue with the others.

    Raises:
        MillstreamError: the error itself, if it concerns more than that table.
    """
    if not is_about_one_table(error):
        raise error
    capture = state.captures[capture_id]
    context.progress(f"{capture.name} is quarantined for now: {error.code}: {error.message}")
    took = timedelta(seconds=time.monotonic() - context.began)
    return replace(
        state.with_capture(quarantined(capture, error, context.now(), took)),
        quarantined={**state.quarantined, capture_id: error},
        reasons={id_: reason for id_, reason in state.reasons.items() if id_ != capture_id},
    )


def quarantine_tables(context: TickContext, state: TickState, error: TableError) -> TickState:
    """Quarantine the tables that an error names, and continue with the others.

    Raises:
        MillstreamError: the error itself, if it names no captured table.
    """
    found = [c.id for c in state.captures.values() if f"{c.schema}.{c.table}" in error.tables]
    if not found:
        raise error
    for id_ in found:
        state = quarantine(context, state, id_, error)
    return state


@dataclass(frozen=True)
class Ticked:
    """A database after a tick.

    Args:
        captures: the loaded captures, by id.
        quarantined: why captures were not brought forward.
        all_captures: all captures as recorded before the tick, including those that are being loaded.
        is_idle: nothing was written since the last tick, so nothing was done.
    """

    database: AttachedDatabase
    captures: Mapping[str, Capture]
    quarantined: Mapping[str, MillstreamError]
    all_captures: tuple[Capture, ...]
    is_idle: bool = False

    @property
    def versions(self) -> dict[str, int]:
        """The mirrors' versions, by the tables' names."""
        current = [c for c in self.captures.values() if c.id not in self.quarantined]
        return {c.name: c.version for c in current if c.version is not None}

    def refusal(self, names: Collection[str], named_views: Collection[str] = ()) -> MillstreamError | None:
        """The error that keeps one of the tables from being brought forward, or one of the views from being read.

        Args:
            named_views: the views that queries name directly.

        Returns:
            Why a table is quarantined; PRIVILEGE_MISSING; None if all can be read.
        """
        for name, seen in self.database.state.views.items():
            if seen.reading is not None and name in names:
                return seen.reading.error
            if seen.naming is not None and name in named_views:
                return seen.naming.error
        return next((e for id_, e in self.quarantined.items() if self.captures[id_].name in names), None)
