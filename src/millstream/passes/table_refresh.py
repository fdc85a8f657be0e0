"""Refreshes and serves one stream table or cycle of a pass, and records failures. The caller holds the locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from millstream.cancellation import explained
from millstream.catalog import Catalog
from millstream.catalog.models import Load, StreamTable
from millstream.engine.spark_errors import SPARK_ERRORS, environment_error, first_line
from millstream.engine.worker import Workers
from millstream.errors import NEVER_COUNTED, Code, MillstreamError
from millstream.lake import Compiled
from millstream.lake.recorded_definitions import RecordedDefinitions
from millstream.planner import Choice
from millstream.refresh.cycle_runner import CycleRunner
from millstream.refresh.execute import Progress
from millstream.refresh.plan import Request
from millstream.refresh.runner import Runner
from millstream.results import InitiatedBy, RefreshMode, RefreshResult
from millstream.serving.table_server import TableServer
from millstream.settings import Settings


@dataclass(frozen=True)
class Goal:
    """What one stream table is to be brought to.

    Args:
        paths: where the base tables lie.
        versions: those of the base tables that it reads directly.
        frontier: the versions of all base tables that its contents will stand for.
        upstream: the stream tables that it reads, as they are to be read.
        deadline: when its contents would be stale by its schedule.
        counts: whether a failure counts towards the errors in a row after which the table goes to ERROR.
        is_served: whether the result is served now, if it is served at all.
        is_unservable: whether a failure to serve it was one too many, so that it goes to ERROR.
    """

    data_timestamp: datetime
    paths: Mapping[str, str]
    versions: Mapping[str, int]
    frontier: Mapping[str, int]
    upstream: Mapping[str, StreamTable]
    initiated_by: InitiatedBy
    mode: RefreshMode | None = None
    deadline: datetime | None = None
    counts: Callable[[MillstreamError], bool] = lambda _: True
    is_served: bool = True
    is_unservable: Callable[[MillstreamError], bool] = lambda _: False


class TableRefresh:
    """Refreshes stream tables one by one.

    Args:
        settings: those in effect; some may change while the lake is open.
    """

    def __init__(
        self,
        catalog: Catalog,
        workers: Workers,
        settings: Callable[[], Settings],
        definitions: RecordedDefinitions,
        server: TableServer,
        clock: Callable[[], datetime],
        progress: Progress,
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._settings = settings
        self._definitions = definitions
        self._server = server
        self._clock = clock
        self._progress = progress

    def refresh(self, table: StreamTable, goal: Goal) -> tuple[RefreshResult, MillstreamError | None]:
        """Refresh a table and serve it; the second value is why it could not be served.

        Raises:
            MillstreamError: the refresh failed, which is recorded.
            OutdatedError: its definition no longer fits what it reads.
        """
        with self._recording(table, goal):
            compiled = self._definitions.compiled(table)
        result = self._runner().refresh(_request(table, compiled, goal))
        return result, self._serve_refreshed(table, goal)

    def refresh_cycle(
        self, members: Sequence[tuple[StreamTable, Goal]]
    ) -> dict[str, tuple[RefreshResult, MillstreamError | None]]:
        """Refresh all members of a cycle and serve them; the second value is why one could not be served.

        Raises:
            MillstreamError: the refresh failed, which is recorded for each member.
            OutdatedError: the definition of a member no longer fits what it reads.
        """
        requests: list[Request] = []
        for table, goal in members:
            with self._recording(table, goal):
                requests.append(_request(table, self._definitions.compiled(table), goal))
        results = self._cycle_runner().refresh(requests)
        return {
            str(table.name): (results[str(table.name)], self._serve_refreshed(table, goal)) for table, goal in members
        }

    def load_member(
        self,
        candidate: StreamTable,
        compiled: Compiled,
        goal: Goal,
        choice: Choice,
        peers: Sequence[tuple[StreamTable, Goal]],
    ) -> tuple[Load, RefreshResult]:
        """Fill the stages of a new definition that is part of a cycle; nothing of it is recorded.

        The other members are read as their queries are over the sources of now: their definitions may be outdated, too.
        """
        others = [
            _request(table, self._definitions.recompile(table, table.refresh_mode), goal) for table, goal in peers
        ]
        return self._cycle_runner().load(_request(candidate, compiled, goal), others, choice)

    def load(
        self, candidate: StreamTable, compiled: Compiled, goal: Goal, choice: Choice
    ) -> tuple[Load, RefreshResult]:
        """Fill the stages of a new definition that has not taken effect; nothing of it is recorded."""
        return self._runner().load(_request(candidate, compiled, goal), choice)

    def serve(
        self,
        table_id: str,
        initiated_by: InitiatedBy,
        started_at: datetime,
        counts: Callable[[MillstreamError], bool] = lambda _: True,
    ) -> MillstreamError | None:
        """Serve a table that was refreshed. A failure is recorded and returned: what reads the table goes on."""
        table = self._catalog.find_by_id(table_id)
        if table is None:
            return None
        try:
            self._server.serve(table, self._workers.here().store)
        except MillstreamError as cause:
            error = explained(cause)
            self.record_failure(table, error, initiated_by, started_at, counts)
            return error
        return None

    def _serve_refreshed(self, table: StreamTable, goal: Goal) -> MillstreamError | None:
        """Serve a table of a pass, unless its last failure is too recent; returns why it could not be served."""
        if not goal.is_served:
            return None
        error = self.serve(table.id, goal.initiated_by, goal.data_timestamp, goal.counts)
        if error is not None and goal.is_unservable(error):
            self._catalog.set_error(table.id, f"{error.code}: {error.message}")
        return error

    def record_failure(
        self,
        table: StreamTable,
        error: MillstreamError,
        initiated_by: InitiatedBy,
        started_at: datetime,
        counts: Callable[[MillstreamError], bool] = lambda _: True,
    ) -> None:
        """Record that a refresh failed; if no retry can help, the table goes to ERROR at once."""
        is_counted = error.code not in NEVER_COUNTED and counts(error)
        self._catalog.record_failure(
            table.id,
            error,
            initiated_by=initiated_by,
            started_at=started_at,
            max_consecutive_errors=self._settings().max_consecutive_errors if is_counted else None,
        )
        if error.code in {Code.SOURCE_MISSING, Code.SOURCE_CHANGED}:
            self._catalog.set_error(table.id, f"{error.code}: {error.message}")

    @contextmanager
    def _recording(self, table: StreamTable, goal: Goal) -> Iterator[None]:
        try:
            yield
        except (MillstreamError, *SPARK_ERRORS) as cause:
            error = explained(_coded(cause, table))
            self.record_failure(table, error, goal.initiated_by, goal.data_timestamp, goal.counts)
            raise error from cause

    def _runner(self) -> Runner:
        worker = self._workers.here()
        return Runner(self._catalog, worker, self._settings(), self._definitions, self._clock, self._progress)

    def _cycle_runner(self) -> CycleRunner:
        worker = self._workers.here()
        return CycleRunner(self._catalog, worker, self._settings(), self._definitions, self._clock, self._progress)


def _coded(cause: Exception, table: StreamTable) -> MillstreamError:
    if isinstance(cause, MillstreamError):
        return cause
    return environment_error(cause) or MillstreamError(
        Code.REFRESH_FAILED, f"{table.name} could not be compiled: {first_line(cause)}", hint="refresh again"
    )


def _request(table: StreamTable, compiled: Compiled, goal: Goal) -> Request:
    return Request(
        table=table,
        compiled=compiled,
        base_versions=goal.versions,
        paths=goal.paths,
        base_frontier=goal.frontier,
        upstream=goal.upstream,
        data_timestamp=goal.data_timestamp,
        initiated_by=goal.initiated_by,
        mode=goal.mode,
        deadline=goal.deadline,
        counts=goal.counts,
    )
