"""What to write instead of a refused construct: the hint of its error, unless the place that refuses knows more.

The key is what the error calls the construct, or how that begins.
"""

from __future__ import annotations

_A_TABLE = "put the rows into a table and read that"
_NO_ORDER = "leave it out: a table has no order or distribution of its rows, sort when you read it"

WAYS_OUT = {
    "TABLESAMPLE": "choose rows by a key, e.g. WHERE pmod(xxhash64(id), 100) < 10 for a tenth of them",
    "PIVOT": "write one aggregate with FILTER (WHERE ...) per value",
    "UNPIVOT": "write one branch of a UNION ALL per column",
    "MATCH_RECOGNIZE": "compare neighbouring rows with LAG and LEAD",
    "CONNECT BY": "write WITH RECURSIVE",
    "SORT BY": _NO_ORDER,
    "CLUSTER BY": _NO_ORDER,
    "DISTRIBUTE BY": _NO_ORDER,
    "TOTALS": "write GROUPING SETS",
    "LIMIT without ORDER BY": "say which rows with ORDER BY, e.g. by a key",
    "OFFSET without ORDER BY": "say which rows with ORDER BY, e.g. by a key",
    "a query that reads no table": _A_TABLE,
    "views nested more than": "write the innermost views' queries into the outer ones",
    "ASOF": "join on an inequality and keep the nearest row by QUALIFY ROW_NUMBER() OVER (...) = 1",
    "a subquery in an expression": "join with it",
    "DISTINCT ON": "write QUALIFY ROW_NUMBER() OVER (PARTITION BY <its keys> ORDER BY ...) = 1",
    "the aggregate": "keep the rows in the stream table and aggregate when you read it",
    "LATERAL VIEW": "put the values into an array and EXPLODE it",
    "RIGHT JOIN LATERAL": "let the lateral subquery stand on the right, in a LEFT JOIN",
    "FULL JOIN LATERAL": "join with a subquery that is grouped by the columns it is joined on",
}


def way_out(what: str) -> str | None:
    """The rewrite for a construct by its name.

    >>> way_out("PIVOT") == WAYS_OUT["PIVOT"], way_out("a miracle")
    (True, None)
    """
    named = next((hint for name, hint in WAYS_OUT.items() if what.startswith(name)), None)
    return _A_TABLE if named is None and what.endswith(" in FROM") else named
