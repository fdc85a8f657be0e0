"""Queries: SELECT, set operations, WITH, and what PostgreSQL calls their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

from millstream.naming import quote
from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import beside, coerce
from millstream.sql.postgres.expressions import Expressions
from millstream.sql.postgres.from_items import FromClause, values_text
from millstream.sql.postgres.grouping import Groups, OverGroups, sets_of
from millstream.sql.postgres.names import Output, Scope, folded
from millstream.sql.postgres.ordering import key_of
from millstream.sql.postgres.refusals import RefusalError, refuse_unequal, refused, wrong
from millstream.sql.postgres.titles import title_of
from millstream.sql.postgres.values import Value, cast, unknown_literal
from millstream.sql.sources import Analyzer, Sources

Ctes = Mapping[str, tuple[Output, ...]]
PLACE, ONE = "__ms_place", "__ms_one"


class Translator:
    """Translates one text."""

    def __init__(self, sql: str, sources: Sources, analyzer: Analyzer) -> None:
        self.sql = sql
        self.sources = sources
        self.analyzer = analyzer
        self.notices: list[str] = []

    def subquery(self, node: exp.Expr, outer: Scope) -> tuple[str, tuple[Output, ...]]:
        """A query inside of an expression."""
        return self.query(node, outer, outer.ctes)

    def query(
        self, node: exp.Expr, outer: Scope | None, ctes: Ctes, *, in_set: bool = False
    ) -> tuple[str, tuple[Output, ...]]:
        """A query as Spark's text, and its columns.

        Args:
            in_set: a side of a set operation, which decides what literals without a type are.
        """
        try:
            with_text, ctes = self._with(node.args.get("with_"), outer, ctes)
            if isinstance(node, exp.SetOperation):
                text, columns = self._set_operation(node, outer, ctes)
            elif isinstance(node, exp.Select):
                text, columns = self._select(node, outer, ctes, in_set=in_set)
            elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
                if node.args.get("alias") or node.args.get("joins"):
                    raise RefusalError("a query in parentheses with an alias or a join", "write SELECT * FROM (...)")
                inner, columns = self.query(node.this, outer, ctes, in_set=True)
                text = f"({inner})"
                tail = self._tail(node, columns, None)
                text = f"SELECT * FROM {text}{tail}" if tail else text
            elif isinstance(node, exp.Values):
                text, columns = values_text(Expressions(self, Scope(outer=outer, ctes=ctes)), node)
            else:
                raise RefusalError(f"{node.sql(dialect='postgres')} as a query")
        except RefusalError as e:
            raise refused(e.what, node, self.sql, e.hint) from e
        if not in_set:
            text, columns = self._with_types(text, columns, tuple(_settled(c.type) for c in columns))
        return with_text + text, columns

    def _with_types(
        self, text: str, columns: tuple[Output, ...], wanted: tuple[t.Type, ...]
    ) -> tuple[str, tuple[Output, ...]]:
        """The same query with its columns cast, where they have other types."""
        result = tuple(Output(c.name, type_) for c, type_ in zip(columns, wanted, strict=True))
        if all(_alike(c.type, type_) for c, type_ in zip(columns, wanted, strict=True)):
            return text, result
        names = [quote(f"__ms_c{i}") for i in range(len(columns))]
        items = [
            f"{n if _alike(c.type, type_) else cast(n, type_)} AS {quote(c.name)}"
            for n, c, type_ in zip(names, columns, wanted, strict=True)
        ]
        return f"SELECT {', '.join(items)} FROM ({text}) AS __ms_s({', '.join(names)})", result

    # WITH

    def _with(self, node: exp.With | None, outer: Scope | None, ctes: Ctes) -> tuple[str, Ctes]:
        if node is None:
            return "", ctes
        known = dict(ctes)
        pieces = []
        recursive = bool(node.args.get("recursive"))
        for cte in node.expressions:
            name = folded(cte.args["alias"].this)
            if any(other != name and other.lower() == name.lower() for other in known):
                raise refused("queries of WITH whose names differ only by case", cte, self.sql, "rename one of them")
            given = [folded(c) for c in cte.args["alias"].args.get("columns") or ()]
            body = cte.this
            start: tuple[Output, ...] | None = None
            if recursive and isinstance(body, exp.SetOperation) and _reads(body, name):
                _, start = self.query(body.this, outer, known)
                known[name] = _renamed(start, given)
            text, columns = self.query(body, outer, known)
            if start is not None and not all(_alike(a.type, b.type) for a, b in zip(start, columns, strict=True)):
                hint = "cast the column to one type on both sides"
                raise refused("a recursion that changes the type of a column", cte, self.sql, hint)
            known[name] = _renamed(columns, given)
            pieces.append(f"{quote(name)}({', '.join(quote(c.name) for c in known[name])}) AS ({text})")
        return f"WITH {'RECURSIVE ' if recursive else ''}{', '.join(pieces)} ", known

    # Set operations

    def _set_operation(self, node: exp.SetOperation, outer: Scope | None, ctes: Ctes) -> tuple[str, tuple[Output, ...]]:
        left, left_columns = self.query(node.this, outer, ctes, in_set=True)
        right, right_columns = self.query(node.expression, outer, ctes, in_set=True)
        if len(left_columns) != len(right_columns):
            raise wrong("both sides of a set operation need as many columns", node, self.sql)
        wanted = []
        for one, two in zip(left_columns, right_columns, strict=True):
            type_ = t.common([_type_beside(one, two), _type_beside(two, one)])
            if type_ is None:
                raise refused(f"{node.key.upper()} of {one.type} and {two.type}", node, self.sql, "cast one of them")
            wanted.append(type_ if {one.type.name, two.type.name} != {"unknown"} else t.UNKNOWN)
        left, columns = self._with_types(left, left_columns, tuple(_settled(w) for w in wanted))
        right, _ = self._with_types(right, right_columns, tuple(_settled(w) for w in wanted))
        if node.args.get("distinct") or not isinstance(node, exp.Union):
            refuse_unequal(wanted, node.key.upper())
        word = f"{node.key.upper()}{'' if node.args.get('distinct') else ' ALL'}"
        tail = self._tail(node, columns, None)
        return f"{_side(node.this, left)} {word} {_side(node.expression, right)}{tail}", columns

    # SELECT

    def _select(
        self, node: exp.Select, outer: Scope | None, ctes: Ctes, *, in_set: bool
    ) -> tuple[str, tuple[Output, ...]]:
        scope = Scope(outer=outer, ctes=ctes)
        source = FromClause(self, scope).write(node)
        windows = {folded(w.this): w for w in node.args.get("windows") or ()}
        expressions = Expressions(self, scope, windows)
        items = self._items(node, expressions, in_set=in_set)
        columns = tuple(_output(name, value) for name, value in items)
        if not items and (in_set or node.args.get("distinct") or not isinstance(node.parent, exp.Exists)):
            raise RefusalError("SELECT without columns", "select a constant")
        text = f" FROM {source}" if source else ""
        if where := node.args.get("where"):
            text += f" WHERE {expressions.condition(where.this)}"
        groups = self._groups(node.args.get("group"), expressions, items, text)
        if groups is not None:
            expressions = OverGroups(expressions, groups)
            items = self._items(node, expressions, in_set=in_set)
        condition = self._having(node, expressions, items, is_table=groups is not None)

        def rows() -> str:
            """FROM and what follows it; the groups have all their columns once everything else is translated."""
            return (f" FROM {groups.text()}" if groups is not None else text) + condition

        distinct = node.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            return self._distinct_on(node, expressions, items, rows), columns
        if distinct is not None:
            refuse_unequal((c.type for c in columns), "DISTINCT")
        listed = ", ".join(_aliased(name, value) for name, value in items) or f"1 AS {quote(ONE)}"
        head = f"SELECT {'DISTINCT ' if distinct is not None else ''}{listed}"
        tail = self._tail(node, columns, expressions, items)
        return head + rows() + tail, columns

    def _items(self, node: exp.Select, expressions: Expressions, *, in_set: bool) -> list[tuple[str, Value]]:
        """The select list; a literal without a type is a text, unless a set operation decides."""
        items = self._listed(node, expressions)
        if in_set:
            return items
        return [(name, coerce(v, t.TEXT) if v.type.name == "unknown" else v) for name, v in items]

    def _listed(self, node: exp.Select, expressions: Expressions) -> list[tuple[str, Value]]:
        items: list[tuple[str, Value]] = []
        for item in node.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                starred = self._star(item, expressions.visible)
                for name, _ in starred:
                    expressions.refuse_twin(name, expressions.visible.items)
                items += [(n, expressions.listed(v, item)) for n, v in starred]
            elif isinstance(item, exp.Dot) and isinstance(item.expression, exp.Star):
                record = expressions.translate(item.this)
                items += [(n, Value(f"{record.sql}.{quote(n)}", type_)) for n, type_ in record.type.fields]
            elif isinstance(item, exp.Alias):
                items.append((folded(item.args["alias"]), expressions.scalar(item.this)))
            else:
                items.append((title_of(item), expressions.scalar(item)))
        return items

    def _star(self, node: exp.Expr, scope: Scope) -> list[tuple[str, Value]]:
        inner = node if isinstance(node, exp.Star) else node.this
        if any(inner.args.get(k) for k in ("except_", "replace", "rename")):
            raise refused("* EXCEPT", node, self.sql)
        table = folded(node.args.get("table")) if isinstance(node, exp.Column) else None
        if table:
            found = [i for i in scope.items if i.name == table]
            if not found:
                raise wrong(f"there is no table {table} in FROM", node, self.sql)
            return [(c.name, found[0].value(c)) for c in found[0].columns]
        columns = scope.unqualified()
        if not columns:
            raise wrong("SELECT * without FROM", node, self.sql)
        return columns

    # GROUP BY

    def _groups(
        self, group: exp.Group | None, expressions: Expressions, items: list[tuple[str, Value]], source: str
    ) -> Groups | None:
        """The table of groups, where one of them is there without rows: the empty set is among several."""
        sets = sets_of(group) if group is not None else []
        if all(sets) or sets == [[]]:
            return None
        if expressions.scope.is_correlated:
            hint = "group in a subquery of FROM that does not, or leave the empty set out"
            raise RefusalError("the empty grouping set in a subquery that refers to the query around it", hint)
        keys: dict[str, Value] = {}
        numbered: list[frozenset[int]] = []
        for nodes in sets:
            values = [self._key(node, expressions, items) for node in nodes]
            keys |= {value.sql: value for value in values}
            numbered.append(frozenset(list(keys).index(value.sql) for value in values))
        return Groups(source, tuple(keys.values()), numbered)

    def _key(self, node: exp.Expr, expressions: Expressions, items: list[tuple[str, Value]]) -> Value:
        """A key that is computed for each row."""
        node = node.this if isinstance(node, exp.Paren) else node
        value = self._grouped_by(node, expressions, items)
        if value.constant is not None or value.is_null:
            raise refused("a constant in GROUPING SETS, ROLLUP or CUBE", node, self.sql, "leave it out")
        return value

    def _having(
        self, node: exp.Select, expressions: Expressions, items: list[tuple[str, Value]], *, is_table: bool
    ) -> str:
        """GROUP BY and HAVING; over a table of groups the latter is a condition on its rows."""
        group, having = node.args.get("group"), node.args.get("having")
        condition = expressions.condition(having.this) if having is not None else None
        if is_table:
            return f" WHERE {condition}" if condition is not None else ""
        if group is not None and sets_of(group) == [[]]:  # one group of all rows, also without an aggregate
            return f" HAVING {condition or 'TRUE'}"
        text = self._group(group, expressions, items) if group is not None else ""
        return text + (f" HAVING {condition}" if condition is not None else "")

    def _group(self, node: exp.Group, expressions: Expressions, items: list[tuple[str, Value]]) -> str:
        # (a, b) are two columns here, as they are one set of GROUPING SETS
        listed = [x for e in node.expressions for x in (e.expressions if isinstance(e, exp.Tuple) else [e])]
        parts = [self._group_item(e, expressions, items) for e in listed]
        return f" GROUP BY {', '.join(parts)}"

    def _group_item(self, node: exp.Expr, expressions: Expressions, items: list[tuple[str, Value]]) -> str:
        if isinstance(node, exp.GroupingSets | exp.Rollup | exp.Cube):
            word = {exp.GroupingSets: "GROUPING SETS", exp.Rollup: "ROLLUP", exp.Cube: "CUBE"}[type(node)]
            return f"{word} ({', '.join(self._group_item(e, expressions, items) for e in node.expressions)})"
        if isinstance(node, exp.Tuple):
            return f"({', '.join(self._group_item(e, expressions, items) for e in node.expressions)})"
        if isinstance(node, exp.Paren):
            return f"({self._group_item(node.this, expressions, items)})"
        value = self._grouped_by(node, expressions, items)
        if value.constant is None and not value.is_null:
            return value.sql
        return str([v.sql for _, v in items].index(value.sql) + 1) if value in [v for _, v in items] else value.sql

    def _grouped_by(self, node: exp.Expr, expressions: Expressions, items: list[tuple[str, Value]]) -> Value:
        """What a key means: a place or a name in the select list, or else an expression over the input."""
        if isinstance(node, exp.Literal) and not node.is_string:
            return self._by_place(node, items)
        name = folded(node.this) if isinstance(node, exp.Column) and not node.args.get("table") else None
        if (
            name is not None
            and name not in expressions.scope.shared
            and not list(expressions.scope.candidates(name, None))
        ):
            named = [value for title, value in items if title == name]
            if named:
                return named[0]
        value = expressions.scalar(node)
        refuse_unequal([value.type], "GROUP BY")
        return value

    def _by_place(self, node: exp.Literal, items: list[tuple[str, Value]]) -> Value:
        place = int(node.this) if str(node.this).isdigit() else 0
        if not 1 <= place <= len(items):
            raise wrong(f"GROUP BY position {node.this} is not in the select list", node, self.sql)
        value = items[place - 1][1]
        refuse_unequal([value.type], "GROUP BY")
        return value

    # DISTINCT ON, ORDER BY, LIMIT

    def _distinct_on(
        self, node: exp.Select, expressions: Expressions, items: list[tuple[str, Value]], rows: Callable[[], str]
    ) -> str:
        """The first row of each group in the query's order: by its number there."""
        on = node.args["distinct"].args["on"]
        keys = [self._meant(e, expressions, items) for e in (on.expressions if isinstance(on, exp.Tuple) else [on])]
        order = node.args.get("order")
        sort = [key_of(o, self._meant(o.this, expressions, items)).text for o in order.expressions] if order else []
        partition = ", ".join(k.sql for k in keys)
        number = f"ROW_NUMBER() OVER (PARTITION BY {partition} ORDER BY {', '.join(sort) or partition})"
        inner = ", ".join([*(_aliased(name, value) for name, value in items), f"{number} AS {quote(PLACE)}"])
        outer = ", ".join(quote(name) for name, _ in items)
        tail = ""
        if node.args.get("limit") or node.args.get("offset"):
            columns = tuple(Output(n, v.type) for n, v in items)
            tail = self._tail(node, columns, None)
        return f"SELECT {outer} FROM (SELECT {inner}{rows()}) AS __ms_d WHERE {quote(PLACE)} = 1{tail}"

    def _meant(self, node: exp.Expr, expressions: Expressions, items: list[tuple[str, Value]]) -> Value:
        """An expression of ORDER BY: a place or name in the select list, or else an expression over the input."""
        if isinstance(node, exp.Literal) and str(node.this).isdigit() and not node.is_string:
            if not 1 <= int(node.this) <= len(items):
                raise wrong(f"ORDER BY position {node.this} is not in the select list", node, self.sql)
            return items[int(node.this) - 1][1]
        if isinstance(node, exp.Column) and not node.args.get("table"):
            named = [value for title, value in items if title == folded(node.this)]
            if named:
                return named[0]
        return expressions.translate(node)

    def _tail(
        self,
        node: exp.Expr,
        columns: tuple[Output, ...],
        expressions: Expressions | None,
        items: list[tuple[str, Value]] | None = None,
    ) -> str:
        text = ""
        if order := node.args.get("order"):
            listed = (items or []) if node.args.get("distinct") and expressions is not None else None
            keys = [key_of(o, self._sort_value(o.this, columns, expressions, listed)).text for o in order.expressions]
            text += f" ORDER BY {', '.join(keys)}"
        limit = node.args.get("limit")
        if limit is not None:
            text += self._limit(limit)
        if offset := node.args.get("offset"):
            text += f" OFFSET {self._whole(offset.expression, 'OFFSET')}"
        return text

    def _sort_value(
        self,
        node: exp.Expr,
        columns: tuple[Output, ...],
        expressions: Expressions | None,
        listed: list[tuple[str, Value]] | None,
    ) -> Value:
        """What an ORDER BY behind the query sorts by; under DISTINCT, `listed` are all it can be."""
        if isinstance(node, exp.Literal) and str(node.this).isdigit() and not node.is_string:
            if not 1 <= int(node.this) <= len(columns):
                raise wrong(f"ORDER BY position {node.this} is not in the select list", node, self.sql)
            return Value(node.this, columns[int(node.this) - 1].type)
        if isinstance(node, exp.Column) and not node.args.get("table"):
            named = [c for c in columns if c.name == folded(node.this)]
            if named:
                return Value(quote(named[0].name), named[0].type)
        if expressions is None:
            raise refused("ORDER BY an expression here", node, self.sql, "order by an output column")
        value = expressions.translate(node)
        if listed is None:
            return value
        same = [Value(quote(name), item.type) for name, item in listed if item.sql == value.sql]
        if not same:
            raise wrong("under SELECT DISTINCT, ORDER BY can only name what is selected", node, self.sql)
        return same[0]

    def _limit(self, node: exp.Expr) -> str:
        if isinstance(node, exp.Fetch):
            options = node.args.get("limit_options")
            if options is not None and (options.args.get("with_ties") or options.args.get("percent")):
                raise refused("FETCH ... WITH TIES", node, self.sql, "use RANK() in a subquery")
            count = node.args.get("count")
            return f" LIMIT {self._whole(count, 'FETCH') if count is not None else 1}"
        expression = node.expression
        if isinstance(expression, exp.Null) or (isinstance(expression, exp.Var) and expression.name.upper() == "ALL"):
            return ""
        return f" LIMIT {self._whole(expression, 'LIMIT')}"

    def _whole(self, node: exp.Expr, what: str) -> int:
        if isinstance(node, exp.Literal) and str(node.this).isdigit():
            return int(node.this)
        raise refused(f"{what} of what is not a number", node, self.sql)


