"""Runs the rounds of a cycle of stream tables on Spark, in staging: nothing is committed.

The queries of all members run over the rows that the round before has found, until no member gains a row. Small results
are collected on the driver as Arrow and bound again, so that each round is one short query per member. Large ones stay
in Spark, cut off from the plan that computed them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f

from millstream.diff.circular import Member, run_rounds
from millstream.diff.inputs import delta_name, new_name
from millstream.diff.plan import Step
from millstream.engine.spark_errors import SPARK_ERRORS
from millstream.engine.storage import Rows
from millstream.engine.worker import Scale, Worker
from millstream.errors import Code, MillstreamError
from millstream.naming import WEIGHT, quote
from millstream.ops import Column
from millstream.refresh.execute import MAX_TINY_ROWS, Cost, is_too_large
from millstream.refresh.fixpoint import Found
from millstream.refresh.inputs import BoundInput
from millstream.refresh.staged_input import Staged
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Stored:
    """The rows that a member has stored, and about how many they are."""

    rows: DataFrame
    count: int


@dataclass(frozen=True)
class Rounds:
    """The rounds of one refresh of a cycle.

    Args:
        members: by name.
        semantics: the settings that are part of each member's query.
        inputs: what the members read outside of the cycle, by name, with all columns that any of them uses.
        is_large: whether results are too large for the driver.
    """

    worker: Worker
    members: Mapping[str, Member]
    semantics: Mapping[str, Mapping[str, str]]
    inputs: Mapping[str, BoundInput]
    settings: Settings
    cost: Cost
    is_large: bool = False
    frames: dict[str, DataFrame] = field(default_factory=dict, init=False)
    sizes: dict[str, int] = field(default_factory=dict, init=False)
    found: dict[str, Found] = field(default_factory=dict, init=False)

    def from_empty(self, stored: Mapping[str, Stored]) -> tuple[dict[str, Staged], int]:
        """The members at their least fixpoint, computed from nothing, and the number of rounds.

        Args:
            stored: what the members have stored, to return how they change; empty if that is not needed.

        Raises:
            MillstreamError: RECURSION_LIMIT.
        """
        try:
            for name, member in self.members.items():
                self._bind(new_name(name), self._empty(member.columns), 0)
            first = {name: member.over_empty() for name, member in self.members.items()}
            rounds = self._repeat(first, {})
            return {n: self._compared(n, stored.get(n)) for n in self.members}, rounds
        except SPARK_ERRORS as error:
            if self.is_large or not is_too_large(error):
                raise
            return replace(self, is_large=True).from_empty(stored)

    def from_stored(self, stored: Mapping[str, Stored]) -> tuple[dict[str, Staged], int]:
        """The members at their least fixpoint, reached from what they have stored, and the number of rounds.

        That is right only if rows were only added to the inputs.

        Raises:
            MillstreamError: RECURSION_LIMIT.
        """
        changed = frozenset(name for name, i in self.inputs.items() if i.old != i.new)
        try:
            for name in self.members:
                self._bind(new_name(name), stored[name].rows, stored[name].count)
            steps = {name: member.gained(changed) for name, member in self.members.items()}
            rounds = self._repeat({name: step for name, step in steps.items() if step is not None}, stored)
            return {n: self._grown(stored[n], self.found[n]) for n in self.members}, rounds
        except SPARK_ERRORS as error:
            if self.is_large or not is_too_large(error):
                raise
            return replace(self, is_large=True).from_stored(stored)

    # The loop

    def _repeat(self, first: Mapping[str, Step], stored: Mapping[str, Stored]) -> int:
        self.found.update({name: Found() for name in self.members})
        return run_rounds(self.members, first, self._run, partial(self._gain, stored), self._refuse_endless)

    def _gain(self, stored: Mapping[str, Stored], name: str, rows: Rows) -> int:
        found = self.found[name]
        if gained := found.add(rows):
            self._bind(delta_name(name), _weighted(self._frame(rows)), gained)
            known, count = self._frame(found.all()), found.count
            if name in stored:
                known, count = stored[name].rows.unionAll(known), stored[name].count + count
            self._bind(new_name(name), known, count)
        return gained

    def _refuse_endless(self, rounds: int) -> None:
        most_rounds, most_rows = self.settings.max_recursion, self.settings.max_recursion_rows
        if rounds > most_rounds or sum(found.count for found in self.found.values()) > most_rows:
            raise endless(list(self.members), most_rounds, most_rows)

    # The results

    def _compared(self, name: str, stored: Stored | None) -> Staged:
        """The found rows, and how they differ from the stored ones."""
        found = self.found[name]
        rows = self._frame(found.all())
        if stored is None:
            return Staged(rows, found.count)
        names = [quote(c.name) for c in self.members[name].columns]
        both = _weighted(rows.select(*names)).unionAll(_weighted(stored.rows.select(*names), -1))
        net = both.groupBy(*names).agg(f.sum(WEIGHT).alias(WEIGHT)).where(f.col(WEIGHT) != 0)
        self.worker.plan_for(Scale.LARGE)
        change = self._settled(net)
        is_changed = bool(change.num_rows) if isinstance(change, pa.Table) else not change.isEmpty()
        return Staged(rows, found.count, self._frame(change) if is_changed else None)

    def _grown(self, stored: Stored, found: Found) -> Staged:
        """The stored rows with those that were found."""
        if not found.count:
            return Staged(stored.rows, stored.count)
        gained = self._frame(found.all())
        return Staged(stored.rows.unionAll(gained), stored.count + found.count, _weighted(gained))

    # Queries

    def _run(self, name: str, step: Step) -> Rows:
        """The result of a step of a member."""
        with self.cost.timing("read"):
            self._bind_inputs(step.tables)
        is_tiny = sum(self.sizes[table] for table in step.tables) <= MAX_TINY_ROWS
        with self.cost.timing("compute"):
            self.worker.use(self.semantics[name])
            self.worker.plan_for(Scale.TINY if is_tiny else Scale.LARGE)
            for table in step.tables:
                self.worker.bind(table, self.frames[table].coalesce(1) if is_tiny else self.frames[table])
            return self._settled(self.worker.spark.sql(step.text(hints=False)))

    def _settled(self, frame: DataFrame) -> Rows:
        """Rows that are computed only once, even if they are read several times."""
        return frame.localCheckpoint() if self.is_large else frame.toArrow()

    def _bind_inputs(self, wanted: frozenset[str]) -> None:
        store, wanted = self.worker.store, wanted - self.frames.keys()
        for name, source in self.inputs.items():
            if new_name(name) in wanted:
                rows = source.num_rows(store)
                self.cost.rows_read += rows or 0
                size = rows if rows is not None else MAX_TINY_ROWS + 1
                self._bind(new_name(name), source.contents(store, source.columns), size)
            if delta_name(name) in wanted:
                rows = source.summary.feed_rows if source.summary is not None else 0
                self.cost.rows_read += rows
                self._bind(delta_name(name), source.changes(store), rows)

    def _bind(self, name: str, frame: DataFrame, rows: int) -> None:
        self.frames[name], self.sizes[name] = frame, rows

    def _frame(self, rows: Rows) -> DataFrame:
        return self.worker.frame(rows) if isinstance(rows, pa.Table) else rows

    def _empty(self, columns: Sequence[Column]) -> DataFrame:
        nothing = (f.expr(f"CAST(NULL AS {c.type})").alias(c.name) for c in columns)
        return self.worker.spark.range(0).select(*nothing)


def endless(members: Sequence[str], rounds: int, rows: int) -> MillstreamError:
    """The error for a cycle whose rounds were stopped."""
    return MillstreamError(
        Code.RECURSION_LIMIT,
        f"the cycle of {', '.join(sorted(members))} did not end within {rounds} rounds and {rows} rows",
        hint="if its queries compute new values around the cycle, e.g. a growing number, stop at a limit; if the cycle "
        "is that deep or large, raise max_recursion or max_recursion_rows",
    )


def _weighted(frame: DataFrame, weight: int = 1) -> DataFrame:
    return frame.withColumn(WEIGHT, f.lit(weight).cast("bigint"))
