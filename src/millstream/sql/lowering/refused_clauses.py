"""The clauses and expressions that the front end recognises and refuses."""

from __future__ import annotations

from sqlglot import exp

from millstream.errors import MillstreamError
from millstream.sql.lowering.context import Context
from millstream.sql.refusals.unsupported import depends_on_time, invalid, unsupported, volatile
from millstream.sql.refusals.validate import is_current_time, volatile_call


def refuse_group_clauses(group: exp.Group, context: Context) -> None:
    """Refuse the forms of GROUP BY that are not supported."""
    if group.args.get("all") is False:
        raise unsupported("GROUP BY DISTINCT", group, context.sql, "write GROUPING SETS with each set once")
    for key in group.expressions:
        if isinstance(key, exp.Tuple):
            raise unsupported("a tuple as grouping key", key, context.sql, "write the keys without parentheses")


def refuse_in_expression(expression: exp.Expr, context: Context, *, windows: bool = False) -> None:
    """Refuse subqueries, generators, a misplaced `*`, volatile functions, and windows unless allowed."""
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
    """Refuse aggregates where an expression is evaluated for each row."""
    if (call := expression.find(exp.AggFunc)) is not None:
        raise misplaced_aggregate(call, f"in {where}", context)


def misplaced_aggregate(call: exp.Expr, where: str, context: Context) -> MillstreamError:
    """The error for an aggregate where none is allowed."""
    hint = "compute the aggregate in a subquery, or use HAVING"
    return invalid(f"an aggregate is not allowed {where}", call, context.sql, hint)
