"""Runs a stage on Spark: binds the inputs of its steps, runs them in order, and passes the result to the sink.

Small results are collected on the driver as Arrow and committed directly. Large ones stay in Spark, which keeps them in
memory or on disk between steps and merges them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.cancellation import check
from millstream.diff.bag import BagStage
from millstream.diff.inputs import delta_name, new_name
from millstream.diff.plan import (
    CHANGES,
    MORE,
    NET,
    RECOMPUTED,
    REMOVED,
    STATE,
    STORED,
    AnyStep,
    Fixpoint,
    Kind,
    Layout,
    Step,
)
from millstream.diff.recursive import RecursiveStage
from millstream.diff.stages import NamedStage
from millstream.engine.spark_errors import SPARK_ERRORS
from millstream.engine.storage import Commit, Rows, Txn, rows_to_remove
from millstream.engine.worker import Scale, Worker
from millstream.naming import CLOCK, quote
from millstream.ops import Table
from millstream.ops.clock import filled_in
from millstream.refresh.fixpoint import Loop
from millstream.refresh.inputs import BoundInput
from millstream.refresh.stored_rows import StoredRows
from millstream.settings import Settings
from millstream.sinks.delta import Counts, change_set, repeated, repeated_frame
from millstream.sql.text.table_exchange import moment_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# up to this many rows in total, one task is faster than several
MAX_TINY_ROWS = 200_000
# a table of at most this many rows is broadcast in preference to a delta
MAX_SENT_ROWS = 20_000
_RESULTS = {CHANGES, RECOMPUTED, NET, REMOVED}


@dataclass
class Cost:
    """What a refresh has cost so far."""

    rows_read: int = 0
    milliseconds: dict[str, float] = field(default_factory=dict)
    strategies: list[str] = field(default_factory=list)
    """The strategies by which changes of recursions were computed."""
    _inside: float = 0.0
    """The time that nested phases of the current one have taken."""

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        """Add the time of a block to a phase, without the time of phases nested in it."""
        start, outside, self._inside = time.perf_counter(), self._inside, 0.0
        try:
            yield
        finally:
            spent = (time.perf_counter() - start) * 1000
            self.milliseconds[phase] = self.milliseconds.get(phase, 0.0) + spent - self._inside
            self._inside = outside + spent


@dataclass(frozen=True)
class Times:
    """The data timestamp of a refresh, and that of the contents it starts from; the same if there are none."""

    now: datetime
    before: datetime


@dataclass(frozen=True)
class StageRun:
    """One stage in one refresh.

    Args:
        path: the path of its stored table; `version` is the table's version when the refresh began.
        inputs: its inputs, by name; those in `changed` have changes.
        times: the current time for the new contents and for the old ones.
        feed_rows: the approximate number of rows in the change feeds.
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
    settings: Settings = field(default_factory=Settings)
    times: Times | None = None
    sizes: dict[str, int] = field(default_factory=dict, init=False)
    """The approximate number of rows of each frame."""
    frames: dict[str, DataFrame] = field(default_factory=dict, init=False)
    """The frames that steps can read, by name."""
    in_one_task: dict[str, bool] = field(default_factory=dict, init=False)
    """Whether each frame was bound as a single partition."""
    kept: list[DataFrame] = field(default_factory=list, init=False)
    """Large results that Spark keeps for later steps."""

    @property
    def layout(self) -> Layout:
        return self.named.stage.layout

    @cached_property
    def stored(self) -> StoredRows:
        """The rows stored so far."""
        return StoredRows(self.worker.store, self.path, self.version, self.layout)

    def differential(self) -> tuple[Commit | None, Counts]:
        """Apply the change of the inputs."""
        is_keyed, is_recursive = self.layout.kind is not Kind.BAG, isinstance(self.named.stage, RecursiveStage)
        at_once = (is_keyed or is_recursive) and not self.is_large and self.stored.is_small
        steps = self.named.stage.steps(self.changed, at_once=at_once)
        if (at_once and is_keyed) or any(_reads_all_state(s) for s in steps):
            with self.cost.timing("read"):
                self._bind(STATE, self.stored.all(), self._counted(self.stored.num_rows))
        try:
            results = self._run(steps)
            change, counts = change_set(self.layout, results, self.version)
            with self.cost.timing("commit"):
                commit = self.worker.store.apply(self.path, change, self.txn, self._with(counts))
        finally:
            for frame in self.kept:
                frame.unpersist()
        return commit, counts

    def append_only(self) -> tuple[Commit, Counts]:
        """Append the delta of a stage that can only grow."""
        stage = self.named.stage
        assert isinstance(stage, BagStage)
        step = stage.additions(self.changed)
        with self.cost.timing("read"):
            self._bind_inputs(step.tables)
        names = [c.name for c in self.layout.columns]
        with self.cost.timing("compute"):
            frame = self._query(step)
            rows: Rows = (
                repeated_frame(frame, [quote(n) for n in names]) if self.is_large else repeated(_collect(frame), names)
            )
        with self.cost.timing("commit"):
            commit = self.worker.store.append(self.path, rows, self.txn, self.metadata)
        return commit, Counts(inserted=commit.rows_written)

    def load(self) -> Commit:
        """Compute the contents from scratch and replace the stored ones."""
        load = self.named.stage.load()
        if isinstance(load, Fixpoint):
            return self._load_recursion(load)
        step = Step(self.named.name, load)
        with self.cost.timing("read"):
            self._bind_inputs(step.tables)
        self.worker.plan_for(Scale.LARGE)
        self._show(step, Scale.LARGE)
        with self.cost.timing("compute"):
            frame = self._sql(step.text(hints=False))
            return self.worker.store.replace(self.path, frame, self.txn, self.metadata)

    def _load_recursion(self, load: Fixpoint) -> Commit:
        """Load a recursion: run its loop from the whole base."""
        with self.cost.timing("read"):
            self._bind_inputs(load.tables)
        if not self.is_large and sum(self.sizes.values()) > MAX_TINY_ROWS:
            return replace(self, is_large=True)._load_recursion(load)
        names = [c.name for c in self.layout.columns]
        with self.cost.timing("compute"):
            try:
                rows = self._repeat(load, {})
            except SPARK_ERRORS as error:
                if self.is_large or not is_too_large(error):
                    raise
                return replace(self, is_large=True)._load_recursion(load)
            if isinstance(rows, pa.Table):
                frame = self.worker.frame(repeated(rows, names))
            else:
                frame = repeated_frame(rows, [quote(n) for n in names])
            return self.worker.store.replace(self.path, frame, self.txn, self.metadata)

    def _with(self, counts: Counts) -> dict[str, object]:
        return {**self.metadata, "rows": [counts.inserted, counts.updated, counts.deleted]}

    # Reading

    def _bind_inputs(self, wanted: frozenset[str]) -> None:
        """Bind the wanted inputs that are not bound yet."""
        store, wanted = self.worker.store, wanted - self.sizes.keys()
        if STORED in wanted:
            names = [c.name for c in self.layout.columns]
            stored = store.read(self.path, self.version, names)
            self._bind(STORED, stored, self._counted(self.stored.num_rows))
        for name in self.named.inputs:
            if name == CLOCK:
                continue
            source = self.inputs[name]
            if new_name(name) in wanted:
                rows = self._counted(source.num_rows(store))
                self._bind(new_name(name), source.contents(store, source.columns), rows)
            if delta_name(name) in wanted:
                self._bind(delta_name(name), source.changes(store), self.feed_rows)

    def _bind(self, name: str, frame: DataFrame, rows: int) -> None:
        """Keep a frame that steps can read."""
        self.sizes[name], self.frames[name] = rows, frame
        self.in_one_task.pop(name, None)

    def _show(self, step: Step, scale: Scale) -> None:
        """Bind the frames that a step reads; for a tiny step as single partitions, so that no exchange is needed.

        For other steps frames are bound unchanged: rows on the driver are then sent from there without a job.
        """
        is_tiny = scale is Scale.TINY
        for name in step.tables:
            if self.in_one_task.get(name) is not is_tiny:
                self.worker.bind(name, self.frames[name].coalesce(1) if is_tiny else self.frames[name])
                self.in_one_task[name] = is_tiny

    def _counted(self, rows: int | None) -> int:
        """Add the rows of an input to the cost, and return their number; an unknown number counts as large."""
        self.cost.rows_read += rows or 0
        return rows if rows is not None else MAX_TINY_ROWS + 1

    # Steps

    def _run(self, steps: Sequence[AnyStep]) -> dict[str, Rows]:
        results: dict[str, Rows] = {}
        for position, step in enumerate(steps):
            check()
            if not _applies(step, results):
                continue
            with self.cost.timing("read"):
                self._bind_inputs(step.tables)
            with self.cost.timing("compute"):
                rows = self._repeat(step, results) if isinstance(step, Fixpoint) else self._result(step, results)
            results[step.name] = rows
            later = {name for s in steps[position + 1 :] for name in s.tables}
            ends_here = any(s.only_if == step.name for s in steps) and not _has_more(rows)
            if step.name in later and not (step.name in _RESULTS and ends_here):
                self._bind_rows(step.name, rows)
        return {name: rows for name, rows in results.items() if name in _RESULTS}

    def _result(self, step: Step, results: Mapping[str, Rows]) -> Rows:
        if step.looks_up is not None:
            wanted = results[step.looks_up]
            known = self._look_up(_with_more(wanted) if step.only_if == step.looks_up else wanted)
            if known is not None:
                return known
        frame = self._query(step)
        if not self.is_large:
            return _collect(frame)
        self.kept.append(frame.persist())
        return frame

    def _repeat(self, step: Fixpoint, results: Mapping[str, Rows]) -> Rows:
        """Repeat a step over its own result; a seed that an earlier step has computed needs no query."""
        self.cost.strategies += [step.strategy] if step.strategy else []
        seed = step.seed.relation
        if isinstance(seed, Table) and seed.name in results:
            first = results[seed.name]
        else:
            first = self._settled(step.seed)
        names = [c.name for c in step.columns]
        first = first.select(names) if isinstance(first, pa.Table) else first.select(*(quote(n) for n in names))
        return Loop(step, self._settled, self._bind_rows, self.settings).from_(first)

    def _settled(self, step: Step) -> Rows:
        """The result of a step, computed only once even if it is read several times."""
        frame = self._query(step)
        return frame.localCheckpoint() if self.is_large else _collect(frame)

    def _bind_rows(self, name: str, rows: Rows) -> None:
        frame = self.worker.frame(rows) if isinstance(rows, pa.Table) else rows
        self._bind(name, frame, rows.num_rows if isinstance(rows, pa.Table) else 0)

    def _look_up(self, wanted: Rows) -> pa.Table | None:
        """Bind the wanted stored rows; for a bag, returns the rows to remove if their places are enough."""
        rows = self._counted(self.stored.num_rows)
        found = self.stored.look_up(wanted) if isinstance(wanted, pa.Table) else None
        if found is None:
            self._bind(STATE, self.stored.scan(self.worker, wanted), rows)
            return None
        if self.layout.kind is Kind.BAG:
            removed = rows_to_remove(wanted, found, [c.name for c in self.layout.columns])
            if removed is not None:
                return removed
        at = self.stored.at(found)
        if at is None:
            self._bind(STATE, self.stored.scan(self.worker, wanted), rows)
        else:
            self._bind(STATE, at, found.num_rows)
        return None

    def _query(self, step: Step) -> DataFrame:
        """The query of a step, planned for the size of its inputs."""
        scale = Scale.LARGE
        if not self.is_large:
            rows = sum(self.sizes[name] for name in step.tables)
            scale = Scale.TINY if rows <= MAX_TINY_ROWS else Scale.SMALL
        with self.cost.timing("plan"):
            self.worker.plan_for(scale)
            self._show(step, scale)
            if scale is not Scale.SMALL:
                return self._sql(step.text(hints=False))
            tiny = frozenset(name for name in step.tables if self.sizes[name] <= MAX_SENT_ROWS)
            return self._sql(step.text(hints=True, tiny=tiny))

    def _sql(self, text: str) -> DataFrame:
        if CLOCK in self.named.inputs:
            assert self.times is not None
            text = filled_in(text, moment_literal(self.times.now), moment_literal(self.times.before))
        return self.worker.spark.sql(text)


def _collect(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


def _reads_all_state(step: AnyStep) -> bool:
    return isinstance(step, Step) and STATE in step.tables and step.looks_up is None and step.only_if is None


def _applies(step: AnyStep, results: Mapping[str, Rows]) -> bool:
    """Whether the result of the step named in its condition requires this step."""
    if step.only_if is not None:
        return _has_more(results[step.only_if])
    return not (isinstance(step, Fixpoint) and step.unless is not None and _has_more(results[step.unless]))


def _with_more(rows: Rows) -> Rows:
    return rows.filter(rows[MORE.name]) if isinstance(rows, pa.Table) else rows.where(quote(MORE.name))


def _has_more(rows: Rows) -> bool:
    if isinstance(rows, pa.Table):
        return bool(pc.any(rows[MORE.name]).as_py())
    return not rows.where(quote(MORE.name)).isEmpty()


def is_too_large(error: Exception) -> bool:
    """Whether a result was too large for the driver, so that it must stay in Spark."""
    return "maxResultSize" in str(error)


Progress = Callable[[str], None]
