"""The query's own text over its inputs at given versions: the oracle of `verify`, and FULL without a delta plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from millstream.diff.base import new_name
from millstream.engine.worker import Scale, Worker
from millstream.lake import Compiled
from millstream.naming import quote
from millstream.refresh.inputs import BoundInput
from millstream.sql.text import TableReference, bind_current_time, exchange_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run_text(
    worker: Worker, compiled: Compiled, inputs: Mapping[str, BoundInput], data_timestamp: datetime
) -> DataFrame:
    """The query's result at the inputs' new versions; the current time is the data timestamp."""
    worker.plan_for(Scale.LARGE)
    for name, source in inputs.items():
        columns = [c.name for c in compiled.sources[name].columns]
        worker.bind(new_name(name), source.delta.contents(worker.store, source.new, columns))
    text = _over_views(compiled.query, compiled)
    if compiled.follows_time:
        text = bind_current_time(text, int(data_timestamp.timestamp() * 1_000_000))
    return worker.spark.sql(text)


def _over_views(text: str, compiled: Compiled) -> str:
    def replacement(reference: TableReference) -> str:
        name = _name_of(reference)
        if name in compiled.views:
            return f"({_over_views(compiled.views[name], compiled)}\n)"
        return quote(new_name(name))

    return exchange_tables(text, replacement)


def _name_of(reference: TableReference) -> str:
    parts = [p.lower() for p in reference.parts]
    if parts[0] == "spark_catalog":
        parts = parts[1:]
    return ".".join(parts[1:] if parts[0] == "default" and len(parts) > 1 else parts)