def _aliased(name: str, value: Value) -> str:
    return f"{value.sql} AS {quote(name)}"


def _output(name: str, value: Value) -> Output:
    text = value.constant if value.type.name == "unknown" and isinstance(value.constant, str) else None
    return Output(name, value.type, text)


def _type_beside(column: Output, other: Output) -> t.Type:
    """A column's type; a literal's has the digits it is written with."""
    return beside(unknown_literal(column.constant), other.type).type if column.constant is not None else column.type


def _settled(type_: t.Type) -> t.Type:
    return t.TEXT if type_.name == "unknown" else type_


def _alike(one: t.Type, two: t.Type) -> bool:
    """Whether Spark needs no cast."""
    if one.name == "unknown" or one.name not in t.KNOWN:
        return one == two
    return one.spark == two.spark


def _renamed(columns: tuple[Output, ...], names: list[str]) -> tuple[Output, ...]:
    return tuple(Output(n, c.type) for n, c in zip(names, columns, strict=False)) + columns[len(names) :]


def _reads(node: exp.Expr, name: str) -> bool:
    return any(isinstance(x.this, exp.Identifier) and folded(x.this) == name for x in node.find_all(exp.Table))


def _side(node: exp.Expr, text: str) -> str:
    """A side of a set operation: in parentheses where it had them, or has become more than a plain SELECT."""
    if text.startswith("(") and text.endswith(")") and isinstance(node, exp.Subquery):
        return text
    bare = isinstance(node, exp.Select | exp.SetOperation) and not (
        node.args.get("order") or node.args.get("limit") or node.args.get("offset") or node.args.get("with_")
    )
    return text if bare else f"({text})"
