"""What a pass is asked to do, and how each of its stream tables fared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from millstream.capture.captures import Advanced
from millstream.errors import MillstreamError
from millstream.naming import TableName
from millstream.passes.held_snapshot import HeldSnapshot
from millstream.refresh.runner import OutdatedError
from millstream.results import Action, InitiatedBy, RefreshMode, RefreshResult


@dataclass(frozen=True)
class Taken:
    """Databases that were brought forward just before a pass, for all passes of one decision.

    Args:
        at: a time before which no database was looked at.
        readers: the stream tables for which all databases they read were brought forward, or were refused to be.
    """

    at: datetime
    readers: frozenset[str]
    advanced: Advanced


@dataclass(frozen=True)
class PassRequest:
    """The stream tables that a pass refreshes.

    Args:
        modes: modes for this pass only.
        deadlines: when tables would be stale by their schedules.
        held: takes over the snapshot that the tables are brought to.
        taken: what the first frontier of the pass is made of, as far as it suffices.
        is_waiting: whether to wait for a table that is being refreshed elsewhere, or to skip it.
        counts: whether a failure of a table counts towards the errors in a row after which it goes to ERROR.
        serves: whether a table that is served is served now, or its last failure is too recent.
        is_unservable: whether a failure to serve a table was one too many, so that it goes to ERROR.
        on_frontier: called when everything that the tables read is captured.
    """

    order: Sequence[TableName]
    initiated_by: InitiatedBy
    modes: Mapping[TableName, RefreshMode] = field(default_factory=dict)
    deadlines: Mapping[TableName, datetime] = field(default_factory=dict)
    held: HeldSnapshot | None = None
    taken: Taken | None = None
    is_waiting: bool = True
    counts: Callable[[str, MillstreamError], bool] = lambda _name, _error: True
    serves: Callable[[str], bool] = lambda _name: True
    is_unservable: Callable[[str, MillstreamError], bool] = lambda _name, _error: False
    on_frontier: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Outcome:
    """How a stream table fared in a pass: one of the first five is given, and `unserved` only beside a result.

    Args:
        result: of its refresh.
        error: why it failed.
        outdated: its definition no longer fits what it reads.
        waits_for: a stream table that it reads, and that was not refreshed.
        skipped: why it was due and not refreshed.
        unserved: why the refreshed table could not be served.
        is_serving_deferred: whether it was not tried, because the last failure was too recent.
    """

    result: RefreshResult | None = None
    error: MillstreamError | None = None
    outdated: OutdatedError | None = None
    waits_for: str | None = None
    skipped: str | None = None
    unserved: MillstreamError | None = None
    is_serving_deferred: bool = False


def keep(outcomes: dict[str, Outcome], name: str, outcome: Outcome) -> None:
    """Keep an outcome, unless it only says that a table which this pass has refreshed is up to date."""
    before = outcomes.get(name)
    is_repeated = outcome.result is not None and outcome.result.action is Action.NO_DATA
    if before is None or before.result is None or not is_repeated:
        outcomes[name] = outcome
