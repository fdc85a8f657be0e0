"""The clauses at the end of a query: ORDER BY, LIMIT, FETCH and OFFSET."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millstream.sql.postgres.expressions import Expressions
from millstream.sql.postgres.names import Output, folded
from millstream.sql.postgres.ordering import key_of
from millstream.sql.postgres.refusals import refused, wrong
from millstream.sql.postgres.spark_builders import column, number
from millstream.sql.postgres.typed_expressions import Value

Items = Sequence[tuple[str, Value]]
"""A select list: names and values."""


class OrderAndLimit:
    """The ORDER BY, LIMIT, FETCH and OFFSET of one query.

    Args:
        node: the query as it was written.
        sql: the text that contains it.
    """

    def __init__(self, node: exp.Expr, sql: str) -> None:
        self._node = node
        self._sql = sql

    @property
    def is_empty(self) -> bool:
        """Whether the query has none of these clauses."""
        return not any(self._node.args.get(clause) for clause in ("order", "limit", "offset"))

    @property
    def has_limit(self) -> bool:
        """Whether the query takes only some of its rows."""
        return bool(self._node.args.get("limit") or self._node.args.get("offset"))

    def add_to(
        self, query: exp.Query, columns: Sequence[Output], expressions: Expressions | None = None, items: Items = ()
    ) -> None:
        """Add the clauses to the translated query.

        Args:
            columns: the query's columns.
            expressions: translates sort keys that are not among them; None if only these are allowed.
            items: the select list, to which DISTINCT restricts ORDER BY.
        """
        if order := self._node.args.get("order"):
            listed = items if self._node.args.get("distinct") and expressions is not None else None
            values = [self._sort_value(o.this, columns, expressions, listed) for o in order.expressions]
            keys = [key_of(o, value).tree for o, value in zip(order.expressions, values, strict=True)]
            query.set("order", exp.Order(expressions=keys))
        limit, offset = self._node.args.get("limit"), self._node.args.get("offset")
        count = self._count(limit) if limit is not None else None
        if count is not None:
            query.set("limit", exp.Limit(expression=number(count)))
        if offset:
            query.set("offset", exp.Offset(expression=number(self._whole(offset.expression, "OFFSET"))))

    def _sort_value(
        self, node: exp.Expr, columns: Sequence[Output], expressions: Expressions | None, listed: Items | None
    ) -> Value:
        """What an ORDER BY sorts by; under DISTINCT, only an item of `listed`."""
        if isinstance(node, exp.Literal) and str(node.this).isdigit() and not node.is_string:
            if not 1 <= int(node.this) <= len(columns):
                raise wrong(f"ORDER BY position {node.this} is not in the select list", node, self._sql)
            return Value(number(node.this), columns[int(node.this) - 1].type)
        if isinstance(node, exp.Column) and not node.args.get("table"):
            named = [c for c in columns if c.name == folded(node.this)]
            if named:
                return Value(column(named[0].name), named[0].type)
        if expressions is None:
            raise refused("ORDER BY an expression here", node, self._sql, "order by an output column")
        value = expressions.translate(node)
        if listed is None:
            return value
        same = [Value(column(name), item.type) for name, item in listed if item.tree == value.tree]
        if not same:
            raise wrong("under SELECT DISTINCT, ORDER BY can only name what is selected", node, self._sql)
        return same[0]

    def _count(self, node: exp.Expr) -> int | None:
        if isinstance(node, exp.Fetch):
            options = node.args.get("limit_options")
            if options is not None and (options.args.get("with_ties") or options.args.get("percent")):
                raise refused("FETCH ... WITH TIES", node, self._sql, "use RANK() in a subquery")
            count = node.args.get("count")
            return self._whole(count, "FETCH") if count is not None else 1
        expression = node.expression
        if isinstance(expression, exp.Null) or (isinstance(expression, exp.Var) and expression.name.upper() == "ALL"):
            return None
        return self._whole(expression, "LIMIT")

    def _whole(self, node: exp.Expr, what: str) -> int:
        if isinstance(node, exp.Literal) and str(node.this).isdigit():
            return int(node.this)
        raise refused(f"{what} with anything but a number", node, self._sql)
