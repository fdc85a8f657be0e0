"""One function for the current time: all calls in a query mean the same instant.

Some of them would change when printed: LOCALTIMESTAMP without parentheses is a column to Spark.
"""

from __future__ import annotations

from sqlglot import exp

from millstream.ops.expressions import cast


def with_one_current_time(query: exp.Query) -> exp.Query:
    """The query with CURRENT_TIMESTAMP() in place of all functions of the current time."""

    def replaced(node: exp.Expr) -> exp.Expr:
        match node:
            case exp.CurrentDate():
                return cast(exp.CurrentTimestamp(), "date")
            case exp.Localtimestamp():
                return cast(exp.CurrentTimestamp(), "timestamp_ntz")
            case exp.Anonymous() if str(node.this).lower() == "now":
                return exp.CurrentTimestamp()
        return node

    result = query.transform(replaced)
    assert isinstance(result, exp.Query)
    return result
