"""Repeats a step of a recursion over its own result, on Spark, until it finds no new rows.

Small results are collected on the driver as Arrow and bound again, so that each round is one short query. Large ones
stay in Spark, cut off from the plan that computed them: otherwise the plan would grow with each round.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from millstream import naming
from millstream.cancellation import check
from millstream.diff.plan import FRONTIER, Fixpoint, Step
from millstream.engine.storage import Rows
from millstream.errors import Code, MillstreamError
from millstream.settings import Settings

# after this many rounds their results are combined into one, which the next round reads
_MAX_PARTS = 10
# a row with a larger weight in one round comes from a cycle in the data
_MAX_WEIGHT = 2**40


@dataclass(frozen=True)
class Loop:
    """One fixpoint in one refresh.

    Args:
        run: runs a step and returns its result, on the driver or checkpointed in Spark.
        bind: makes a result readable under a name.
    """

    step: Fixpoint
    run: Callable[[Step], Rows]
    bind: Callable[[str, Rows], None]
    settings: Settings

    def from_(self, seed: Rows) -> Rows:
        """All rows that are found, starting from the seed.

        Raises:
            MillstreamError: RECURSION_LIMIT.
        """
        most_rounds, most_rows = self.settings.max_recursion, self.settings.max_recursion_rows
        found = Found()
        count = first = found.add(seed)
        frontier, rounds = seed, 0
        while count:
            check()
            if rounds > most_rounds or found.count - first > most_rows or _is_circling(frontier):
                raise endless(most_rounds, most_rows)
            self.bind(FRONTIER, frontier)
            if self.step.name in self.step.body.tables:
                self.bind(self.step.name, found.all())
            frontier = self.run(self.step.body)
            count = found.add(frontier)
            rounds += 1
        return found.all()


@dataclass
class Found:
    """The rows found so far."""

    parts: list[Rows] = field(default_factory=list)
    count: int = 0

    def add(self, rows: Rows) -> int:
        """Add rows and return their number."""
        count = rows.num_rows if isinstance(rows, pa.Table) else rows.count()
        if count or not self.parts:
            self.parts.append(_nullable(rows) if isinstance(rows, pa.Table) else rows)
            self.count += count
        return count

    def all(self) -> Rows:
        """All of them, as one."""
        tables = [p for p in self.parts if isinstance(p, pa.Table)]
        if tables:
            self.parts = [pa.concat_tables(tables)]
            return self.parts[0]
        frame, *others = [p for p in self.parts if not isinstance(p, pa.Table)]
        for other in others:
            frame = frame.unionAll(other)
        if len(self.parts) > _MAX_PARTS:
            frame = frame.localCheckpoint()
            self.parts = [frame]
        return frame


def endless(rounds: int, rows: int) -> MillstreamError:
    """The error for a recursion that was stopped."""
    return MillstreamError(
        Code.RECURSION_LIMIT,
        f"the recursion did not end within {rounds} rounds and {rows} rows",
        hint="if there is a cycle in the data, use UNION instead of UNION ALL, or stop at a depth; if the recursion is "
        "that deep or large, raise max_recursion or max_recursion_rows",
    )


def has_no_end(error: Exception) -> bool:
    """Whether Spark stopped a recursion that it ran itself."""
    return bool(re.search("RECURSION_(LEVEL|ROW)_LIMIT_EXCEEDED", str(error)))


def _nullable(rows: pa.Table) -> pa.Table:
    """The rows without the nullability of their columns, which may differ from round to round."""
    return pa.Table.from_arrays(rows.columns, names=rows.column_names)


def _is_circling(rows: Rows) -> bool:
    if not isinstance(rows, pa.Table) or rows.num_rows == 0:
        return False
    bounds = pc.min_max(rows[naming.WEIGHT]).as_py()
    return bool(bounds["max"] > _MAX_WEIGHT or bounds["min"] < -_MAX_WEIGHT)
