"""ORDER BY with LIMIT and OFFSET: the first rows, selected by their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from millstream.ops import Column, Filter, Item, Relation, Window
from millstream.ops.expressions import all_of, col, compare
from millstream.sql.lowering.context import Context
from millstream.sql.lowering.windows import EQUALS_IN_ORDER
from millstream.sql.refusals.unsupported import unsupported


@dataclass(frozen=True)
class Limits:
    """Which rows of an order are wanted: `count` of them (None: all), after `skipped` others."""

    order: tuple[exp.Ordered, ...]
    count: int | None
    skipped: int

    @classmethod
    def of(cls, node: exp.Query, context: Context) -> Limits | None:
        """The limits of a query; None if it has none: an ORDER BY alone has no effect on a table."""
        limit, offset, order = (node.args.get(name) for name in ("limit", "offset", "order"))
        if limit is not None and isinstance(limit, exp.Limit) and limit.expression.sql().upper() == "ALL":
            limit = None
        if limit is None and offset is None:
            if order is not None:
                context.notices.append("ORDER BY is dropped: a table has no order, sort when you read it")
            return None
        if order is None:
            word = "LIMIT" if limit is not None else "OFFSET"
            raise unsupported(f"{word} without ORDER BY", node, context.sql, "say which rows with ORDER BY")
        count = _number(limit, "LIMIT", context) if limit is not None else None
        return cls(tuple(order.expressions), count, _number(offset, "OFFSET", context) if offset is not None else 0)


def first_rows(
    relation: Relation, partition: Sequence[str], by: Sequence[exp.Ordered], limits: Limits, context: Context
) -> Relation:
    """The wanted rows of each partition; the keys of `by` are columns."""
    number = Column(context.namer.fresh("row_number"), "int")
    window = exp.Window(
        this=exp.RowNumber(), partition_by=[col(p) for p in partition], order=exp.Order(expressions=list(by))
    )
    context.close_result("LIMIT", EQUALS_IN_ORDER)
    numbered = Window(relation, tuple(partition), (Item(window, number),))
    wanted: list[exp.Expr] = []
    if limits.skipped:
        wanted.append(compare(exp.GT, col(number.name), exp.Literal.number(limits.skipped)))
    if limits.count is not None:
        wanted.append(compare(exp.LTE, col(number.name), exp.Literal.number(limits.skipped + limits.count)))
    return Filter(numbered, all_of(wanted))


def _number(clause: exp.Expr, word: str, context: Context) -> int:
    value = clause.args.get("count") if isinstance(clause, exp.Fetch) else clause.expression
    if not (isinstance(value, exp.Literal) and value.is_int):
        raise unsupported(f"{word} with an expression", clause, context.sql, "write a number")
    return int(value.name)
