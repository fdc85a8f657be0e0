"""`Catalog`: every write to a lake's catalog, each in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from millstream.catalog.advisory import AdvisoryLocks
from millstream.catalog.attached import AttachedDatabase, Capture, Serving
from millstream.catalog.database import Database, is_directory
from millstream.catalog.leadership import Leader
from millstream.catalog.migrator import migrate
from millstream.catalog.models import (
    Intent,
    LakeObject,
    NewDefinition,
    NewStreamTable,
    NoData,
    ObjectKind,
    RefreshOutcome,
    RefreshStart,
    StreamTable,
)
from millstream.catalog.reader import CatalogReader, find_by_id, find_named
from millstream.catalog.schema import stream_tables
from millstream.catalog.stores import databases, dependencies, events, history, lake, leadership, no_data, tables
from millstream.errors import Code, MillstreamError
from millstream.events import Event, EventName
from millstream.reasons import Reason
from millstream.results import InitiatedBy, RefreshMode, Status

if TYPE_CHECKING:
    from types import TracebackType

    from sqlalchemy.engine import Connection

    from millstream.naming import TableName


def utc_now() -> datetime:
    """The current time of this machine."""
    return datetime.now(UTC)


class Catalog(CatalogReader):
    """A lake's catalog. Reads are inherited; every write below is one transaction. Safe to share between threads."""

    epoch: int | None = None
    """The epoch of the leader that writes with this catalog: every write is refused after it has ended."""

    @classmethod
    def open(
        cls, url_or_path: str | Path, clock: Callable[[], datetime] = utc_now, *, root: Path | None = None
    ) -> Self:
        """Open a catalog and bring it to the newest version.

        Args:
            url_or_path: a lake's directory (the catalog is a SQLite file in it) or a `postgresql://` URL.
            clock: returns the current time, with a time zone.
            root: the lake's directory, if `url_or_path` is a URL.

        Raises:
            MillstreamError: `LAKE_UNWRITABLE`, `CATALOG_UNAVAILABLE`, `CATALOG_TOO_NEW`, `SETTING_INVALID`.
        """
        if root is None and is_directory(url_or_path):
            root = Path(url_or_path).resolve()
        database = Database.at(url_or_path)
        try:
            migrate(database, clock, root=root)
        except BaseException:
            database.close()
            raise
        return cls(database, clock, root)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def is_embedded(self) -> bool:
        """Whether the catalog is a file in the lake rather than a shared database."""
        return self._database.is_embedded

    def advisory_locks(self) -> AdvisoryLocks:
        """The locks of a shared catalog; an embedded one has none (see `refresh.locks`)."""
        if self.is_embedded:
            raise ValueError("an embedded catalog has no advisory locks")
        return AdvisoryLocks(self._database.url, self.lake_id())

    @contextmanager
    def _write(self, *, is_durable: bool = False) -> Iterator[Connection]:
        with self._database.write(is_durable=is_durable) as connection:
            if self.epoch is not None:
                leadership.check(connection, self.epoch)
            yield connection

    def _found(self, table: StreamTable | None) -> StreamTable:
        if table is None:
            raise MillstreamError(Code.NOT_A_STREAM_TABLE, "the stream table was dropped")
        return self._paths.resolve_table(table)

    # Stream tables

    def create_stream_table(self, new: NewStreamTable) -> StreamTable:
        """Record a stream table that was never refreshed: INITIALIZING, without a frontier.

        Raises:
            MillstreamError: `NAME_TAKEN`; `UNKNOWN_TABLE` or `CYCLE` if its sources have changed since the check.
        """
        with self._write() as connection:
            lake.bump_generation(connection)
            if find_named(connection, new.name):
                raise MillstreamError(
                    Code.NAME_TAKEN, f"a stream table named {new.name} exists", hint="CREATE OR REPLACE replaces it"
                )
            lake.refuse_relation(connection, new.name)
            dependencies.refuse_missing_or_cyclic(connection, new.id, new.name, new.definition.dependencies)
            stages = self._paths.store_stages(new.stages)
            recorded = replace(new, definition=self._paths.store_definition(new.definition), stages=stages)
            tables.insert(connection, recorded, self._clock())
            return self._found(find_by_id(connection, new.id))

    def alter_stream_table(
        self,
        name: TableName,
        *,
        schedule: str | None = None,
        refresh_mode: RefreshMode | None = None,
        status: Status | None = None,
        serving: Serving | None = None,
    ) -> StreamTable:
        """Change a stream table except its query; None changes nothing. ACTIVE resumes it and resets its error count.

        Raises:
            MillstreamError: `NOT_A_STREAM_TABLE`; `STATUS_INVALID`.
        """
        _check_status(status)
        with self._write() as connection:
            lake.bump_generation(connection)
            row, now = tables.locked(connection, name), self._clock()
            values = tables.user_change(schedule, refresh_mode, status, row.is_populated)
            tables.update(connection, row.id, values, now)
            if serving is not None:
                databases.put_serving(connection, serving, now)
            return self._found(find_by_id(connection, row.id))

    def replace_stream_table(self, new: NewDefinition) -> StreamTable:
        """Put a new definition into effect, together with its load, in one transaction.

        An interrupted refresh of the old definition is abandoned: the caller holds the table's lock.

        Raises:
            MillstreamError: `NOT_A_STREAM_TABLE`; `UNKNOWN_TABLE` or `CYCLE` for the new definition's sources;
                `STATUS_INVALID`.
        """
        _check_status(new.status)
        with self._write() as connection:
            lake.bump_generation(connection)
            row, now = tables.locked(connection, new.name), self._clock()
            if row.id != new.table_id:
                raise MillstreamError(Code.NOT_A_STREAM_TABLE, f"{new.name} was dropped, and created again")
            if row.open_refresh_id is not None:
                history.supersede(connection, row.id, row.open_refresh_id, now)
            read = new.definition.dependencies
            dependencies.refuse_missing_or_cyclic(connection, row.id, new.name, read, new.cycle)
            recorded, stages = self._paths.store_definition(new.definition), self._paths.store_stages(new.stages)
            tables.redefine(connection, row.id, recorded, stages, now)
            if new.load is not None:
                history.loaded(connection, new.load, now)
            else:
                tables.update(connection, row.id, tables.never_refreshed(), now)
            values: dict[str, Any] = tables.user_change(
                new.schedule, new.refresh_mode, new.status, new.load is not None
            )
            if new.is_altered:
                values["definition_version"] = stream_tables.c.definition_version + 1
                for reader in dependencies.dependents_closure(connection, row.id):
                    tables.mark_reinit(connection, reader, str(Reason.QUERY_ALTERED), now)
            else:
                for peer in sorted(new.cycle - {row.id}):
                    self._mark_reinit(connection, peer, str(Reason.SOURCE_CHANGED))
            tables.update(connection, row.id, values, now)
            if new.load is not None and (reason := new.load.outcome.reinit_reason) is not None:
                tables.mark_reinit(connection, row.id, reason, now)
            if new.serving is not None:
                databases.put_serving(connection, new.serving, now)
            return self._found(find_by_id(connection, row.id))

    def drop_stream_table(self, name: TableName, *, cascade: bool = False) -> tuple[StreamTable, ...]:
        """Drop a stream table, and with `cascade` its dependents; returns what was dropped, dependents first.

        Raises:
            MillstreamError: `NOT_A_STREAM_TABLE`, `DEPENDENTS_EXIST`.
        """
        with self._write() as connection:
            lake.bump_generation(connection)
            row = tables.locked(connection, name)
            readers = dependencies.dependents_closure(connection, row.id)
            dropped = tuple(self._found(find_by_id(connection, i)) for i in (*readers, row.id))
            if readers and not cascade:
                names = ", ".join(sorted(str(t.name) for t in dropped[:-1]))
                raise MillstreamError(
                    Code.DEPENDENTS_EXIST, f"{name} is read by {names}", hint="drop them first, or drop with CASCADE"
                )
            for table in dropped:
                tables.delete(connection, table.id)
            return dropped

    def mark_needs_reinit(self, table_id: str, reason: str) -> None:
        """Make the next refresh reinitialise the table, and raise the event unless it had to be reinitialised anyway.

        A refresh under way does not clear the mark.
        """
        with self._write() as connection:
            self._mark_reinit(connection, table_id, reason)

    def _mark_reinit(self, connection: Connection, table_id: str, reason: str) -> None:
        before, now = find_by_id(connection, table_id), self._clock()
        tables.mark_reinit(connection, table_id, reason, now)
        if before is not None and not before.needs_reinit:
            event = Event.of(EventName.REINITIALIZE_NEEDED, now, before.name, database=None, reason=reason)
            events.add(connection, [event])

    def set_error(self, table_id: str, reason: str) -> None:
        """Set a stream table to ERROR immediately, for a reason that no retry can fix."""
        code, _, message = reason.partition(": ")
        with self._write() as connection, self._raising_suspension(connection, table_id, code, message):
            values = {"status": Status.ERROR, "status_reason": reason}
            tables.update(connection, table_id, values, self._clock())

    @contextmanager
    def _raising_suspension(self, connection: Connection, table_id: str, code: str, message: str) -> Iterator[None]:
        """Raise the event if a table goes to ERROR inside the block, and not if it already was."""
        before = find_by_id(connection, table_id)
        yield
        after = find_by_id(connection, table_id)
        is_error = after is not None and after.status is Status.ERROR
        if before is not None and after is not None and is_error and before.status is not Status.ERROR:
            facts = {"consecutive_errors": after.consecutive_errors, "error_code": code, "error_message": message}
            event = Event.of(EventName.AUTO_SUSPENDED, self._clock(), after.name, database=None, **facts)
            events.add(connection, [event])

    # Refreshes

    def begin_refresh(self, start: RefreshStart) -> Intent:
        """Record a refresh as RUNNING, together with what it will commit, under a new refresh id.

        Raises:
            MillstreamError: `REFRESH_OPEN` if the last refresh has not ended, `NOT_A_STREAM_TABLE` if dropped.
        """
        with self._write() as connection:
            refresh_id = lake.next_refresh_id(connection, start.floor)
            return history.begin(connection, refresh_id, start, self._clock())

    def begin_refreshes(self, starts: Sequence[RefreshStart]) -> list[Intent]:
        """Record the refreshes of a cycle's members, all or none; each gets a refresh id of its own.

        Raises:
            MillstreamError: `REFRESH_OPEN` if the last refresh of one has not ended, `NOT_A_STREAM_TABLE` if dropped.
        """
        floor = max((start.floor for start in starts), default=0)
        with self._write() as connection:
            return [
                history.begin(connection, lake.next_refresh_id(connection, floor), start, self._clock())
                for start in starts
            ]

    def begin_load(self, start: RefreshStart) -> Intent:
        """A new refresh id for loading stages that the catalog does not contain yet; nothing else is recorded.

        Raises:
            MillstreamError: `NOT_A_STREAM_TABLE` if dropped.
        """
        with self._write() as connection:
            refresh_id = lake.next_refresh_id(connection, start.floor)
            return history.intended(connection, refresh_id, start, self._clock())

    def complete_refresh(self, intent: Intent, outcome: RefreshOutcome) -> None:
        """Record what a refresh committed: frontier, stages, status, history; the intent is deleted.

        Raises:
            MillstreamError: `COMMIT_CONFLICT` if another process has ended this refresh.
        """
        self.complete_refreshes([(intent, outcome)])

    def complete_refreshes(self, given: Sequence[tuple[Intent, RefreshOutcome]]) -> None:
        """Record what the refreshes of a cycle's members committed, in one transaction.

        Raises:
            MillstreamError: `COMMIT_CONFLICT` if another process has ended one of them.
        """
        with self._write() as connection:
            for intent, outcome in given:
                history.complete(connection, intent, outcome, self._clock())
                tables.set_versions(connection, intent.table_id, outcome.stage_versions)
                if outcome.reinit_reason is not None:
                    self._mark_reinit(connection, intent.table_id, outcome.reinit_reason)

    def fail_refresh(
        self,
        intent: Intent,
        error: MillstreamError,
        *,
        max_consecutive_errors: int | None,
        keep_intent: bool = False,
        stage_versions: Mapping[str, int] | None = None,
        duration_ms: float | None = None,
    ) -> None:
        """Record a failure and count it; the last one allowed in a row sets the table to ERROR.

        Args:
            max_consecutive_errors: None if the failure does not count, because a retry may resolve it.
            keep_intent: the refresh may have committed something: keep the intent for recovery.
            stage_versions: the stages that were reverted to their earlier contents, and their versions now.

        Raises:
            MillstreamError: `COMMIT_CONFLICT` if another process has ended this refresh.
        """
        with (
            self._write() as connection,
            self._raising_suspension(connection, intent.table_id, str(error.code), error.message),
        ):
            history.fail(
                connection,
                intent,
                error,
                self._clock(),
                max_consecutive_errors=max_consecutive_errors,
                keep_intent=keep_intent,
                duration_ms=duration_ms,
            )
            tables.set_versions(connection, intent.table_id, stage_versions or {})

    def record_failure(
        self,
        table_id: str,
        error: MillstreamError,
        *,
        initiated_by: InitiatedBy,
        started_at: datetime,
        max_consecutive_errors: int | None,
        freshness_deadline: datetime | None = None,
    ) -> int:
        """Record a refresh that failed before it began, e.g. because a source is missing; returns the refresh id."""
        with (
            self._write() as connection,
            self._raising_suspension(connection, table_id, str(error.code), error.message),
        ):
            refresh_id = lake.next_refresh_id(connection, 0)
            history.fail_early(
                connection,
                refresh_id,
                table_id,
                error,
                initiated_by,
                started_at,
                self._clock(),
                max_consecutive_errors=max_consecutive_errors,
                freshness_deadline=freshness_deadline,
            )
            return refresh_id

    def abandon_intent(self, intent: Intent, reason: str) -> None:
        """Close a refresh that was interrupted before it committed anything: it counts as failed, not as an error."""
        with self._write() as connection:
            history.abandon(connection, intent, reason, self._clock())

    def resolve_running(self, now: datetime | None = None) -> int:
        """Set refreshes that are recorded as RUNNING, but have no intent, to FAILED; returns how many there were.

        No process can end them any more. A refresh with an intent is left to recovery.
        """
        with self._write() as connection:
            return history.resolve_running(connection, now or self._clock())

    def record_no_data(self, given: NoData) -> int:
        """Record a refresh that found nothing to do, and advance frontier and data timestamp; returns the refresh id.

        The scheduler's refreshes in a row, for one reason, share a row of the history and its refresh id.

        Raises:
            MillstreamError: `REFRESH_OPEN` if the last refresh has not ended, `NOT_A_STREAM_TABLE` if dropped.
        """
        with self._write() as connection:
            return no_data.record(connection, given, self._clock())

    def record_no_data_of_cycle(self, given: Sequence[NoData]) -> None:
        """Record, in one transaction, that the refresh of a cycle found nothing to do; its members are locked.

        Raises:
            MillstreamError: `REFRESH_OPEN` if the last refresh of one has not ended, `NOT_A_STREAM_TABLE` if dropped.
        """
        with self._write() as connection:
            for item in given:
                no_data.record(connection, item, self._clock())

    def record_unchanged(self, given: Sequence[NoData], generation: int, woke_at: datetime) -> frozenset[str]:
        """Record, in one transaction, that tables need no refresh, and that the leader looked for work.

        Nobody holds the locks of the tables. So each is recorded only if nothing has happened to it since the caller
        read the catalog: no definition has changed, and the table is idle at the frontiers that the caller saw.

        Args:
            generation: of the catalog that the caller has read.
            woke_at: when the caller looked.

        Returns:
            The ids of the tables that are recorded.
        """
        with self._write() as connection:
            leadership.wake(connection, woke_at)
            if lake.generation(connection) != generation:
                return frozenset()
            return no_data.record_unchanged(connection, given, self._clock())

    def record_skip(
        self, table_id: str, initiated_by: InitiatedBy, reason: str, freshness_deadline: datetime | None = None
    ) -> int:
        """Record a refresh that was due but skipped; returns the refresh id."""
        with self._write() as connection:
            refresh_id = lake.next_refresh_id(connection, 0)
            history.skip(connection, refresh_id, table_id, initiated_by, reason, self._clock(), freshness_deadline)
            return refresh_id

    def prune_history(self, before: datetime, at_most: int = 5_000) -> int:
        """Delete the oldest history that ended before a time, except each table's newest row; returns how many rows.

        The totals of `stats` stay.
        """
        with self._write() as connection:
            return history.prune(connection, before, at_most)

    def prunable_history(self, before: datetime) -> int:
        """How many rows of the history `prune_history` would delete in all."""
        with self._database.read() as connection:
            return history.prunable(connection, before)

    def record_rewritten(self, table_id: str, stage_id: str, version: int) -> None:
        """Record the version at which maintenance has rewritten a stage's files; the caller holds the table's lock."""
        with self._write() as connection:
            tables.set_versions(connection, table_id, {stage_id: version})

    # Events

    def record_events(self, items: Sequence[Event]) -> tuple[Event, ...]:
        """Record events, and return them with their ids."""
        if not items:
            return ()
        with self._write() as connection:
            return events.add(connection, items)

    def prune_events(self, before: datetime) -> int:
        """Delete the events of before a time; returns how many there were."""
        with self._write() as connection:
            return events.prune(connection, before)

    # Leadership

    def take_leadership(self, leader: Leader) -> int:
        """Make a process the leader, and return its epoch: writes under earlier epochs are refused from now on."""
        with self._database.write(is_durable=True) as connection:
            return leadership.take(connection, leader, self._clock())

    def check_epoch(self, epoch: int) -> None:
        """Check that no other process has become the leader since.

        Raises:
            MillstreamError: `LEADERSHIP_LOST`.
        """
        with self._database.write() as connection:
            leadership.check(connection, epoch)

    def check_leadership(self) -> None:
        """Check that the leader that writes with this catalog, if any, still leads: a read, right before a commit.

        Raises:
            MillstreamError: `LEADERSHIP_LOST`.
        """
        if (epoch := self.epoch) is not None:
            with self._database.read() as connection:
                leadership.check(connection, epoch, is_locking=False)

    def release_leadership(self, epoch: int) -> None:
        """Record that the leader has ended by itself; nothing happens if it has already lost the leadership."""
        with self._database.write() as connection:
            leadership.release(connection, epoch)

    def wake(self, epoch: int, at: datetime) -> None:
        """Record that the leader looked for work.

        Raises:
            MillstreamError: `LEADERSHIP_LOST`.
        """
        with self._database.write() as connection:
            leadership.check(connection, epoch)
            leadership.wake(connection, at)

    def set_paused(self, is_paused: bool) -> bool:
        """Pause or resume automatic refreshes of all stream tables; false if nothing changed."""
        with self._database.write() as connection:
            return leadership.set_paused(connection, is_paused, self._clock())

    # The lake's own tables, views and functions

    def put_lake_object(self, item: LakeObject, *, replace: bool = False) -> None:
        """Record a table, view or function.

        Raises:
            MillstreamError: `NAME_TAKEN`; with `replace`, only if an object of another kind has the name.
        """
        with self._write() as connection:
            lake.bump_generation(connection)
            lake.put(connection, self._paths.store_object(item), self._clock(), is_replaced=replace)

    def drop_lake_object(self, kind: ObjectKind, name: TableName) -> bool:
        """Delete the record of a table, view or function; false if there was none."""
        with self._write() as connection:
            lake.bump_generation(connection)
            return lake.drop(connection, kind, name)

    # Attached databases

    def put_database(
        self,
        item: AttachedDatabase,
        *,
        captures: Sequence[Capture] = (),
        is_seen: bool = False,
        is_durable: bool = False,
    ) -> None:
        """Record a database and some of its captured tables as they are now, in one transaction.

        The events that follow from the change are recorded with it.

        Args:
            is_seen: definitions depend on what changes, so they have to be checked again.
            is_durable: the database will discard the changes that were read, so a power cut must not undo this.
        """
        with self._write(is_durable=is_durable) as connection:
            if is_seen:
                lake.bump_generation(connection)
            now = self._clock()
            events.add(connection, databases.events_of_change(connection, item, captures, now))
            databases.put(connection, item, now)
            for capture in captures:
                databases.put_capture(connection, self._paths.store_capture(capture), now)

    def drop_database(self, name: str) -> None:
        """Delete the record of a database without captured or served tables."""
        with self._write() as connection:
            lake.bump_generation(connection)
            databases.drop(connection, name)

    def drop_capture(self, capture_id: str) -> None:
        """Delete the record of a captured table."""
        with self._write() as connection:
            databases.drop_capture(connection, capture_id)

    def put_serving(self, item: Serving) -> None:
        """Record where a stream table is served."""
        with self._write() as connection:
            lake.bump_generation(connection)
            databases.put_serving(connection, item, self._clock())

    def drop_serving(self, table_id: str) -> None:
        """Record that a stream table is no longer served."""
        with self._write() as connection:
            lake.bump_generation(connection)
            databases.drop_serving(connection, table_id)


def _check_status(status: Status | None) -> None:
    if status not in (None, Status.ACTIVE, Status.SUSPENDED):
        raise MillstreamError(Code.STATUS_INVALID, f"a status cannot be set to {status}")
