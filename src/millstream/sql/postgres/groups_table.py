"""The groups, as a table, of a GROUP BY whose sets include the empty one, which has a group even without rows.

Spark treats an empty set among others like any other set: no rows, no group. So the groups of the other sets and the
row of each empty one are computed separately, and the rest of the SELECT reads them as a table: its columns are the
keys, their GROUPING flags, and the aggregates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from millstream.errors import Code, MillstreamError
from millstream.sql.postgres import types as t
from millstream.sql.postgres.aggregates import grouping_number, is_aggregate
from millstream.sql.postgres.expressions import Expressions
from millstream.sql.postgres.names import Scope
from millstream.sql.postgres.refusals import RefusalError, wrong
from millstream.sql.postgres.spark_builders import NULL, ONE, Node, column, fn, own_name
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.spark_queries import select_from, source, titled, union_all
from millstream.sql.postgres.typed_expressions import Value

MOST_SETS = 64
GROUPS = "__ms_groups"
_SEVERAL = (exp.GroupingSets, exp.Rollup, exp.Cube)
_CALLS = (exp.GroupConcat, exp.JSONObjectAgg, exp.JSONArrayAgg, exp.Filter, exp.WithinGroup)


def sets_of(group: exp.Group) -> list[list[exp.Expr]]:
    """The sets of keys of a GROUP BY: each set of one item combined with each set of the others."""
    sets: list[list[exp.Expr]] = [[]]
    for item in group.expressions:
        own = _expanded(item)
        if len(sets) * len(own) > MOST_SETS:
            hint = f"write GROUPING SETS with the ones you need, up to {MOST_SETS}"
            raise RefusalError(f"grouping by {len(sets) * len(own)} sets of keys", hint)
        sets = [[*one, *other] for one in sets for other in own]
    return sets


def _expanded(item: exp.Expr) -> list[list[exp.Expr]]:
    if isinstance(item, exp.GroupingSets):
        return [keys for e in item.expressions for keys in _expanded(e)]
    if not isinstance(item, _SEVERAL):
        return [_unit(item)]
    units = [_unit(e) for e in item.expressions]
    if isinstance(item, exp.Rollup):
        return [[key for unit in units[:n] for key in unit] for n in range(len(units), -1, -1)]
    sets: list[list[exp.Expr]] = [[]]
    for unit in units:
        if len(sets) > MOST_SETS:
            raise RefusalError(f"CUBE of {len(units)} keys", "write GROUPING SETS with the sets you need")
        sets = [keys + more for keys in sets for more in (unit, [])]
    return sets


def _unit(item: exp.Expr) -> list[exp.Expr]:
    return list(item.expressions) if isinstance(item, exp.Tuple) else [item]


@dataclass
class Groups:
    """The table of groups of one SELECT; translating the rest of the SELECT adds its columns.

    Args:
        rows: a SELECT of only FROM and WHERE.
        keys: the keys, each once.
        sets: which keys each set has, by their numbers.
    """

    rows: exp.Select
    keys: Sequence[Value]
    sets: Sequence[frozenset[int]]
    aggregates: list[Value] = field(default_factory=list)

    def key(self, value: Value) -> Value | None:
        """The column of a key."""
        number = self._number(value)
        return Value(_column("k", number), value.type) if number is not None else None

    def grouping(self, value: Value) -> Node | None:
        """The column that is 1 where a key is not in the set."""
        number = self._number(value)
        return _column("g", number) if number is not None else None

    def aggregate(self, value: Value) -> Value:
        """The column of an aggregate, made once for equal ones."""
        known = [a.tree for a in self.aggregates]
        if value.tree not in known:
            self.aggregates.append(value)
            known.append(value.tree)
        return Value(_column("a", known.index(value.tree)), value.type)

    def table(self) -> exp.Subquery:
        """The table as an item of FROM."""
        present = [keys for keys in self.sets if keys]
        branches = [self._of_sets(present)] if present else []
        branches += [self._of_all_rows()] * (len(self.sets) - len(present))
        return source(union_all(branches), own_name(GROUPS))

    def _number(self, value: Value) -> int | None:
        return next((n for n, key in enumerate(self.keys) if key.tree == value.tree), None)

    def _of_sets(self, sets: Sequence[frozenset[int]]) -> exp.Select:
        keys = [key.tree for key in self.keys]
        flags = [cast(fn("GROUPING", key), t.INTEGER) for key in keys]
        query = select_from(self._list(keys, flags), self.rows)
        listed = [exp.Tuple(expressions=[keys[n] for n in sorted(members)]) for members in sets]
        query.set("group", exp.Group(expressions=[exp.GroupingSets(expressions=listed)]))
        return query

    def _of_all_rows(self) -> exp.Select:
        nothing = [cast(NULL, key.type) for key in self.keys]
        return select_from(self._list(nothing, [ONE] * len(nothing)), self.rows)

    def _list(self, keys: Sequence[Node], flags: Sequence[Node]) -> list[Node]:
        aggregates = [a.tree for a in self.aggregates] or [fn("COUNT", exp.Star())]
        columns: dict[str, Sequence[Node]] = {"k": keys, "g": flags, "a": aggregates}
        return [titled(node, _title(kind, n)) for kind in columns for n, node in enumerate(columns[kind])]


def _title(kind: str, number: int) -> str:
    return f"__ms_{kind}{number}"


def _column(kind: str, number: int) -> Node:
    return column(_title(kind, number), own_name(GROUPS))


class OverGroups(Expressions):
    """Translates the expressions of a SELECT over its groups; only the columns of outer queries are in scope."""

    def __init__(self, plain: Expressions, groups: Groups) -> None:
        super().__init__(plain.queries, Scope(outer=plain.scope.outer, ctes=plain.scope.ctes), plain.windows)
        self._plain = plain
        self._groups = groups

    @property
    def visible(self) -> Scope:
        """The scope whose columns `*` stands for."""
        return self._plain.scope

    def listed(self, value: Value, node: exp.Expr) -> Value:
        """A column that `*` stands for: it must be a key."""
        key = self._groups.key(value)
        if key is None:
            raise wrong("a column of * is not grouped", node, self.queries.sql, hint="name the columns")
        return key

    def translate(self, node: exp.Expr) -> Value:
        """An expression over keys and aggregates.

        Raises:
            MillstreamError: as for any expression; QUERY_INVALID if a column is neither grouped nor aggregated.
        """
        if isinstance(node, exp.Anonymous) and str(node.this).lower() == "grouping":
            return self._grouping_of(node)
        value = self._plain.translate(node)
        key = self._groups.key(value) if value.interval is None and not value.items else None
        if key is not None:
            return key
        if _is_call(node):
            return self._groups.aggregate(value)
        try:
            return super().translate(node)
        except MillstreamError as e:
            if e.code is not Code.UNKNOWN_COLUMN:
                raise
            hint = "group by it, aggregate it, or group in a subquery of FROM"
            message = "a column is neither grouped nor aggregated"
            raise wrong(message, node, self.queries.sql, hint=hint) from e

    def _grouping_of(self, node: exp.Anonymous) -> Value:
        flags = []
        for argument in node.expressions:
            flag = self._groups.grouping(self._plain.translate(argument))
            if flag is None:
                raise wrong("arguments of GROUPING must be grouping keys", argument, self.queries.sql)
            flags.append(flag)
        return grouping_number(flags)


def _is_call(node: exp.Expr) -> bool:
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Anonymous):
        return _is_call(node.expression)
    return isinstance(node, _CALLS) or (isinstance(node, exp.Anonymous) and is_aggregate(str(node.this).lower()))
