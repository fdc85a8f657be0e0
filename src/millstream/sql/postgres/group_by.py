"""GROUP BY: what its keys mean, and the clause for Spark."""

from __future__ import annotations

from sqlglot import exp

from millstream.sql.postgres.expressions import Expressions
from millstream.sql.postgres.groups_table import Groups, sets_of
from millstream.sql.postgres.names import folded
from millstream.sql.postgres.order_and_limit import Items
from millstream.sql.postgres.refusals import RefusalError, refuse_unequal, refused, wrong
from millstream.sql.postgres.spark_builders import Node, number
from millstream.sql.postgres.typed_expressions import Value


class GroupBy:
    """The keys of one SELECT.

    Args:
        expressions: translates expressions over the input.
        items: the select list; a key may name an item of it.
    """

    def __init__(self, expressions: Expressions, items: Items) -> None:
        self._expressions = expressions
        self._items = items
        self._sql = expressions.queries.sql

    def groups(self, group: exp.Group | None, rows: exp.Select) -> Groups | None:
        """The table of groups, if one of several grouping sets is empty: its group exists even without rows."""
        sets = sets_of(group) if group is not None else []
        if all(sets) or sets == [[]]:
            return None
        if self._expressions.scope.is_correlated:
            hint = "group in a subquery of FROM that does not, or leave the empty set out"
            raise RefusalError("the empty grouping set in a subquery that refers to the outer query", hint)
        keys: dict[Node, Value] = {}
        numbered: list[frozenset[int]] = []
        for nodes in sets:
            values = [self._key(node) for node in nodes]
            keys |= {value.tree: value for value in values}
            numbered.append(frozenset(list(keys).index(value.tree) for value in values))
        return Groups(rows, tuple(keys.values()), numbered)

    def _key(self, node: exp.Expr) -> Value:
        """A key that is computed for each row."""
        node = node.this if isinstance(node, exp.Paren) else node
        value = self._meant(node)
        if value.constant is not None or value.is_null:
            raise refused("a constant in GROUPING SETS, ROLLUP or CUBE", node, self._sql, "leave it out")
        return value

    def clause(self, node: exp.Group) -> exp.Group:
        """The clause for Spark."""
        # (a, b) is two columns here, but one set in GROUPING SETS
        listed = [x for e in node.expressions for x in (e.expressions if isinstance(e, exp.Tuple) else [e])]
        return exp.Group(expressions=[self._item(e) for e in listed])

    def _item(self, node: exp.Expr) -> Node:
        if isinstance(node, exp.GroupingSets | exp.Rollup | exp.Cube | exp.Tuple):
            return type(node)(expressions=[self._item(e) for e in node.expressions])
        if isinstance(node, exp.Paren):
            return exp.Paren(this=self._item(node.this))
        value = self._meant(node)
        if value.constant is None and not value.is_null:
            return value.tree
        values = [v for _, v in self._items]
        return number(values.index(value) + 1) if value in values else value.tree

    def _meant(self, node: exp.Expr) -> Value:
        """What a key means: a position or a name in the select list, or else an expression over the input."""
        if isinstance(node, exp.Literal) and not node.is_string:
            return self._by_place(node)
        name = folded(node.this) if isinstance(node, exp.Column) and not node.args.get("table") else None
        scope = self._expressions.scope
        if name is not None and name not in scope.shared and not list(scope.candidates(name, None)):
            named = [value for title, value in self._items if title == name]
            if named:
                return named[0]
        value = self._expressions.scalar(node)
        refuse_unequal([value.type], "GROUP BY")
        return value

    def _by_place(self, node: exp.Literal) -> Value:
        place = int(node.this) if str(node.this).isdigit() else 0
        if not 1 <= place <= len(self._items):
            raise wrong(f"GROUP BY position {node.this} is not in the select list", node, self._sql)
        value = self._items[place - 1][1]
        refuse_unequal([value.type], "GROUP BY")
        return value
