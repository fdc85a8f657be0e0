"""Aggregate functions: calls in the text become calls that have a fixed result and that the delta rules know.

`aggregation` takes a call in the text apart, `lower` lowers each function, with one file per family:
`collected` for results that depend on the order of rows, `moments` for variances, correlations and regressions.
"""

from millstream.sql.lowering.aggregates.aggregation import PARTS, Aggregation, take_apart
from millstream.sql.lowering.aggregates.calls import Calls, build
from millstream.sql.lowering.aggregates.lower import lower_aggregation

__all__ = ["PARTS", "Aggregation", "Calls", "build", "lower_aggregation", "take_apart"]
