"""One SELECT to operators, clause by clause in the order they take effect.

FROM and joins, WHERE, GROUP BY and HAVING, window functions and QUALIFY, the SELECT list, DISTINCT, ORDER BY and LIMIT.
Subqueries in expressions are taken out before names are bound and joined to the rows where their values are needed.

A correlated subquery is lowered by the same clauses. The columns that match its rows with rows of the outer query are
kept to the end: as a further grouping key, a further PARTITION BY, a further column of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from millstream.errors import Code, MillstreamError
from millstream.ops import Aggregate, Column, Filter, Item, OneRow, OuterJoin, Project, Relation
from millstream.ops.expressions import (
    add_columns,
    all_of,
    cases,
    col,
    compare,
    conjuncts,
    is_not_null,
    keep,
    same,
    substitute,
    wrapped,
)
from millstream.ops.relations import referenced
from millstream.sql.lowering.aggregates import PARTS
from millstream.sql.lowering.column_names import named, own_name
from millstream.sql.lowering.conditions import with_inner_negations
from millstream.sql.lowering.context import Context, Ctes, Lowered, LowersQueries, Outer, UncarriedError
from millstream.sql.lowering.correlated import is_exact_number
from millstream.sql.lowering.from_clause import FromClause
from millstream.sql.lowering.group import Grouping, aggregates_in, calls_in, value_of_no_rows
from millstream.sql.lowering.grouping_sets import groupings
from millstream.sql.lowering.lateral import Generator, generated, generator_of
from millstream.sql.lowering.refused_clauses import refuse_aggregates, refuse_group_clauses, refuse_in_expression
from millstream.sql.lowering.scalar_subqueries import ScalarSubqueries, fill, placeholders_in
from millstream.sql.lowering.scope import Scope, Visible
from millstream.sql.lowering.subqueries import Subqueries
from millstream.sql.lowering.top_n import Limits, first_rows
from millstream.sql.lowering.windows import Windows, with_named_windows
from millstream.sql.parse import position_of
from millstream.sql.refusals.unsupported import invalid, unsupported
from millstream.sql.result_types import typed


@dataclass(frozen=True)
class Tie:
    """A column of a subquery that must equal an expression of the outer query."""

    column: str
    outer: exp.Expr
    is_null_safe: bool

    @property
    def condition(self) -> exp.Expr:
        """The tie as a join condition."""
        return (same if self.is_null_safe else _equal)(col(self.column), self.outer)


@dataclass
class Select:
    """A SELECT being lowered: `relation` has the rows so far, the rest is expressed over its columns."""

    lowering: LowersQueries
    ctes: Ctes
    node: exp.Select
    outer: Outer | None = None
    relation: Relation = field(init=False)
    scope: Scope = field(init=False)
    names: list[str] = field(default_factory=list)
    outputs: list[exp.Expr] = field(default_factory=list)
    order: list[exp.Ordered] = field(default_factory=list)
    qualify: exp.Expr | None = None
    outside: list[exp.Expr] = field(default_factory=list)
    """Conditions of the WHERE that refer to the outer query."""
    ties: list[Tie] = field(default_factory=list)
    empty: tuple[exp.Expr, ...] | None = None
    is_single: bool = False
    scalars: ScalarSubqueries = field(init=False)
    """The subqueries in its expressions."""

    def __post_init__(self) -> None:
        self.scalars = ScalarSubqueries(self.lowering, self.ctes)

    @property
    def context(self) -> Context:
        """The text, and what is known about it."""
        return self.lowering.context

    def lowered(self) -> Lowered:
        """The SELECT as operators."""
        limits = Limits.of(self.node, self.context)
        self._from()
        self._where()
        self._select_list()
        self._order_by(limits)
        if self._has_groups():
            self._group()
        else:
            self._attach(self.scope, self._expressions())
        self._windows()
        return self._result(limits)

    # Rows

    def _from(self) -> None:
        from_ = self.node.args.get("from_")
        self.scope = Scope(self.context.sql, outer=self.outer.inside if self.outer else None)
        clause = FromClause(self.lowering, self.ctes, self.scope)
        first = self.outer.domain() if self.outer and self.outer.carried else None
        if from_ is None:
            self.relation = OneRow() if first is None else first
        else:
            self.relation = clause.relation(from_.this, self.node.args.get("joins") or (), first=first)
        for lateral in self.node.args.get("laterals") or ():
            self.relation = clause.lateral_view(self.relation, lateral)

    def _where(self) -> None:
        where = self.node.args.get("where")
        conditions = conjuncts(with_inner_negations(where.this)) if where else []
        subqueries = Subqueries(self.lowering, self.ctes, self.scope)
        self.relation, self.outside = subqueries.where(self.relation, conditions)
        if self.outer is None:
            return
        if self.outer.carried:
            self._require_carried(self.outside)
            self.ties = [Tie(c.name, col(name), True) for name, c in self.outer.carried.items()]
        elif self.outside and (self.outer.needs_keys or self._combines_rows()):
            self._tie()

    def _combines_rows(self) -> bool:
        """Whether a row's result depends on other rows, so that rows of different outer rows must stay separate."""
        clauses = ("group", "having", "distinct", "qualify", "limit", "offset")
        return any(self.node.args.get(c) for c in clauses) or any(
            e.find(exp.Window) or next(aggregates_in(e), None) for e in self.node.expressions
        )

    def _tie(self) -> None:
        """Turn conditions into ties; conditions other than equalities need the outer columns carried in."""
        assert self.outer is not None
        columns = {c.name for c in self.relation.columns}
        found: list[tuple[exp.Expr, exp.Expr, bool]] = []
        for condition in self.outside:
            sides = _sides(condition.unnest(), columns)
            if sides is None or not self._have_one_type(*sides):
                self._require_carried(self.outside)
            else:
                found.append((*sides, isinstance(condition.unnest(), exp.NullSafeEQ)))
        computed = [inner for inner, _, _ in found if not isinstance(inner, exp.Column)]
        items = iter(self._computed(computed, "key"))
        for inner, outer, is_null_safe in found:
            name = inner.name if isinstance(inner, exp.Column) else next(items).column.name
            self.ties.append(Tie(name, outer, is_null_safe))
        self.outside = []

    def _have_one_type(self, inner: exp.Expr, outer: exp.Expr) -> bool:
        """Whether two values of the inner side cannot both be equal to one of the outer side."""
        assert self.outer is not None
        if not referenced(outer) <= {c.name for c in self.outer.relation.columns}:
            return False
        (left,) = typed(self.context.analyzer, self.relation, [inner])
        (right,) = typed(self.context.analyzer, self.outer.relation, [outer])
        return left.type == right.type or (is_exact_number(left.type) and is_exact_number(right.type))

    def _computed(self, expressions: Sequence[exp.Expr], name: str) -> list[Item]:
        """Add columns to the rows."""
        types = typed(self.context.analyzer, self.relation, expressions)
        items = [
            Item(e, Column(self.context.namer.fresh(name), t.type)) for e, t in zip(expressions, types, strict=True)
        ]
        if items:
            self.relation = Project(self.relation, add_columns(self.relation, items))
        return items

    def _require_carried(self, expressions: Sequence[exp.Expr]) -> None:
        known = {c.name for c in self.relation.columns}
        if missing := {name for e in expressions for name in referenced(e)} - known:
            raise UncarriedError(missing | (self.outer.carried.keys() if self.outer else set()))

    # Expressions

    def _expressions(self) -> list[exp.Expr]:
        qualify = [self.qualify] if self.qualify is not None else []
        return [*self.outputs, *(o.this for o in self.order), *qualify]

    def _rewrite(self, rewrite: Callable[[exp.Expr], exp.Expr]) -> None:
        """Rewrite every expression that is still to be computed."""
        self.outputs = [rewrite(e) for e in self.outputs]
        self.order = [_ordered(o, rewrite(o.this)) for o in self.order]
        self.qualify = rewrite(self.qualify) if self.qualify is not None else None

    def _select_list(self) -> None:
        for item in self.node.expressions:
            if isinstance(item, exp.Star):
                self._star(item, self.scope.columns)
            elif isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
                self._star(item.this, self._columns_of(item))
            elif (call := generator_of(item.this if isinstance(item, exp.Aliases) else item.unalias())) is not None:
                self._generator(item, call)
            else:
                bound = self._bound(item.unalias())
                self.outputs.append(bound)
                self.names.append(own_name(item))
                if item.alias:
                    self.scope.aliases.setdefault(item.alias.lower(), bound)
        self.names = named(self.names, self.node, self.ctes, self.context)
        if qualify := self.node.args.get("qualify"):
            self.qualify = self._bound(qualify.this)

    def _generator(self, item: exp.Expr, call: Generator) -> None:
        """A generator in the SELECT list: rows are repeated before anything else is computed from them."""
        if self.node.args.get("group") or any(next(aggregates_in(e), None) for e in self.node.expressions):
            hint = "generate the rows in a subquery of FROM"
            raise unsupported("a generator next to aggregates", item, self.context.sql, hint)
        if any(e.find(exp.Query) for e in call.arguments):
            hint = "compute it in a subquery of FROM"
            raise unsupported("a subquery in a generator", item, self.context.sql, hint)
        self.relation, added = generated(self.relation, call, self._bound, self.context, item)
        names = [e.name for e in item.expressions] if isinstance(item, exp.Aliases) else [item.alias] * bool(item.alias)
        if names and len(names) != len(added):
            raise invalid(f"{len(added)} columns are given {len(names)} names", item, self.context.sql)
        for visible, name in zip(added, names or [v.name for v in added], strict=True):
            self.outputs.append(col(visible.column.name))
            self.names.append(name)

    def _columns_of(self, item: exp.Column) -> Sequence[Visible]:
        if item.table.lower() in self.scope.tables:
            return self.scope.tables[item.table.lower()]
        raise MillstreamError(
            Code.UNKNOWN_TABLE,
            f"{item.table}.* names no table of the FROM clause",
            position=position_of(item),
            sql=self.context.sql,
            hint=f"the tables are: {', '.join(self.scope.tables)}",
        )

    def _star(self, star: exp.Star, columns: Sequence[Visible]) -> None:
        if star.args.get("replace") or star.args.get("rename"):
            raise unsupported("* REPLACE", star, self.context.sql, "name the columns")
        excluded = {e.name.lower(): e for e in star.args.get("except_") or ()}
        for name, node in excluded.items():
            if all(v.name.lower() != name for v in columns):
                raise invalid(f"EXCEPT names {node.name}, which is not a column of *", node, self.context.sql)
        for visible in columns:
            if visible.name.lower() not in excluded:
                self.outputs.append(col(visible.column.name))
                self.names.append(visible.name)

    def _order_by(self, limits: Limits | None) -> None:
        """The keys of an ORDER BY that determines which rows are kept: ordinals, aliases, else expressions."""
        for ordered in limits.order if limits else ():
            key = ordered.this
            if isinstance(key, exp.Literal) and key.is_int:
                if not 1 <= int(key.name) <= len(self.outputs):
                    raise invalid(f"ORDER BY {key.name} is outside the SELECT list", ordered, self.context.sql)
                bound = self.outputs[int(key.name) - 1]
            elif isinstance(key, exp.Column) and not key.table and key.name.lower() in map(str.lower, self.names):
                bound = self.outputs[[n.lower() for n in self.names].index(key.name.lower())]
            elif isinstance(key, exp.Column | exp.Var) and key.name.upper() == "ALL":
                self.order += [_ordered(ordered, output) for output in self.outputs]
                continue
            else:
                bound = self._bound_to_outputs(key)
            self.order.append(_ordered(ordered, bound))

    def _bound_to_outputs(self, expression: exp.Expr) -> exp.Expr:
        """An expression of ORDER BY: a name in it is an output column first, except inside an aggregate."""
        outputs = {name.lower(): output for name, output in zip(self.names, self.outputs, strict=True)}

        def resolve(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.AggFunc):
                return self.scope.bind(node)
            if not isinstance(node, exp.Column):
                return node
            output = None if node.table else outputs.get(node.name.lower())
            return wrapped(output) if output is not None else self.scope.bind(node)

        return self._bound(expression, lambda e: e.transform(resolve))

    def _bound(self, expression: exp.Expr, bind: Callable[[exp.Expr], exp.Expr] | None = None) -> exp.Expr:
        """An expression with names bound; subqueries are taken out, to be joined later."""
        expression = self.scalars.taken_out(with_named_windows(expression, self.node, self.context))
        refuse_in_expression(expression, self.context, windows=True)
        bound = (bind or self.scope.bind)(expression)
        self._require_carried([bound])
        return bound

    def _attach(self, scope: Scope, expressions: Sequence[exp.Expr]) -> None:
        """Join the subqueries of some expressions to the rows, and put their values in place of the placeholders."""
        if placeholders_in(expressions):
            self.relation, found = self.scalars.attached(self.relation, scope, expressions)
            self._rewrite(lambda e: fill(e, found))

    def _attach_arguments(self) -> None:
        """Like `_attach`, for arguments of aggregates only."""
        calls = [call for e in self._expressions() for call in calls_in(e)]
        if placeholders_in(calls):
            self.relation, found = self.scalars.attached(self.relation, self.scope, calls)
            self._rewrite(
                lambda e: e.transform(lambda n: fill(n, found) if isinstance(n, exp.Filter | exp.AggFunc) else n)
            )

    # GROUP BY and HAVING

    def _has_groups(self) -> bool:
        calls = any(next(aggregates_in(e), None) for e in self._expressions())
        return bool(self.node.args.get("group") or self.node.args.get("having") or calls)

    def _group(self) -> None:
        # an aggregate's argument is computed for each row, the rest once for each group
        self._attach_arguments()
        keys, sets = self._keys()
        grouping = Grouping(self.relation, self.scope, self.context)
        for key in keys:
            grouping.add_key(key)
        if sets is not None:
            if any(grouping.has_key(col(t.column)) for t in self.ties):
                what = "grouping sets with a column that is compared with the outer query"
                raise unsupported(what, self.node, self.context.sql, "group in a subquery of FROM")
            grouping.set_sets(sets)
        for tie in self.ties:
            grouping.add_key(col(tie.column))
        having = self._having(grouping)
        self._rewrite(grouping.rewrite)
        self.ties = [Tie(grouping.rewrite(col(t.column)).name, t.outer, t.is_null_safe) for t in self.ties]
        self._refuse_subqueries(grouping)
        self.relation = grouped = grouping.build()
        self.is_single = not keys and sets is None
        if self.is_single and self.ties:
            self._give_no_rows_a_value(grouped)
        after = self.scope.over({e.name: name for e, name in grouping.keys if isinstance(e, exp.Column)})
        if having is not None:
            self.relation, found = self.scalars.attached(self.relation, after, [having], conjuncts(having))
            self.relation = Filter(self.relation, fill(having, found))
        self._attach(after, self._expressions())

    def _give_no_rows_a_value(self, grouped: Aggregate) -> None:
        """Give an outer row that no rows match the aggregates over no rows.

        Usually it is enough to record the SELECT list's values for it. If something else is computed from the
        aggregates, or columns are carried in anyway, add a row for each combination of the outer columns.
        """
        assert self.outer is not None
        nothing = {item.column.name: value_of_no_rows(item) for item in grouped.calls}
        if self.outer.carried:
            self.relation = self._with_rows_for_all(grouped, nothing)
            return
        clauses = ("having", "qualify", "limit", "offset", "distinct")
        computed = any(e.find(exp.Window) or placeholders_in([e]) for e in self.outputs)
        if not self.outer.takes_empty or computed or any(self.node.args.get(clause) for clause in clauses):
            raise UncarriedError(name for tie in self.ties for name in referenced(tie.outer))
        self.empty = tuple(substitute(e, nothing) for e in self.outputs)

    def _with_rows_for_all(self, grouped: Aggregate, nothing: Mapping[str, exp.Expr]) -> Relation:
        """The groups by the carried columns, including those without rows."""
        assert self.outer is not None
        marker = Column(self.context.namer.fresh("found"), "boolean")
        marked = Project(grouped, (*keep(grouped.schema), Item(exp.true(), marker)))
        # ties are in the order of the carried columns they were made from
        pairs = [(carried, tie.column) for carried, tie in zip(self.outer.carried.values(), self.ties, strict=True)]
        agree = all_of(same(col(carried.name), col(key)) for carried, key in pairs)
        joined = OuterJoin("left", self.outer.domain(), marked, agree)
        outside = {key: col(carried.name) for carried, key in pairs}
        items = [Item(outside[i.column.name], i.column) for i in grouped.keys]
        items += [
            Item(cases((is_not_null(col(marker.name)), col(c.column.name)), otherwise=nothing[c.column.name]), c.column)
            for c in grouped.calls
        ]
        return Project(joined, tuple(items))

    def _keys(self) -> tuple[list[exp.Expr], list[list[exp.Expr]] | None]:
        """The keys and, with several groupings, the sets of keys."""
        group = self.node.args.get("group")
        if group is None:
            return [], None
        refuse_group_clauses(group, self.context)
        if group.args.get("all"):
            keys = [e for e in self.outputs if next(aggregates_in(e), None) is None]
            return [self._plain_key(key, group) for key in keys], None
        found = groupings(group, self.context)
        keys = [self._key(key, group) for key in found.keys]
        return keys, [[self._key(key, group) for key in s] for s in found.sets] if found.sets is not None else None

    def _key(self, key: exp.Expr, group: exp.Group) -> exp.Expr:
        """A key may be an ordinal, a column, an alias of the SELECT list, or an expression."""
        if isinstance(key, exp.Literal) and key.is_int:
            if not 1 <= int(key.name) <= len(self.outputs):
                raise invalid(f"GROUP BY {key.name} is outside the SELECT list", group, self.context.sql)
            bound = self.outputs[int(key.name) - 1]
        else:
            bound = self._bound(key)
        refuse_aggregates(bound, "GROUP BY", self.context)
        return self._plain_key(bound, group)

    def _plain_key(self, key: exp.Expr, group: exp.Group) -> exp.Expr:
        if placeholders_in([key]):
            raise unsupported("a subquery in GROUP BY", group, self.context.sql, "compute it in a subquery of FROM")
        return key

    def _refuse_subqueries(self, grouping: Grouping) -> None:
        """Refuse a subquery in an aggregate that occurs only in HAVING."""
        if placeholders_in(e for e, _ in (*grouping.arguments, *grouping.calls)):
            hint = "compute the aggregate in the SELECT list of a subquery of FROM"
            raise unsupported("a subquery in an aggregate of HAVING", self.node, self.context.sql, hint)

    def _having(self, grouping: Grouping) -> exp.Expr | None:
        """Bind HAVING: outside aggregates, a name is a grouped column, else an alias of the SELECT list."""
        having = self.node.args.get("having")
        if having is None:
            return None
        predicate = self.scalars.taken_out(having.this)
        refuse_in_expression(predicate, self.context)

        def resolve(node: exp.Expr) -> exp.Expr:
            if isinstance(node, PARTS):
                return self.scope.bind(node)
            if not isinstance(node, exp.Column):
                return node
            bound, alias = self.scope.bind(node), None if node.table else self.scope.aliases.get(node.name.lower())
            return wrapped(alias) if alias is not None and not grouping.has_key(bound) else bound

        bound = predicate.transform(resolve)
        self._require_carried([bound])
        return grouping.rewrite(bound)

    # Window functions

    def _windows(self) -> None:
        windows = Windows(self.relation, self.context, tuple(t.column for t in self.ties))
        self._rewrite(windows.taken_out)
        self.relation = windows.build()
        if self.qualify is not None:
            self.relation = Filter(self.relation, self.qualify)
            self.qualify = None

    # The result

    def _result(self, limits: Limits | None) -> Lowered:
        wanted = [*self.outputs, *(o.this for o in self.order)]
        items = self._items(wanted)
        outputs = tuple(i.column for i in items[: len(self.outputs)])
        by = [_ordered(o, col(i.column.name)) for o, i in zip(self.order, items[len(outputs) :], strict=True)]
        behind = self._behind()
        self.relation = Project(self.relation, _once((*items, *keep(behind))))
        if distinct := self.node.args.get("distinct"):
            self._distinct(distinct, outputs, behind, by)
        if limits is not None:
            self.relation = first_rows(self.relation, [c.name for c in behind], by, limits, self.context)
        wanted_columns = _once(keep((*outputs, *behind)))
        if tuple(i.column for i in wanted_columns) != self.relation.schema:
            self.relation = Project(self.relation, wanted_columns)
        conditions = (*(t.condition for t in self.ties), *self.outside)
        single = self.is_single or (limits is not None and limits.count == 1)
        return Lowered(self.relation, tuple(self.names), (), conditions, self.empty, single)

    def _behind(self) -> tuple[Column, ...]:
        """The columns that match the result with the outer query."""
        names = {t.column for t in self.ties} | {n for c in self.outside for n in referenced(c)}
        return tuple(c for c in self.relation.columns if c.name in names)

    def _items(self, expressions: Sequence[exp.Expr]) -> list[Item]:
        """The SELECT list; a list that only picks columns keeps their names."""
        types = [c.type for c in typed(self.context.analyzer, self.relation, expressions)]
        names = [*self.names, *("sort" for _ in self.order)]
        items: list[Item] = []
        # the columns that match a subquery with the outer query are separate from the outputs
        taken: set[str] = {c.name.lower() for c in self._behind()}
        for position, (expression, name, type_) in enumerate(zip(expressions, names, types, strict=True)):
            known = next((i for i in items if i.expression == expression), None)
            if position >= len(self.names) and known is not None:
                items.append(known)
                continue
            plain = isinstance(expression, exp.Column) and expression.name.lower() not in taken
            column = Column(expression.name if plain else self.context.namer.fresh(name), type_)
            taken.add(column.name.lower())
            items.append(Item(expression, column))
        return items

    def _distinct(
        self, node: exp.Expr, outputs: Sequence[Column], behind: Sequence[Column], by: Sequence[exp.Ordered]
    ) -> None:
        if node.args.get("on"):
            raise unsupported("DISTINCT ON", self.node, self.context.sql)
        if {o.this.name for o in by} - {c.name for c in (*outputs, *behind)}:
            message = "with DISTINCT, ORDER BY may only name what is in the SELECT list"
            raise invalid(message, self.node.args["order"], self.context.sql)
        self.relation = Aggregate(self.relation, _once(keep((*outputs, *behind))), ())


def _once(items: Sequence[Item]) -> tuple[Item, ...]:
    """Each column once."""
    return tuple({item.column.name: item for item in reversed(items)}[name] for name in _names(items))


def _names(items: Sequence[Item]) -> Iterator[str]:
    return iter(dict.fromkeys(item.column.name for item in items))


def _ordered(ordered: exp.Ordered, expression: exp.Expr) -> exp.Ordered:
    return exp.Ordered(this=expression, desc=ordered.args.get("desc"), nulls_first=ordered.args.get("nulls_first"))


def _equal(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return compare(exp.EQ, left, right)


def _sides(condition: exp.Expr, columns: set[str]) -> tuple[exp.Expr, exp.Expr] | None:
    """An equality as its inner and its outer side."""
    if isinstance(condition, exp.EQ | exp.NullSafeEQ):
        for inner, outer in ((condition.this, condition.expression), (condition.expression, condition.this)):
            if referenced(inner) and referenced(inner) <= columns and not referenced(outer) & columns:
                return inner, outer
    return None
