"""The least fixpoint of a cycle by its queries' own texts, from empty members: the oracle of `verify`.

It repeats all queries over all rows until nothing is added. So it shares no plan with the rounds of a refresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from millstream.catalog.models import StreamTable
from millstream.engine.worker import Worker
from millstream.lake import Compiled
from millstream.refresh.cycle_rounds import endless
from millstream.refresh.full_text import run_text
from millstream.refresh.inputs import BoundInput
from millstream.refresh.staged_input import Staged, staged_input
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def fixpoint_by_text(
    worker: Worker,
    members: Mapping[str, tuple[StreamTable, Compiled]],
    inputs: Mapping[str, Mapping[str, BoundInput]],
    settings: Settings,
) -> dict[str, DataFrame]:
    """The rows of each member.

    Args:
        inputs: what each member reads outside of the cycle, at its frontier.

    Raises:
        MillstreamError: RECURSION_LIMIT.
    """
    found = {name: Staged(_empty(worker, compiled), 0) for name, (_, compiled) in members.items()}
    for _ in range(settings.max_recursion + 1):
        following = {name: _next(worker, name, members, inputs[name], found) for name in members}
        if all(following[name].count == found[name].count for name in members):  # the queries are monotone
            return {name: staged.rows for name, staged in following.items()}
        found = following
        if sum(staged.count for staged in found.values()) > settings.max_recursion_rows:
            break
    raise endless(list(members), settings.max_recursion, settings.max_recursion_rows)


def _next(
    worker: Worker,
    name: str,
    members: Mapping[str, tuple[StreamTable, Compiled]],
    outside: Mapping[str, BoundInput],
    found: Mapping[str, Staged],
) -> Staged:
    """The result of a member's query over the rows found so far."""
    table, compiled = members[name]
    assert table.data_timestamp is not None, "all members have contents"
    worker.use(table.definition.settings)
    peers = {
        peer: staged_input(members[peer][0], compiled.used_columns[peer], found[peer])
        for peer in compiled.sources
        if peer in members
    }
    rows = run_text(worker, compiled, {**outside, **peers}, table.data_timestamp)
    rows = rows.toDF(*(c.name for c in compiled.columns)).distinct().localCheckpoint()
    return Staged(rows, rows.count())


def _empty(worker: Worker, compiled: Compiled) -> DataFrame:
    nothing = (f.expr(f"CAST(NULL AS {c.type})").alias(c.name) for c in compiled.columns)
    return worker.spark.range(0).select(*nothing)
