"""What a tick does to mirrors: windows landed, tables compared, columns added, in commits with the tick's number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from millstream.catalog.attached import POSITION, Capture, OpenTick, Position
from millstream.engine.storage import DeltaStore, RangeKind, Rows, Txn
from millstream.engine.worker import Worker
from millstream.naming import quote
from millstream.refresh.capture.cut import Cut
from millstream.refresh.capture.record import columns_of
from millstream.refresh.capture.verdicts import Verdict, key_of
from millstream.sources.postgres.keyed import KeyedWindow, complete
from millstream.sources.postgres.looks import Look, look_at
from millstream.sources.postgres.mirror import Mirror, land, resync, stored_rows
from millstream.sources.postgres.types import MirrorColumn, mirror_schema
from millstream.sources.postgres.windows import Window

_WIDER = "wider"
"""What the application id of a commit ends with that gives a mirror more columns."""


@dataclass
class Landing:
    """The work of one tick on mirrors."""

    worker: Worker
    cut: Cut
    tick_id: int
    metadata: Mapping[str, object]
    max_driver_rows: int
    progress: Callable[[str], None]
    looks: dict[str, Look] = field(default_factory=dict)
    """What tables look like to captures that have got more columns."""

    def land(self, capture: Capture, verdict: Verdict, window: Window | KeyedWindow) -> Capture:
        """Land a window; gives the capture with its mirror's version.

        Raises:
            MillstreamError: CAPTURE_LOST if it does not fit the mirror.
        """
        store, mirror, stored = self.worker.store, mirror_of(capture, verdict), None
        if isinstance(window, KeyedWindow):
            nothing = window.keys.slice(0, 0)
            keys = nothing if window.truncated else window.keys
            stored = stored_rows(store, mirror, keys, self.max_driver_rows)
            window = complete(window, stored)
        txn, limit, truncated = Txn(capture.id, self.tick_id, is_durable=True), self.max_driver_rows, window.truncated
        version = land(store, mirror, window.rows, txn, self.metadata, limit, truncated=truncated, stored=stored)
        return self._at(capture, version)

    def compare(self, capture: Capture, verdict: Verdict, reason: str, wider: Sequence[MirrorColumn]) -> Capture:
        """Land what differs between a table and its mirror, and give the mirror more columns if it should have them."""
        store = self.worker.store
        self.progress(f"comparing {capture.name} with its mirror: {reason}")
        with self.cut.contents(self.worker, capture.id, [*columns_of(capture), *wider], self.progress) as contents:
            narrow = _selected(contents, [name for name, _, _ in capture.columns]) if wider else contents
            txn, limit = Txn(capture.id, self.tick_id, is_durable=True), self.max_driver_rows
            version = resync(store, mirror_of(capture, verdict), narrow, txn, self.metadata, limit)
            if not wider:
                return self._at(capture, version)
            columns = (*capture.columns, *((c.name, c.pg_type, c.spark_type) for c in wider))
            capture = replace(capture, columns=columns)
            schema = mirror_schema(columns_of(capture))
            metadata = {**self.metadata, "columns": [list(c) for c in columns]}
            wide = Txn(f"{capture.id}-{_WIDER}", self.tick_id, is_durable=True)
            made = store.widen(capture.path, schema, contents, wide, metadata)
        self.looks[capture.id] = look_at(self.cut.connection, {capture.oid: schema.names})[capture.oid]
        return replace(capture, version=made.version)

    def _at(self, capture: Capture, version: int | None) -> Capture:
        return replace(capture, version=version if version is not None else self.worker.store.version(capture.path))


def mirror_of(capture: Capture, verdict: Verdict) -> Mirror:
    """The mirror with its key, if that told rows apart before and still does."""
    assert verdict.look is not None
    key = capture.key if capture.key == key_of(capture, verdict.look) else ()
    return Mirror(capture.name, capture.path, key)


def moved(store: DeltaStore, capture: Capture) -> str | None:
    """Why a mirror is not where it is said to be: somebody else has written it, or the catalog is an older one."""
    assert capture.version is not None
    now = store.version(capture.path)
    if now == capture.version or store.classify(capture.path, capture.version, now).kind is RangeKind.NOTHING:
        return None
    return f"its mirror is at version {now}, the catalog knows {capture.version}"


def recovered(store: DeltaStore, capture: Capture, tick: OpenTick, before: Position | None) -> Capture:
    """A capture as a tick that was cut short has left it.

    Args:
        before: the database's position before that tick.
    """
    position = capture.details.get(POSITION) or before
    version, columns = capture.version, capture.columns
    if (made := store.committed(capture.path, Txn(capture.id, tick.id))) is not None:
        version, position = made[0], tick.position
    if (wide := store.committed(capture.path, Txn(f"{capture.id}-{_WIDER}", tick.id))) is not None:
        version, position = wide[0], tick.position
        given = wide[1]["columns"]
        assert isinstance(given, list)
        columns = tuple((name, pg_type, spark_type) for name, pg_type, spark_type in given)
    own = dict(position) if position is not None else None
    return replace(capture, version=version, columns=columns, details={**capture.details, POSITION: own})


def _selected(rows: Rows, names: Sequence[str]) -> Rows:
    return rows.select(names) if isinstance(rows, pa.Table) else rows.select(*(quote(n) for n in names))
