"""The values that some columns of a small relation can have, without computing the relation.

Keys that restrict another relation may be more than needed, so they need not be exactly those of this relation: the
keys of the change that restricts it are enough, and they are already computed. So is a relation that occurs in several
places, since it is computed once, before them, and it has fewer keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import assert_never

from sqlglot import exp

from millstream.ops import (
    Aggregate,
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    Item,
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
from millstream.ops.expressions import col, conjuncts


@dataclass(frozen=True)
class Bounds:
    """Finds the values.

    Args:
        small: the tables that are small although they are not change feeds.
        repeated: relations that are computed once and kept.
    """

    small: Set[str]
    repeated: Set[Relation]

    def of(self, relation: Relation, names: Sequence[str]) -> Relation | None:
        """Rows with all combinations of values that the columns can have; None if that takes a join to find out."""
        if self._is_at_hand(relation):
            types = {c.name: c for c in relation.columns}
            return Project(relation, tuple(Item(col(n), types[n]) for n in names))
        match relation:
            case Filter():
                return self.of(relation.input, names)
            case Project():
                return self._through(relation.input, names, {i.column.name: i.expression for i in relation.items})
            case Aggregate():
                return self._through(relation.input, names, {i.column.name: i.expression for i in relation.keys})
            case SemiJoin() if relation.right.is_small(self.small):
                equal = _equal_columns(relation.right, names, conjuncts(relation.condition))
                return self._through(relation.right, names, equal) or self.of(relation.left, names)
            case SemiJoin() | AntiJoin():
                return self.of(relation.left, names)
            case OuterJoin():
                is_left = relation.kind == "left" and set(names) <= {c.name for c in relation.left.columns}
                return self.of(relation.left, names) if is_left else None
            case InnerJoin():
                for part in relation.inputs:
                    equal = _equal_columns(part, names, relation.conditions)
                    if part.is_small(self.small) and (found := self._through(part, names, equal)):
                        return found
                return None
            case UnionAll():
                places = [[c.name for c in relation.columns].index(n) for n in names]
                parts = [self.of(i, [i.columns[p].name for p in places]) for i in relation.inputs]
                known = [p for p in parts if p is not None]
                return UnionAll(tuple(known)) if len(known) == len(parts) else None
            case Opaque():
                return None
        assert_never(relation)

    def _is_at_hand(self, relation: Relation) -> bool:
        """Whether the relation consists of rows that are already computed."""
        if relation in self.repeated:
            return relation.is_small(self.small)
        nodes = list(walk(relation))
        if any(isinstance(n, Join) for n in nodes):
            return False
        return all(n.is_small(self.small) for n in nodes if isinstance(n, Table))

    def _through(self, relation: Relation, names: Sequence[str], origin: Mapping[str, exp.Expr]) -> Relation | None:
        """The values of an input's columns, to which `origin` maps the names, under the requested names."""
        columns = [c for n in names if isinstance(c := origin.get(n), exp.Column)]
        if len(columns) < len(names):
            return None
        found = self.of(relation, list(dict.fromkeys(c.name for c in columns)))
        if found is None:
            return None
        types = {c.name: c.type for c in found.columns}
        pairs = zip(names, columns, strict=True)
        return Project(found, tuple(Item(col(c.name), Column(n, types[c.name])) for n, c in pairs))


def _equal_columns(relation: Relation, names: Sequence[str], conditions: Sequence[exp.Expr]) -> dict[str, exp.Expr]:
    """For each name, the relation's column of that name, or the column that a condition makes equal to it."""
    own = {c.name for c in relation.columns}
    found: dict[str, exp.Expr] = {n: col(n) for n in names if n in own}
    for condition in conditions:
        pair = condition.unnest()
        if not isinstance(pair, exp.EQ | exp.NullSafeEQ):
            continue
        for one, other in ((pair.left.unnest(), pair.right.unnest()), (pair.right.unnest(), pair.left.unnest())):
            if isinstance(one, exp.Column) and isinstance(other, exp.Column) and other.name in own:
                found.setdefault(one.name, col(other.name))
    return found
