"""Moves semi joins with a small relation down to the scans, and restricts what is joined to a small relation first.

Spark can send only the right input of a semi, anti or left join to every task. If the left input is a delta, Spark
sorts and shuffles the right one, which may be a large table, to look up a few keys in it. So:

- the right input of such a join is restricted to the keys of the left one, if that is small;
- a semi join with a small relation is moved below other semi and anti joins and into the one input of an inner join
  that its condition refers to, so that these also join a small relation;
- an input of an inner join that starts from a delta is restricted to the delta's keys, unless it is only a table.

The query computes the same, in another order; the rules need not know about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set
from typing import assert_never

from sqlglot import exp

from millstream.diff.bounds import Bounds
from millstream.diff.zset import renamed
from millstream.ops import (
    Aggregate,
    AntiJoin,
    Filter,
    InnerJoin,
    Join,
    Opaque,
    OuterJoin,
    Project,
    Relation,
    SemiJoin,
    Table,
    UnionAll,
    walk,
)
from millstream.ops.expressions import all_of, col, conjuncts, keep, substitute
from millstream.ops.join_order import connected_order
from millstream.ops.relations import referenced
from millstream.ops.walk import occurrences

KEY = "__ms_k"  # suffix of a left column's name: its value among the keys that restrict the right input


def narrow(relation: Relation, small: Set[str]) -> Relation:
    """The same relation; `small` names the tables that are small although they are not change feeds."""
    counts, narrowing = occurrences((relation,)), _Narrowing(small)
    done: dict[Relation, Relation] = {}

    def visit(node: Relation) -> Relation:
        if node not in done:
            done[node] = narrowing.visit(node.over(tuple(visit(child) for child in node.children)))
            if counts[node] > 1:
                narrowing.repeated.add(done[node])
        return done[node]

    return visit(relation)


@dataclasses.dataclass(frozen=True)
class _Narrowing:
    small: Set[str]
    repeated: set[Relation] = dataclasses.field(default_factory=set)
    """The relations that occur in several places."""

    def visit(self, node: Relation) -> Relation:
        """A join with its inputs narrowed; other operators do not look up rows of one input for another."""
        if not isinstance(node, Join):
            return node
        match node:
            case SemiJoin() if self._is_small(node.right):
                if _narrows(node):
                    return self._restricted(node.left, node.right, node.condition)
                return dataclasses.replace(node, small_right=True)
            case SemiJoin() | AntiJoin():
                return self._looked_up(node)
            case OuterJoin():
                return node if node.kind == "full" else self._looked_up(node)
            case InnerJoin():
                if not node.small_first:
                    return node
                first, *others = node.inputs
                asked = [self._asked_for(first, other, node.conditions) for other in others]
                return dataclasses.replace(node, inputs=(first, *asked))
        assert_never(node)

    def _is_small(self, relation: Relation) -> bool:
        return relation.is_small(self.small)

    def _looked_up(self, node: SemiJoin | AntiJoin | OuterJoin) -> Relation:
        """A join whose right input is restricted to the keys of the left one, if the left one is small."""
        right = node.right
        if not self._is_small(right):
            right = self._with_keys_of(node.left, right, conjuncts(node.condition))
            if right is node.right:
                return node
        return dataclasses.replace(node, right=right, small_right=True)

    def _asked_for(self, first: Relation, other: Relation, conditions: tuple[exp.Expr, ...]) -> Relation:
        """An input of an inner join, restricted to the keys of the first, unless it is only a table."""
        is_joined = any(isinstance(n, Join) for n in walk(other))
        return self._with_keys_of(first, other, conditions) if is_joined and not self._is_small(other) else other

    def _with_keys_of(self, asking: Relation, relation: Relation, conditions: Sequence[exp.Expr]) -> Relation:
        """The rows that can match a small relation by the equalities; all rows if it is not small."""
        here, there = {c.name for c in asking.columns}, {c.name for c in relation.columns}
        ties = [c for c in conditions if _ties(c, here, there)]
        if not ties or here & there or not (self._is_small(asking) and _comes_from_changes(asking)):
            return relation
        names = sorted({n for c in ties for n in referenced(c)} & here)
        asked = Bounds(self.small, self.repeated).of(asking, names) or asking
        types = {c.name: c for c in asked.columns}
        # a key that occurs twice does no harm in a semi join, and removing it would take an exchange
        keys = renamed(Project(asked, keep(types[n] for n in names)), KEY)
        condition = substitute(all_of(ties), {n: col(n + KEY) for n in names})
        if isinstance(relation, UnionAll) and _is_plain(relation):
            # a change among the inputs is already small; left as it is, it stays the relation that other places read
            parts = (i if self._is_small(i) else self._restricted(i, keys, condition) for i in relation.inputs)
            return UnionAll(tuple(parts))
        return self._restricted(relation, keys, condition)

    def _restricted(self, relation: Relation, keys: Relation, condition: exp.Expr) -> Relation:
        """The rows with a partner among the keys, restricted as far down as possible."""
        names = referenced(condition) - {c.name for c in keys.columns}
        match relation:
            case Filter():
                return dataclasses.replace(relation, input=self._restricted(relation.input, keys, condition))
            case Project():
                origin = {i.column.name: i.expression for i in relation.items}
                is_plain = all(isinstance(origin[n], exp.Column) for n in names)
                # a window function would see fewer rows
                looks_around = any(i.expression.find(exp.Window) for i in relation.items)
                if is_plain and not looks_around and not _share_names(relation.input, keys):
                    moved = substitute(condition, {n: origin[n] for n in names})
                    return Project(self._restricted(relation.input, keys, moved), relation.items)
            case SemiJoin() | AntiJoin():
                return self._looked_up(
                    dataclasses.replace(relation, left=self._restricted(relation.left, keys, condition))
                )
            case UnionAll() if _is_plain(relation):
                return UnionAll(tuple(self._restricted(i, keys, condition) for i in relation.inputs))
            case InnerJoin():
                for position, home in enumerate(relation.inputs):
                    if names <= {c.name for c in home.columns}:
                        return self._joined_outward(relation, position, self._restricted(home, keys, condition))
            case UnionAll() | OuterJoin() | Aggregate() | Opaque():
                pass
            case _:
                assert_never(relation)
        return SemiJoin(relation, keys, condition, small_right=True)

    def _joined_outward(self, relation: InnerJoin, position: int, start: Relation) -> Relation:
        """An inner join with one input restricted, joined outward from there."""
        others = [r for i, r in enumerate(relation.inputs) if i != position]
        inputs = connected_order(start, others, relation.conditions)
        return Project(InnerJoin(tuple(inputs), relation.conditions, small_first=True), keep(relation.schema))


def _narrows(node: SemiJoin) -> bool:
    """Whether few rows of the left input can have a partner."""
    here, there = ({c.name for c in side.columns} for side in (node.left, node.right))
    is_tied = any(_ties(c, here, there) for c in conjuncts(node.condition))
    return is_tied and not here & there and _comes_from_changes(node.right)


def _comes_from_changes(relation: Relation) -> bool:
    """Whether only few rows can have these keys; the keys of touched groups may be few and still match all rows."""
    return any((isinstance(n, Table) and n.is_weighted) or (isinstance(n, Filter) and n.few) for n in walk(relation))


def _is_plain(relation: UnionAll) -> bool:
    """Whether all inputs have the same column names."""
    return len({tuple(c.name for c in i.columns) for i in relation.inputs}) == 1


def _share_names(left: Relation, right: Relation) -> bool:
    return bool({c.name for c in left.columns} & {c.name for c in right.columns})


def _ties(condition: exp.Expr, left: Set[str], right: Set[str]) -> bool:
    """Whether a condition is an equality of an expression on the left with one on the right."""
    condition = condition.unnest()
    if not isinstance(condition, exp.EQ | exp.NullSafeEQ):
        return False
    sides = [referenced(condition.this), referenced(condition.expression)]
    return any(x and y and x <= left and y <= right for x, y in (sides, sides[::-1]))
