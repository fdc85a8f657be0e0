"""The nodes of a parsed query that lowering takes apart, with the arguments it looks at.

Any other expression reaches Spark as the parser prints it, and comparing Spark's plans of the text and of the printed
query protects it. Nothing protects a node that is taken apart: an argument that lowering does not look at is lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from millstream.errors import MillstreamError
from millstream.sql.lowering.context import Context
from millstream.sql.refusals.node_arguments import Registry, Unhandled, arguments, unhandled
from millstream.sql.refusals.unsupported import unsupported

_MODIFIERS = (
    "match connect pivots prewhere where group having qualify windows distribute sort cluster locks sample settings "
    "format options for_"
)
_OF_SETS = arguments(
    "with_ this expression distinct by_name order limit offset", f"side kind on laterals joins {_MODIFIERS}"
)
_TWO = arguments("this expression")
_ONE = arguments("this")
_LIST = arguments("expressions")

NODES: Registry = {
    exp.Select: arguments(
        # a hint is advice to the optimiser
        "with_ expressions hint distinct from_ joins laterals where group having qualify windows order limit offset",
        "kind into operation_modifiers exclude match connect pivots prewhere distribute sort cluster locks sample "
        "settings format options for_",
    ),
    exp.Union: _OF_SETS,
    exp.Intersect: _OF_SETS,
    exp.Except: _OF_SETS,
    exp.Subquery: arguments("this alias with_ joins order limit offset", f"laterals {_MODIFIERS}"),
    exp.Values: arguments("expressions alias", "order limit offset pivots"),
    exp.With: arguments("expressions recursive", "search cycle udfs"),
    exp.CTE: arguments("this alias", "scalar materialized key_expressions"),
    exp.From: _ONE,
    exp.Table: arguments(
        "this alias db catalog joins",
        "laterals pivots hints system_time version format pattern ordinality when only partition changes rows_from "
        "sample indexed",
    ),
    exp.TableAlias: arguments("this columns"),
    exp.Join: arguments(
        "this on side kind using method", "global_ hint match_condition nearest directed expressions pivots"
    ),
    exp.Lateral: arguments("this view outer alias", "cross_apply ordinality"),
    exp.Where: _ONE,
    exp.Group: arguments("expressions grouping_sets cube rollup all", "totals"),
    exp.GroupingSets: _LIST,
    exp.Rollup: _LIST,
    exp.Cube: _LIST,
    exp.Having: _ONE,
    exp.Qualify: _ONE,
    exp.Distinct: arguments("expressions on"),
    exp.Order: arguments("this expressions", "siblings"),
    exp.Ordered: arguments("this desc nulls_first", "with_fill"),
    exp.Limit: arguments("expression", "this offset limit_options expressions"),
    exp.Offset: arguments("expression", "this expressions"),
    exp.Fetch: arguments("direction count", "limit_options"),
    exp.Alias: arguments("this alias"),
    exp.Aliases: arguments("this expressions"),
    exp.Star: arguments("except_ replace rename", "ilike"),
    exp.Identifier: arguments("this quoted", "global_ temporary"),
    exp.Column: arguments("this table db catalog", "join_mark shadow"),
    exp.And: _TWO,
    exp.Or: _TWO,
    exp.Not: _ONE,
    exp.EQ: _TWO,
    exp.NullSafeEQ: _TWO,
    exp.Paren: _ONE,
    exp.Tuple: _LIST,
    exp.Exists: arguments("this", "expression"),
    exp.In: arguments("this expressions query", "unnest field is_global"),
    exp.Any: _ONE,
    exp.Filter: _TWO,
    exp.WithinGroup: _TWO,
    exp.IgnoreNulls: _ONE,
    exp.RespectNulls: _ONE,
    exp.Window: arguments("this partition_by order spec alias over", "first"),
    exp.WindowSpec: arguments("kind start start_side end end_side exclude"),
}
"""The nodes that lowering takes apart."""

OF_AGGREGATES = {
    exp.Count: "big_int",  # the type is Spark's
    exp.ArrayAgg: "nulls_excluded",
}
"""Flags of aggregates that Spark implies anyway; all other arguments of an aggregate are expressions."""

PARTS: frozenset[type[exp.Expr]] = frozenset(
    (
        exp.AtTimeZone, exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.FormatJson, exp.Hint, exp.JoinHint,
        exp.Interval, exp.IntervalSpan, exp.JSONKeyValue, exp.JSONPath, exp.JSONPathKey, exp.JSONPathRoot,
        exp.JSONPathSubscript, exp.JSONPathWildcard, exp.Lambda, exp.Slice, exp.Var, exp.National, exp.ColumnConstraint,
        exp.NotNullColumnConstraint, exp.CommentColumnConstraint, exp.FromTimeZone,
    )
)  # fmt: skip
"""Parts of expressions that are printed with them, though the parser does not call them expressions."""

_CLAUSES = {
    "pivots": "PIVOT",
    "sample": "TABLESAMPLE",
    "match": "MATCH_RECOGNIZE",
    "connect": "CONNECT BY",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "sort": "SORT BY",
    "totals": "TOTALS",
    "laterals": "LATERAL VIEW",
}


def refuse_arguments(tree: exp.Expr, context: Context) -> None:
    """Refuse the clauses of a query that lowering does not look at, and nodes of unknown kinds.

    Raises:
        MillstreamError: UNSUPPORTED_SQL.
    """
    for found in unhandled(tree, NODES):
        raise _refusal(found, context)
    for node in tree.walk():
        if isinstance(node, exp.AggFunc):
            for found in _lost(node):
                raise _refusal(found, context)
        if not is_known(type(node)):
            raise unsupported(node.sql(dialect="spark", comments=False)[:60], node, context.sql)


def is_known(kind: type[exp.Expr]) -> bool:
    """Whether nodes of a class are taken apart, or printed as part of an expression."""
    return kind in NODES or kind in PARTS or issubclass(kind, exp.Condition | exp.Func | exp.UDTF)


def _lost(node: exp.AggFunc) -> Iterator[Unhandled]:
    """What an aggregate has besides expressions: its call is rebuilt from the expressions only."""
    for argument, value in node.args.items():
        is_name = isinstance(node, exp.AnonymousAggFunc) and argument == "this"
        if (
            value
            and not isinstance(value, exp.Expr | list)
            and argument != OF_AGGREGATES.get(type(node))
            and not is_name
        ):
            yield Unhandled(node, argument)


def _refusal(found: Unhandled, context: Context) -> MillstreamError:
    name = _CLAUSES.get(found.argument)
    if name is not None:
        return unsupported(name, found.place, context.sql)
    if isinstance(found.node, exp.Limit | exp.Offset) and found.argument == "this":
        word = found.node.key.upper()
        return unsupported(f"{word} after a query in parentheses here", found.place, context.sql, "write it inside")
    what = f"the clause {found.argument.strip('_').replace('_', ' ')}"
    return unsupported(what, found.place, context.sql, "leave it out")
