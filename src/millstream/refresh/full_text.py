"""Runs the query's own text over its inputs: the oracle of `verify`, and FULL for queries without a delta plan.

If SQL leaves the result of the text open, the oracle is the lowered query, which fixes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from millstream.diff.inputs import new_name
from millstream.diff.plan import Layout
from millstream.engine.worker import RECURSION_LIMITS, Scale, Worker
from millstream.lake import Compiled
from millstream.naming import VISIBLE, quote
from millstream.ops import Column
from millstream.refresh.fixpoint import endless
from millstream.refresh.inputs import BoundInput
from millstream.sql.sources import Source
from millstream.sql.text.recursion import FRONTIER, TextLoop, unrolled
from millstream.sql.text.table_exchange import bind_current_time

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


def run_text(
    worker: Worker, compiled: Compiled, inputs: Mapping[str, BoundInput], data_timestamp: datetime
) -> DataFrame:
    """The query's result at the inputs' new versions; the current time is the data timestamp."""
    worker.plan_for(Scale.LARGE)
    for name, source in inputs.items():
        worker.bind(new_name(name), _contents(worker, compiled.sources[name], source))
    text = compiled.oracle_over({name: quote(new_name(name)) for name in compiled.sources})
    if compiled.follows_time:
        text = bind_current_time(text, data_timestamp)
    loops, text = unrolled(text)
    for loop in loops:
        worker.bind(loop.found, _repeated(worker, loop))
    return worker.spark.sql(text)


def _repeated(worker: Worker, loop: TextLoop) -> DataFrame:
    """All rows of a recursion with UNION, each once; its columns have the types of the base.

    Raises:
        MillstreamError: RECURSION_LIMIT.
    """
    base = worker.spark.sql(loop.base)
    names = [name.lower() for name in base.columns]
    if len(set(names)) < len(names):  # the text itself then names them
        base = base.toDF(*(f"c{i}" for i in range(len(names))))
    types = [field.dataType for field in base.schema]
    found = frontier = base.distinct().localCheckpoint()
    rounds, rows = (int(worker.spark.conf.get(key) or 0) for key in RECURSION_LIMITS)
    for _ in range(rounds + 1):
        if frontier.isEmpty():
            return found
        worker.bind(FRONTIER, frontier)
        step = worker.spark.sql(loop.step).toDF(*base.columns)
        typed = step.select(*(f.col(quote(n)).cast(t).alias(n) for n, t in zip(base.columns, types, strict=True)))
        frontier = typed.subtract(found).localCheckpoint()
        found = found.unionAll(frontier).localCheckpoint()
    raise endless(rounds, rows)


def as_stored(frame: DataFrame, layout: Layout) -> DataFrame:
    """The query's result in the columns of a stored table.

    It can be read but not maintained: columns that only maintenance needs, e.g. the counts and sums of a group, cannot
    be computed from the result and are NULL.
    """
    named = frame.toDF(*(f"c{i}" for i in range(len(layout.outputs))))
    shown = {stored: f.col(f"c{i}") for i, stored in reversed(list(enumerate(layout.outputs)))}
    if layout.hides_rows:
        shown[VISIBLE] = f.lit(True)
    return named.select(*((shown[c.name] if c.name in shown else _nothing(c)).alias(c.name) for c in layout.columns))


def _contents(worker: Worker, wanted: Source, source: BoundInput) -> DataFrame:
    """An input's rows with the columns it had at compilation; columns dropped since were not used, and are NULL."""
    there = source.delta.columns(worker.store, source.new)
    kept = [c.name for c in wanted.columns if c.name.lower() in there]
    frame = source.contents(worker.store, kept)
    if len(kept) == len(wanted.columns):
        return frame
    return frame.select(*(f.col(quote(c.name)) if c.name in kept else _nothing(c) for c in wanted.columns))


def _nothing(column: Column) -> SparkColumn:
    return f.expr(f"CAST(NULL AS {column.type})").alias(column.name)
