"""Brings mirrors forward in commits that carry the tick's number: lands changes, compares tables, adds columns.

After a crash, the last commit of each mirror shows its position: `recover`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa

from millstream.capture.column_selection import columns_of
from millstream.capture.drift import Decision, key_of
from millstream.capture.source_snapshot import SourceSnapshot
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture, OpenTick
from millstream.catalog.capture_state import Position
from millstream.engine.storage import DeltaStore, RangeKind, Rows, Txn
from millstream.engine.worker import Worker
from millstream.naming import quote
from millstream.reasons import CaptureReason
from millstream.sources.postgres.mirror.table import Mirror, land, resync, stored_rows
from millstream.sources.postgres.server.table_fingerprints import TableFingerprint, read_fingerprints
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.values.types import MirrorColumn, mirror_schema
from millstream.sources.postgres.wal.keyed_changes import KeyedTableChanges, complete

_SYNCED_AT_ONCE = 8
_WIDER = "wider"
"""The suffix of the application id of commits that add columns to a mirror."""


@dataclass
class Landing:
    """The work of one tick on mirrors."""

    worker: Worker
    snapshot: SourceSnapshot
    tick_id: int
    metadata: Mapping[str, object]
    max_driver_rows: int
    progress: Callable[[str], None]
    permit: Callable[[], None]
    """Called right before each commit; raises if this process may not make it any more."""
    fingerprints: dict[str, TableFingerprint] = field(default_factory=dict)
    """The fingerprints of tables to whose captures columns were added."""

    def land(self, capture: Capture, decision: Decision, changes: TableChanges | KeyedTableChanges) -> Capture:
        """Land the changes of a table; returns the capture with its mirror's version.

        Raises:
            MillstreamError: CAPTURE_LOST if the changes do not fit the mirror.
        """
        store, mirror, stored = self.worker.store, mirror_of(capture, decision), None
        if isinstance(changes, KeyedTableChanges):
            nothing = changes.keys.slice(0, 0)
            keys = nothing if changes.truncated else changes.keys
            stored = stored_rows(store, mirror, keys, self.max_driver_rows)
            changes = complete(changes, stored)
        txn, limit, truncated = self._txn(capture.id), self.max_driver_rows, changes.truncated
        version = land(store, mirror, changes.rows, txn, self.metadata, limit, truncated=truncated, stored=stored)
        return self._at(capture, version)

    def compare(self, capture: Capture, decision: Decision, reason: str, wider: Sequence[MirrorColumn]) -> Capture:
        """Land the difference between a table and its mirror, and add the columns in `wider` to the mirror."""
        store = self.worker.store
        self.progress(f"comparing {capture.name} with its mirror: {reason}")
        with self.snapshot.contents(self.worker, capture.id, [*columns_of(capture), *wider], self.progress) as contents:
            narrow = _selected(contents, [name for name, _, _ in capture.columns]) if wider else contents
            txn, limit = self._txn(capture.id), self.max_driver_rows
            version = resync(store, mirror_of(capture, decision), narrow, txn, self.metadata, limit)
            if not wider:
                return self._at(capture, version)
            columns = (*capture.columns, *((c.name, c.pg_type, c.spark_type) for c in wider))
            capture = replace(capture, columns=columns)
            schema = mirror_schema(columns_of(capture))
            metadata = {**self.metadata, "columns": [list(c) for c in columns]}
            wide = self._txn(f"{capture.id}-{_WIDER}")
            made = store.widen(capture.path, schema, contents, wide, metadata)
        found = read_fingerprints(self.snapshot.connection, {capture.oid: schema.names})
        self.fingerprints[capture.id] = found[capture.oid]
        return replace(capture, version=made.version)

    def _txn(self, app_id: str) -> Txn:
        return Txn(app_id, self.tick_id, is_durable=True, permit=self.permit)

    def _at(self, capture: Capture, version: int | None) -> Capture:
        return replace(capture, version=version if version is not None else self.worker.store.version(capture.path))


def mirror_of(capture: Capture, decision: Decision) -> Mirror:
    """The mirror, with its key if the key is unchanged."""
    assert decision.fingerprint is not None
    key = capture.key if capture.key == key_of(capture, decision.fingerprint) else ()
    return Mirror(capture.name, capture.path, key)


def moved(store: DeltaStore, capture: Capture) -> str | None:
    """Why a mirror is not at its recorded version: another writer changed it, or an older catalog was restored."""
    assert capture.version is not None
    now = store.version(capture.path)
    if now == capture.version or store.classify(capture.path, capture.version, now).kind is RangeKind.NOTHING:
        return None
    return CaptureReason.MIRROR_MOVED.format(now=now, known=capture.version)


def recovered(store: DeltaStore, capture: Capture, tick: OpenTick, before: Position | None) -> Capture:
    """A capture in the state in which an interrupted tick left it.

    Args:
        before: the database's position before that tick.
    """
    position = capture.state.position or before
    version, columns = capture.version, capture.columns
    if (made := store.committed(capture.path, Txn(capture.id, tick.id))) is not None:
        version, position = made[0], tick.position
    if (wide := store.committed(capture.path, Txn(f"{capture.id}-{_WIDER}", tick.id))) is not None:
        version, position = wide[0], tick.position
        given = wide[1]["columns"]
        assert isinstance(given, list)
        columns = tuple((name, pg_type, spark_type) for name, pg_type, spark_type in given)
    return replace(capture, version=version, columns=columns, state=replace(capture.state, position=position))


def recover(
    catalog: Catalog,
    store: DeltaStore,
    database: AttachedDatabase,
    captures: Mapping[str, Capture],
    progress: Callable[[str], None],
) -> tuple[AttachedDatabase, dict[str, Capture]]:
    """Determine the positions of the mirrors after an interrupted tick, and record them."""
    tick = database.open_tick
    assert tick is not None
    progress(f"recovering an interrupted tick of {database.name}")
    after = {id_: recovered(store, capture, tick, database.position) for id_, capture in captures.items()}
    make_durable(store, captures, after)
    database = replace(database, last_tick=max(database.last_tick, tick.id), open_tick=None)
    catalog.put_database(database, captures=list(after.values()))
    return database, after


def make_durable(store: DeltaStore, before: Mapping[str, Capture], after: Mapping[str, Capture]) -> None:
    """Make the mirrors' new commits durable, before the database discards the changes in them."""

    def sync(id_: str) -> None:
        old, new = before[id_].version, after[id_].version
        assert old is not None
        assert new is not None
        store.make_durable(after[id_].path, old, new)

    if before:
        with ThreadPoolExecutor(min(_SYNCED_AT_ONCE, len(before))) as pool:  # a disk syncs many as fast as one
            list(pool.map(sync, before))


def _selected(rows: Rows, names: Sequence[str]) -> Rows:
    return rows.select(names) if isinstance(rows, pa.Table) else rows.select(*(quote(n) for n in names))
