"""Aggregates whose result SQL leaves open, each turned into one that has a single result.

ANY_VALUE, FIRST and LAST may give any value of the group, depending on the order rows happen to be read in. A delta
reads them in another order than the query, so that one result has to be fixed for both; `verify` then compares with
that one.
"""

from __future__ import annotations

from sqlglot import exp

from millstream.sql.context import Context

# Any value of the group will do; an extremum is one that is cheap to keep.
_LEAST = (exp.AnyValue, exp.First, exp.FirstValue)
_GREATEST = (exp.Last, exp.LastValue)


def closed(function: exp.AggFunc, context: Context) -> exp.AggFunc:
    """The aggregate itself, or the one that takes its place."""
    if isinstance(function, _LEAST):
        context.close_result(function.sql_name(), "the least value is taken")
        return exp.Min(this=function.this)
    if isinstance(function, _GREATEST):
        context.close_result(function.sql_name(), "the greatest value is taken")
        return exp.Max(this=function.this)
    return function
