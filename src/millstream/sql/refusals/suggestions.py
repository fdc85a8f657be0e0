"""What to write instead of a refused construct: the hint of its error, unless the refusing code gives a better one.

The key is the construct's name in the error, or a prefix of it.
"""

from __future__ import annotations

_A_TABLE = "put the rows into a table and read that"
_NO_ORDER = "omit it: the rows of a table have no order or distribution; sort when you read it"

SUGGESTIONS = {
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
    "views nested more than": "inline the queries of the innermost views in the outer ones",
    "ASOF": "join on an inequality and keep the nearest row by QUALIFY ROW_NUMBER() OVER (...) = 1",
    "a subquery in an expression": "join with it",
    "DISTINCT ON": "write QUALIFY ROW_NUMBER() OVER (PARTITION BY <its keys> ORDER BY ...) = 1",
    "the aggregate": "keep the rows in the stream table and aggregate when you read it",
    "LATERAL VIEW": "put the values into an array and EXPLODE it",
    "RIGHT JOIN LATERAL": "put the lateral subquery on the right of a LEFT JOIN",
    "FULL JOIN LATERAL": "join with a subquery that is grouped by the columns it is joined on",
}


def suggestion_for(what: str) -> str | None:
    """The suggested rewrite of a construct, by its name.

    >>> suggestion_for("PIVOT") == SUGGESTIONS["PIVOT"], suggestion_for("something else")
    (True, None)
    """
    named = next((hint for name, hint in SUGGESTIONS.items() if what.startswith(name)), None)
    return _A_TABLE if named is None and what.endswith(" in FROM") else named
