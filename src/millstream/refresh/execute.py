"""Runs a stage on Spark: binds what its steps read, runs them in order, and hands the result to the sink.

Small results come to the driver as Arrow and are committed directly. Large ones stay in Spark, kept in memory or on
disk between steps, and are merged there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from millstream.diff.bag import BagStage
from millstream.diff.base import delta_name, new_name
from millstream.diff.plan import CHANGES, MORE, NET, RECOMPUTED, REMOVED, STATE, Layout, Step
from millstream.diff.stages import NamedStage
from millstream.engine.storage import Commit, Rows, Txn
from millstream.engine.worker import Scale, Worker
from millstream.naming import quote
from millstream.ops import Relation, Table, render, walk
from millstream.ops.render import to_sql
from millstream.refresh.inputs import BoundInput
from millstream.sinks.delta import Counts, change_set, repeated, repeated_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# up to so many rows in all, one task beats several
MAX_TINY_ROWS = 200_000
# a longer list of values takes longer to plan than it saves
MAX_PROBE_VALUES = 10_000
_RESULTS = {CHANGES, RECOMPUTED, NET, REMOVED}


@dataclass
class Cost:
    """What a refresh has cost so far."""

    rows_read: int = 0
    scale: Scale = Scale.SMALL
    milliseconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        """Add the time of a block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.milliseconds[phase] = self.milliseconds.get(phase, 0.0) + (time.perf_counter() - start) * 1000


