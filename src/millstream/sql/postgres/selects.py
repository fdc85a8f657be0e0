"""SELECT: its list, its condition, its groups, DISTINCT and DISTINCT ON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce
from millstream.sql.postgres.default_names import default_name
from millstream.sql.postgres.expressions import Expressions
from millstream.sql.postgres.from_items import FromClause
from millstream.sql.postgres.group_by import GroupBy
from millstream.sql.postgres.groups_table import OverGroups, sets_of
from millstream.sql.postgres.names import Output, Scope, folded
from millstream.sql.postgres.order_and_limit import Items, OrderAndLimit
from millstream.sql.postgres.ordering import key_of
from millstream.sql.postgres.refusals import RefusalError, refuse_unequal, refused, wrong
from millstream.sql.postgres.spark_builders import (
    ONE,
    TRUE,
    Node,
    column,
    field,
    fn,
    op,
    own_name,
    quoted_name,
)
from millstream.sql.postgres.spark_queries import select, select_from, source, titled
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.windows import Over

if TYPE_CHECKING:
    from millstream.sql.postgres.queries import Translator

_PLACE, _ONE = "__ms_place", "__ms_one"


class SelectTranslation:
    """Translates one SELECT.

    Args:
        in_set: the SELECT is a side of a set operation, which determines the type of literals without one.
    """

    def __init__(self, translator: Translator, node: exp.Select, scope: Scope, *, in_set: bool) -> None:
        self._translator = translator
        self._node = node
        self._scope = scope
        self._in_set = in_set
        self._sql = translator.sql

    def query(self) -> tuple[exp.Query, tuple[Output, ...]]:
        """The query, translated to Spark, and its columns."""
        node = self._node
        rows = FromClause(self._translator, self._scope).read(node)
        windows = {folded(w.this): w for w in node.args.get("windows") or ()}
        expressions = Expressions(self._translator, self._scope, windows)
        items = self._items(expressions)
        columns = tuple(_output(name, value) for name, value in items)
        if not items and (self._in_set or node.args.get("distinct") or not isinstance(node.parent, exp.Exists)):
            raise RefusalError("SELECT without columns", "select a constant")
        if where := node.args.get("where"):
            rows.set("where", exp.Where(this=expressions.condition(where.this)))
        groups = GroupBy(expressions, items).groups(node.args.get("group"), rows)
        if groups is not None:
            expressions = OverGroups(expressions, groups)
            items = self._items(expressions)
        having = node.args.get("having")
        condition = expressions.condition(having.this) if having is not None else None
        grouped = self._group_clause(expressions, items) if groups is None else None
        tail, distinct = OrderAndLimit(node, self._sql), node.args.get("distinct")
        on = distinct.args.get("on") if distinct is not None else None
        if distinct is not None and on is None:
            refuse_unequal((c.type for c in columns), "DISTINCT")
        listed: list[Node] = [titled(value.tree, name) for name, value in items] or [titled(ONE, _ONE)]
        if on is not None:
            listed.append(titled(self._place(on, expressions, items), _PLACE))
        query = select_from(listed, rows)
        if on is None:
            if distinct is not None:
                query.set("distinct", exp.Distinct())
            tail.add_to(query, columns, expressions, items)
        if groups is not None:  # their columns are complete only after everything else has been translated
            query.set("from_", exp.From(this=groups.table()))
            query.set("joins", None)
            query.set("where", exp.Where(this=condition) if condition is not None else None)
        else:
            self._set_groups(query, grouped, condition)
        return (query if on is None else _first_rows(query, items, tail)), columns

    # GROUP BY and HAVING

    def _group_clause(self, expressions: Expressions, items: Items) -> exp.Group | None:
        group = self._node.args.get("group")
        if group is None or self._is_one_group:
            return None
        return GroupBy(expressions, items).clause(group)

    @property
    def _is_one_group(self) -> bool:
        """Whether all rows are one group, even without an aggregate."""
        group = self._node.args.get("group")
        return group is not None and sets_of(group) == [[]]

    def _set_groups(self, query: exp.Select, group: exp.Group | None, condition: Node | None) -> None:
        if group is not None:
            query.set("group", group)
        if condition is None and self._is_one_group:
            condition = TRUE
        if condition is not None:
            query.set("having", exp.Having(this=condition))

    # The select list

    def _items(self, expressions: Expressions) -> list[tuple[str, Value]]:
        """The select list; a literal without a type is a text, unless a set operation determines its type."""
        items = self._listed(expressions)
        if self._in_set:
            return items
        return [(name, coerce(v, t.TEXT) if v.type.name == "unknown" else v) for name, v in items]

    def _listed(self, expressions: Expressions) -> list[tuple[str, Value]]:
        items: list[tuple[str, Value]] = []
        for item in self._node.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                starred = self._star(item, expressions.visible)
                for name, _ in starred:
                    expressions.refuse_twin(name, expressions.visible.items)
                items += [(n, expressions.listed(v, item)) for n, v in starred]
            elif isinstance(item, exp.Dot) and isinstance(item.expression, exp.Star):
                record = expressions.translate(item.this)
                items += [(n, Value(field(record.tree, quoted_name(n)), type_)) for n, type_ in record.type.fields]
            elif isinstance(item, exp.Alias):
                items.append((folded(item.args["alias"]), expressions.scalar(item.this)))
            else:
                items.append((default_name(item), expressions.scalar(item)))
        return items

    def _star(self, node: exp.Expr, scope: Scope) -> list[tuple[str, Value]]:
        inner = node if isinstance(node, exp.Star) else node.this
        if any(inner.args.get(k) for k in ("except_", "replace", "rename")):
            raise refused("* EXCEPT", node, self._sql)
        table = folded(node.args.get("table")) if isinstance(node, exp.Column) else None
        if table:
            found = [i for i in scope.items if i.name == table]
            if not found:
                raise wrong(f"there is no table {table} in FROM", node, self._sql)
            return [(c.name, found[0].value(c)) for c in found[0].columns]
        columns = scope.unqualified()
        if not columns:
            raise wrong("SELECT * without FROM", node, self._sql)
        return columns

    # DISTINCT ON

    def _place(self, on: exp.Expr, expressions: Expressions, items: Items) -> Node:
        """The number of a row among those with equal DISTINCT ON keys, in the query's order."""
        nodes = on.expressions if isinstance(on, exp.Tuple) else [on]
        keys = tuple(self._meant(e, expressions, items).tree for e in nodes)
        order = self._node.args.get("order")
        sort = [key_of(o, self._meant(o.this, expressions, items)).tree for o in order.expressions] if order else []
        return Over(keys, tuple(sort) or keys, None).of(fn("ROW_NUMBER"))

    def _meant(self, node: exp.Expr, expressions: Expressions, items: Items) -> Value:
        """An expression of ORDER BY: a position or name in the select list, or else an expression over the input."""
        if isinstance(node, exp.Literal) and str(node.this).isdigit() and not node.is_string:
            if not 1 <= int(node.this) <= len(items):
                raise wrong(f"ORDER BY position {node.this} is not in the select list", node, self._sql)
            return items[int(node.this) - 1][1]
        if isinstance(node, exp.Column) and not node.args.get("table"):
            named = [value for title, value in items if title == folded(node.this)]
            if named:
                return named[0]
        return expressions.translate(node)


def _first_rows(numbered: exp.Select, items: Items, tail: OrderAndLimit) -> exp.Select:
    """The rows with number 1, sorted only if a LIMIT requires it."""
    query = select([column(name) for name, _ in items], source(numbered, own_name("__ms_d")))
    query.set("where", exp.Where(this=op(column(_PLACE), "=", 1)))
    if tail.has_limit:
        tail.add_to(query, [Output(n, v.type) for n, v in items])
    return query


def _output(name: str, value: Value) -> Output:
    constant = value.constant if value.type.name == "unknown" and isinstance(value.constant, str) else None
    return Output(name, value.type, constant)
