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
from millstream.sql.text import bind_current_time

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
    text = compiled.over({name: quote(new_name(name)) for name in compiled.sources})
    if compiled.follows_time:
        text = bind_current_time(text, int(data_timestamp.timestamp() * 1_000_000))
    return worker.spark.sql(text)
