"""Begins to capture a table: loads it into a new mirror, or adds columns to its existing mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from millstream.capture.change_buffers import buffer_of
from millstream.capture.column_selection import (
    columns_of,
    is_of,
    is_unchanged,
    refuse_view,
    unseen,
    wanted_columns,
)
from millstream.capture.database_access import DatabaseAccess
from millstream.capture.dependents import mirror_object
from millstream.capture.drift import key_of
from millstream.capture.ending import sweep
from millstream.capture.installation import Installation
from millstream.capture.orphans import with_orphans
from millstream.capture.source_snapshot import SourceSnapshot, source_snapshot
from millstream.capture.tick_state import Ticked
from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode
from millstream.catalog.capture_state import CaptureState, Position
from millstream.catalog.models import ObjectKind, new_id
from millstream.catalog.numeric_ranges import NumericRanges
from millstream.engine.storage import Txn
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection
from millstream.settings import Settings
from millstream.sources.postgres.server.relations import Relation, find_relation
from millstream.sources.postgres.server.table_fingerprints import read_fingerprints
from millstream.sources.postgres.triggers.trigger_catalog import enable_always_statements
from millstream.sources.postgres.values.types import MirrorColumn, mirror_schema
from millstream.sources.postgres.wal.slot import flush_wal

_LOAD = 0
"""The transaction number of a mirror's first commit; ticks count from 1."""
_TRIES = 5