@dataclass(frozen=True)
class StageRun:
    """One stage in one refresh.

    Args:
        path: where its stored table lies; `version` is what it had when the refresh began.
        inputs: what it reads, by name; those in `changed` have changes.
        feed_rows: how many rows the change feeds hold, about.
        is_large: whether the change is too large for the driver.
    """

    worker: Worker
    named: NamedStage
    path: str
    version: int
    inputs: Mapping[str, BoundInput]
    changed: frozenset[str]
    txn: Txn
    metadata: Mapping[str, object]
    cost: Cost
    feed_rows: int = 0
    is_large: bool = False

    @property
    def layout(self) -> Layout:
        return self.named.stage.layout

    def differential(self) -> tuple[Commit | None, Counts]:
        """Apply the change of the inputs."""
        steps = self.named.stage.steps(self.changed)
        with self.cost.timing("read"):
            self._bind({t for step in steps for t in _tables(step.relation)}, feed_rows=self.feed_rows)
        results = self._run(steps)
        change, counts = change_set(self.layout, results, self.version)
        with self.cost.timing("commit"):
            commit = self.worker.store.apply(self.path, change, self.txn, self._with(counts))
        return commit, counts

    def append_only(self) -> tuple[Commit, Counts]:
        """Append the delta of a stage that can only grow."""
        stage = self.named.stage
        assert isinstance(stage, BagStage)
        relation = stage.additions(self.changed)
        with self.cost.timing("read"):
            self._bind(_tables(relation))
        names = [c.name for c in self.layout.columns]
        with self.cost.timing("compute"):
            frame = self.worker.spark.sql(self._sql(relation))
            rows: Rows = (
                repeated_frame(frame, [quote(n) for n in names]) if self.is_large else repeated(_collect(frame), names)
            )
        with self.cost.timing("commit"):
            commit = self.worker.store.append(self.path, rows, self.txn, self.metadata)
        return commit, Counts(inserted=commit.rows_written)

    def load(self) -> Commit:
        """Compute the contents anew and replace the stored ones."""
        relation = self.named.stage.load()
        with self.cost.timing("read"):
            self._bind(_tables(relation))
        self.worker.plan_for(Scale.LARGE)
        with self.cost.timing("compute"):
            frame = self.worker.spark.sql(to_sql(render(relation), hints=False))
            return self.worker.store.replace(self.path, frame, self.txn, self.metadata)

    def _with(self, counts: Counts) -> dict[str, object]:
        return {**self.metadata, "rows": [counts.inserted, counts.updated, counts.deleted]}

    # Reading

    def _bind(self, wanted: set[str], *, feed_rows: int = 0) -> None:
        """Bind what the steps read, and have Spark plan for its size."""
        store, rows = self.worker.store, feed_rows
        frames: dict[str, DataFrame] = {}
        for name in self.named.inputs:
            source = self.inputs[name]
            if new_name(name) in wanted:
                rows += self._rows_of(source.delta.path, source.new)
                frames[new_name(name)] = source.delta.contents(store, source.new, source.columns)
            if delta_name(name) in wanted:
                assert source.old is not None
                frames[delta_name(name)] = source.delta.changes(store, source.old, source.new, source.columns)
        if STATE in wanted:
            rows += self._rows_of(self.path, self.version)
            columns = [c.name for c in self.layout.columns]
            frames[STATE] = store.read_located(self.path, self.version, columns)
        self.cost.scale = self._scale(rows)
        self.worker.plan_for(self.cost.scale)
        for name, frame in frames.items():
            one_task = self.cost.scale is Scale.TINY or (self.cost.scale is Scale.SMALL and name.startswith("delta_"))
            self.worker.bind(name, frame.coalesce(1) if one_task else frame)

    def _rows_of(self, path: str, version: int) -> int:
        rows = self.worker.store.snapshot(path, version).num_rows or 0
        self.cost.rows_read += rows
        return rows

    def _scale(self, rows: int) -> Scale:
        if self.is_large:
            return Scale.LARGE
        return Scale.TINY if rows <= MAX_TINY_ROWS else Scale.SMALL

    # Steps

    def _run(self, steps: Sequence[Step]) -> dict[str, Rows]:
        results: dict[str, Rows] = {}
        for position, step in enumerate(steps):
            if step.only_if is not None and not _has_more(results[step.only_if]):
                continue
            with self.cost.timing("compute"):
                if step.name == REMOVED:
                    self._narrow_state(results[NET])
                frame = self.worker.spark.sql(self._sql(step.relation))
                rows = results[step.name] = frame.persist() if self.is_large else _collect(frame)
            later = {t for s in steps[position + 1 :] for t in _tables(s.relation)}
            needed = any(s.only_if == step.name for s in steps) and not _has_more(rows)
            if step.name in later and not (step.name in _RESULTS and needed):
                bound = _frame(self.worker, rows)
                self.worker.bind(step.name, bound if self.is_large else bound.coalesce(1))
        return {name: rows for name, rows in results.items() if name in _RESULTS}

    def _narrow_state(self, net: Rows) -> None:
        """Have the scan of a large bag drop most rows by one column, before they are compared in all columns."""
        if self.cost.scale is not Scale.SMALL or not isinstance(net, pa.Table):
            return
        probe = _probe(net.filter(net[MORE.name]), [c.name for c in self.layout.columns])
        if probe is not None:
            name, values = probe
            frame = self.worker.store.read_located(self.path, self.version, [c.name for c in self.layout.columns])
            self.worker.bind(STATE, frame.where(f.col(quote(name)).isin(values)))

    def _sql(self, relation: Relation) -> str:
        return to_sql(render(relation), hints=self.cost.scale is Scale.SMALL)


def _tables(relation: Relation) -> set[str]:
    return {node.name for node in walk(relation) if isinstance(node, Table)}


def _collect(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


def _frame(worker: Worker, rows: Rows) -> DataFrame:
    return worker.spark.createDataFrame(rows) if isinstance(rows, pa.Table) else rows


def _probe(going: pa.Table, names: Sequence[str]) -> tuple[str, list[object]] | None:
    """The column with the most distinct values among those a scan compares cheaply, and its values."""
    best: tuple[str, list[object]] | None = None
    for name in names:
        column = going[name]
        if column.null_count or not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
            continue
        values = pc.unique(column).to_pylist()
        if len(values) <= MAX_PROBE_VALUES and (best is None or len(values) > len(best[1])):
            best = name, values
    return best


def _has_more(rows: Rows) -> bool:
    if isinstance(rows, pa.Table):
        return bool(pc.any(rows[MORE.name]).as_py())
    return not rows.where(quote(MORE.name)).isEmpty()


def is_too_large(error: Exception) -> bool:
    """Whether a result did not fit the driver, so that it must stay in Spark."""
    return "maxResultSize" in str(error)


Progress = Callable[[str], None]
