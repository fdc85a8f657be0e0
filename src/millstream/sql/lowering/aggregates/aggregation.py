"""An aggregate call of the text, taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

PARTS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls, exp.AggFunc)
"""What an aggregate call is made of, the outermost first."""

# Spark's names for functions that the parser names differently, and one name for functions with several.
_NAMES = {
    "APPROX_DISTINCT": "APPROX_COUNT_DISTINCT",
    "APPROX_QUANTILE": "APPROX_PERCENTILE",
    "ARG_MAX": "MAX_BY",
    "ARG_MIN": "MIN_BY",
    "ARRAY_AGG": "COLLECT_LIST",
    "ARRAY_UNIQUE_AGG": "COLLECT_SET",
    "BITWISE_AND_AGG": "BIT_AND",
    "BITWISE_OR_AGG": "BIT_OR",
    "BITWISE_XOR_AGG": "BIT_XOR",
    "EVERY": "BOOL_AND",
    "GROUP_CONCAT": "LISTAGG",
    "LOGICAL_AND": "BOOL_AND",
    "LOGICAL_OR": "BOOL_OR",
    "MEAN": "AVG",
    "QUANTILE": "PERCENTILE",
    "SOME": "BOOL_OR",
    "STD": "STDDEV_SAMP",
    "STDDEV": "STDDEV_SAMP",
    "STRING_AGG": "LISTAGG",
    "VARIANCE": "VAR_SAMP",
    "VARIANCE_POP": "VAR_POP",
    "VAR_SAMP": "VAR_SAMP",
}


@dataclass(frozen=True)
class Aggregation:
    """A function with its arguments and its clauses: DISTINCT, ORDER BY, FILTER, RESPECT NULLS."""

    function: exp.AggFunc
    name: str
    arguments: tuple[exp.Expr, ...]
    is_distinct: bool = False
    order: tuple[exp.Ordered, ...] = ()
    condition: exp.Expr | None = None
    keeps_nulls: bool = False

    @property
    def expressions(self) -> Iterator[exp.Expr]:
        """All expressions over the rows of a group."""
        yield from self.arguments
        yield from self.order
        if self.condition is not None:
            yield self.condition


def take_apart(node: exp.Expr) -> Aggregation | None:
    """A node as an aggregate call; None if it is not one."""
    condition: exp.Expr | None = None
    order: tuple[exp.Ordered, ...] = ()
    keeps_nulls = False
    while isinstance(node, PARTS) and not isinstance(node, exp.AggFunc):
        if isinstance(node, exp.Filter):
            condition = node.expression.this
        elif isinstance(node, exp.WithinGroup):
            order = tuple(node.expression.expressions)
        keeps_nulls = keeps_nulls or isinstance(node, exp.RespectNulls)
        node = node.this
    if not isinstance(node, exp.AggFunc):
        return None
    arguments, inner_order, is_distinct = _arguments(node)
    return Aggregation(node, name_of(node), arguments, is_distinct, order or inner_order, condition, keeps_nulls)


def name_of(function: exp.AggFunc) -> str:
    """Spark's name for a function; one name for functions with several."""
    name = str(function.this) if isinstance(function, exp.AnonymousAggFunc) else function.sql_name()
    return _NAMES.get(name.upper(), name.upper())


def _arguments(function: exp.AggFunc) -> tuple[tuple[exp.Expr, ...], tuple[exp.Ordered, ...], bool]:
    """The arguments, and separately the ORDER BY and DISTINCT that may be among them."""
    values = [v for value in function.args.values() for v in (value if isinstance(value, list) else [value])]
    arguments = [v for v in values if isinstance(v, exp.Expr)]
    order: tuple[exp.Ordered, ...] = ()
    is_distinct = False
    if arguments and isinstance(arguments[0], exp.Order):
        order = tuple(arguments[0].expressions)
        arguments[:1] = [arguments[0].this]
    if arguments and isinstance(arguments[0], exp.Distinct):
        is_distinct = True
        arguments[:1] = arguments[0].expressions
    return tuple(arguments), order, is_distinct