@dataclass(frozen=True)
class Beginning:
    """Begins captures; the caller holds the lock under which captures begin.

    Args:
        mirrors: the directory of the mirrors.
        tick: brings a database forward, under its lock, and adds the given columns to captures.
    """

    access: DatabaseAccess
    workers: Workers
    settings: Settings
    mirrors: Path
    now: Callable[[], datetime]
    progress: Callable[[str], None]
    tick: Callable[[str, Mapping[str, Sequence[MirrorColumn]]], Ticked]

    def begin(self, name: TableName, used: Sequence[str]) -> str | None:
        """Capture some columns of a table; returns a warning about changes that the capture does not see, or None.

        Raises:
            MillstreamError: UNKNOWN_TABLE, UNSUPPORTED_TYPE, PRIVILEGE_MISSING, LOCK_TIMEOUT, ...
        """
        assert name.database is not None
        access, database = self.access, self.access.get(name.database)
        with access.own_connection(database) as connection, self._kept_if_not_loaded(database.name, str(name)):
            for _ in range(_TRIES):
                existing = access.capture_named(database.name, str(name))
                relation = find_relation(connection, name.parts[2], name.parts[1], exact=True)
                refuse_view(relation)
                ranges = _ranges(database, relation)
                columns = wanted_columns(relation, used, ranges)
                if existing is not None and existing.is_kept and is_of(existing, relation, ranges):
                    self._show(existing)
                    have = {column for column, _, _ in existing.columns}
                    more = [c for c in columns if c.name not in have]
                    if more:
                        self._widen(connection, database, existing, relation, more)
                    return None
                try:
                    capture = self._load(connection, database, relation, columns, existing)
                except MillstreamError as error:
                    if error.code is not Code.SOURCE_CHANGED:
                        raise
                    continue  # its name now belongs to another table
                if capture is None:
                    continue
                if capture.state.buffer is None or capture.state.buffer.is_always:
                    return None
                return unseen(capture, enable_always_statements(connection, relation, buffer_of(capture).schema))
        raise MillstreamError(
            Code.LOCK_TIMEOUT,
            f"{name} kept changing through concurrent DDL; gave up after {_TRIES} attempts",
            hint="try again when the DDL has finished",
        )

    @contextmanager
    def _kept_if_not_loaded(self, database: str, name: str) -> Iterator[None]:
        """If a load inside the block fails, restore the old record: existing dependents keep the mirror they have."""
        before = self.access.capture_named(database, name)
        try:
            yield
        except BaseException:
            now = self.access.capture_named(database, name)
            if before is not None and before.version is not None and now is not None and now.version is None:
                state = replace(before.state, resync="loading it again failed")
                self._record(replace(before, state=state), is_another=True)
            raise

    def _load(
        self,
        connection: Connection,
        database: AttachedDatabase,
        relation: Relation,
        columns: Sequence[MirrorColumn],
        old: Capture | None,
    ) -> Capture | None:
        """Begin to capture a table and load it into a new mirror; None if it was altered meanwhile.

        Args:
            old: its recorded capture, which can no longer be brought forward; the old mirror stays until the new one
                is loaded.
        """
        directory = new_id()
        capture = Capture(
            id=old.id if old is not None else directory,
            database=database.name,
            schema=relation.schema,
            table=relation.name,
            oid=relation.oid,
            columns=tuple((c.name, c.pg_type, c.spark_type) for c in columns),
            key=(),
            shape="",
            filenodes="",
            path=str(self.mirrors / directory),
            state=CaptureState(is_whole=not relation.kind.is_captured),
        )
        # Recorded first, so that after a crash the next process knows what to remove.
        self._record(capture, is_another=old is not None and old.oid != capture.oid)
        if not capture.is_whole:
            capture = self._install(connection, capture, relation)
        begun = self.access.get(database.name).position
        self.progress(f"loading {capture.name}")
        address, trusted = Address(database.address), self.settings.trusted_roles
        with source_snapshot(address, connection, {capture.id: relation}, trusted) as snapshot:
            if not is_unchanged(snapshot.connection, relation, columns, _ranges(database, relation)):
                return None
            names = [c.name for c in columns]
            fingerprint = read_fingerprints(snapshot.connection, {relation.oid: names})[relation.oid]
            capture = replace(
                capture,
                shape=fingerprint.shape,
                filenodes=fingerprint.storage,
                key=key_of(capture, fingerprint),
                state=replace(
                    capture.state, not_null=tuple(fingerprint.not_null), position={"snapshot": snapshot.position}
                ),
            )
            flush_wal(connection)  # in both modes: the snapshot becomes a recorded position
            loaded = replace(capture, version=self._copy(snapshot, capture))
        self._record(loaded, position=snapshot.position, begun=begun)
        self._show(loaded)
        return loaded

    def _show(self, capture: Capture) -> None:
        """Register this mirror under the table's name in the lake, and delete mirrors without a record."""
        catalog = self.access.catalog
        known = catalog.lake_object(ObjectKind.TABLE, TableName.parse(capture.name))
        if known is None or known.location != capture.path or known.details.stale is not None:
            catalog.put_lake_object(mirror_object(capture), replace=True)
            sweep(catalog, self.mirrors)

    def _install(self, connection: Connection, capture: Capture, relation: Relation) -> Capture:
        """Start recording a table's changes in the capture mode of its database."""
        access, catalog = self.access, self.access.catalog
        database = access.get(capture.database)
        if database.mode is not CaptureMode.WAL:
            return Installation(connection, catalog, database).capture(capture, relation)[0]
        with access.ticking(capture.database):
            database = access.get(capture.database)
            after, now = Installation(connection, catalog, database).capture(capture, relation)
            catalog.put_database(now)
        return after

    def _copy(self, snapshot: SourceSnapshot, capture: Capture) -> int:
        worker, columns = self.workers.here(), columns_of(capture)
        worker.store.create(capture.path, mirror_schema(columns), stats_columns=capture.key)
        txn = Txn(capture.id, _LOAD, is_durable=True, permit=self.access.catalog.check_leadership)
        version = snapshot.load(worker, capture, columns, txn, snapshot.metadata(), self.progress)
        worker.store.make_durable(capture.path, -1, version)
        return version

    def _widen(
        self,
        connection: Connection,
        database: AttachedDatabase,
        capture: Capture,
        relation: Relation,
        more: Sequence[MirrorColumn],
    ) -> None:
        """Add columns to a mirror. Its rows are written again; its dependents see no change."""
        access, catalog = self.access, self.access.catalog
        columns = (*capture.columns, *((c.name, c.pg_type, c.spark_type) for c in more))
        self.progress(f"capturing {', '.join(c.name for c in more)} of {capture.name} too")
        with access.ticking(database.name):
            if not capture.is_whole:
                now = next(c for c in catalog.captures(database.name) if c.id == capture.id)
                installation = Installation(connection, catalog, access.get(database.name))
                after, changed = installation.widen(replace(now, columns=columns), relation)
                catalog.put_database(changed, captures=[replace(after, columns=now.columns)])
            if (refusal := self.tick(database.name, {capture.id: more}).refusal([capture.name])) is not None:
                raise refusal
        left = next(c for c in catalog.captures(database.name) if c.id == capture.id)
        if not left.is_kept or len(left.columns) < len(columns):
            raise MillstreamError(
                Code.SOURCE_CHANGED, f"{capture.name} was altered while it was being read", hint="try again"
            )

    def _record(
        self,
        capture: Capture,
        position: str | None = None,
        begun: Position | None = None,
        *,
        is_another: bool = False,
    ) -> None:
        """Record a capture.

        Args:
            position: the snapshot it was loaded at.
            begun: the position of its database when recording of its changes began.
            is_another: the record described another table until now, whose triggers the next tick removes.
        """
        with self.access.ticking(capture.database):
            database = self.access.get(capture.database)
            if position is not None and not capture.is_whole and database.mode is CaptureMode.WAL:
                capture = _placed(capture, database.position or {}, begun or {})
            if position is not None and database.position is None:
                database = replace(database, position={"snapshot": position}, reached_at=self.now())
            if is_another:
                database = with_orphans(database)
            self.access.catalog.put_database(database, captures=[capture])


def _placed(capture: Capture, now: Position, begun: Position) -> Capture:
    """A loaded capture with the WAL position its changes start at, if the slot still has all of them.

    Ticks continue during a load and advance the slot; in that case the table is compared with its mirror.
    """
    state = capture.state
    if now.get("lsn") == begun.get("lsn"):
        state = replace(state, position={**(state.position or {}), "lsn": now["lsn"]})
    else:
        state = replace(state, resync="the slot advanced past its changes while it was being loaded")
    return replace(capture, state=state)


def _ranges(database: AttachedDatabase, relation: Relation) -> dict[str, str]:
    return NumericRanges.of(database).of_table(relation.schema, relation.name)
