"""The clauses and expressions the front end knows of and refuses."""

from __future__ import annotations

from sqlglot import exp

from millstream.errors import MillstreamError
from millstream.sql.context import Context
from millstream.sql.unsupported import depends_on_time, invalid, unsupported, volatile
from millstream.sql.validate import is_current_time, volatile_call

# Clauses of a query this version cannot maintain; the key is sqlglot's name of the clause.
_OF_QUERIES = {
    "pivots": "PIVOT",
    "sample": "TABLESAMPLE",
    "match": "MATCH_RECOGNIZE",
    "connect": "CONNECT BY",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "sort": "SORT BY",
}
_OF_TABLES = {
    "sample": "TABLESAMPLE",
    "pivots": "PIVOT",
    "laterals": "LATERAL VIEW",
}
# The clauses that are understood, by the parser's names; it knows more, of other dialects.
_KNOWN_OF_QUERIES = frozenset(
    [
        "with_",
        "expressions",
        "hint",
        "distinct",
        "from_",
        "joins",
        "laterals",
        "where",
        "group",
        "having",
        "qualify",
        "windows",
        "order",
        "limit",
        "offset",
        "this",
        "expression",
        "by_name",
        "alias",
    ]
)
_KNOWN_OF_TABLES = frozenset(["this", "alias", "db", "catalog", "joins"])
_OF_GROUPS = {"totals": "TOTALS"}


def refuse_query_clauses(node: exp.Expr, context: Context) -> None:
    """Refuse what a SELECT, a set operation or a subquery may not have."""
    _refuse(node, _OF_QUERIES, context)
    _refuse_unknown(node, _KNOWN_OF_QUERIES, context)


def refuse_table_clauses(node: exp.Expr, context: Context) -> None:
    """Refuse what a FROM item may not have."""
    _refuse(node, _OF_TABLES, context)
    if isinstance(node, exp.Table):
        _refuse_unknown(node, _KNOWN_OF_TABLES, context)


def refuse_group_clauses(group: exp.Group, context: Context) -> None:
    """Refuse what a GROUP BY may not have."""
    _refuse(group, _OF_GROUPS, context)
    for key in group.expressions:
        if isinstance(key, exp.Tuple):
            raise unsupported("a tuple as grouping key", key, context.sql, "write the keys without parentheses")


def refuse_in_expression(expression: exp.Expr, context: Context, *, windows: bool = False) -> None:
    """Refuse subqueries, generators, a misplaced `*`, what is no function of one row, and windows unless allowed."""
    if (call := volatile_call(expression)) is not None:
        refusal = depends_on_time if is_current_time(call) else volatile
        raise refusal(call.sql(dialect="spark"), call, context.sql)
    for node in expression.walk():
        if isinstance(node, exp.Query):
            raise unsupported("a subquery in an expression", node, context.sql, "join with it")
        if isinstance(node, exp.Window) and not windows:
            hint = "compute it in a subquery, or use QUALIFY"
            raise invalid("a window function is not allowed here", node, context.sql, hint)
        if isinstance(node, exp.UDTF):
            raise unsupported(node.key.upper(), node, context.sql)
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
            raise unsupported("* inside an expression", node, context.sql, "name the columns")


def refuse_aggregates(expression: exp.Expr, where: str, context: Context) -> None:
    """Refuse aggregates where each row is judged by itself."""
    if (call := expression.find(exp.AggFunc)) is not None:
        raise misplaced_aggregate(call, f"in {where}", context)


def misplaced_aggregate(call: exp.Expr, where: str, context: Context) -> MillstreamError:
    """An aggregate where none is allowed."""
    hint = "compute the aggregate in a subquery, or use HAVING"
    return invalid(f"an aggregate is not allowed {where}", call, context.sql, hint)


def _refuse(node: exp.Expr, clauses: dict[str, str], context: Context) -> None:
    for clause, name in clauses.items():
        if found := node.args.get(clause):
            place = found[0] if isinstance(found, list) else found
            raise unsupported(name, place if isinstance(place, exp.Expr) else node, context.sql)


def _refuse_unknown(node: exp.Expr, known: frozenset[str], context: Context) -> None:
    for clause, found in node.args.items():
        if found and clause not in known:
            place = found[0] if isinstance(found, list) else found
            where = place if isinstance(place, exp.Expr) else node
            raise unsupported(f"the clause {clause.strip('_').replace('_', ' ')}", where, context.sql, "leave it out")
