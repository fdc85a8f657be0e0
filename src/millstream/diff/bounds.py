"""Which values some columns of a small relation can have, without computing the relation.

Keys that restrict another relation may be more than needed, so that they need not be what this relation holds: those
of the change that it was restricted by will do, and they are at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from sqlglot import exp

from millstream.diff.size import is_small
from millstream.ops import (
    Aggregate,
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    Item,
    OuterJoin,
    Project,
    Relation,
    SemiJoin,
    Table,
    UnionAll,
    walk,
)
from millstream.ops.expressions import col


def bound(relation: Relation, names: Sequence[str], small: Set[str]) -> Relation | None:
    """Rows of the columns that hold all values these can have together; None where it takes joins to tell."""
    if _is_at_hand(relation, small):
        types = {c.name: c for c in relation.columns}
        return Project(relation, tuple(Item(col(n), types[n]) for n in names))
    match relation:
        case Filter():
            return bound(relation.input, names, small)
        case Project():
            return _through(relation.input, names, {i.column.name: i.expression for i in relation.items}, small)
        case Aggregate():
            return _through(relation.input, names, {i.column.name: i.expression for i in relation.keys}, small)
        case SemiJoin() if is_small(relation.right, small):
            told = _told(relation.right, names, conjuncts(relation.condition))
            found = _through(relation.right, names, told, small)
            return found or bound(relation.left, names, small)
        case SemiJoin() | AntiJoin():
            return bound(relation.left, names, small)
        case OuterJoin() if relation.kind == "left" and set(names) <= {c.name for c in relation.left.columns}:
            return bound(relation.left, names, small)
        case InnerJoin():
            for part in relation.inputs:
                if is_small(part, small) and (
                    found := _through(part, names, _told(part, names, relation.conditions), small)
                ):
                    return found
        case UnionAll():
            places = [[c.name for c in relation.columns].index(n) for n in names]
            parts = [bound(i, [i.columns[p].name for p in places], small) for i in relation.inputs]
            known = [p for p in parts if p is not None]
            return UnionAll(tuple(known)) if len(known) == len(parts) else None
    return None


def conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """The parts that all have to be true."""
    condition = condition.unnest()
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition]


def _is_at_hand(relation: Relation, small: Set[str]) -> bool:
    """Whether it is made of rows that are there already."""
    nodes = list(walk(relation))
    if any(isinstance(n, SemiJoin | AntiJoin | OuterJoin | InnerJoin) for n in nodes):
        return False
    return all(is_small(n, small) for n in nodes if isinstance(n, Table))


def _told(relation: Relation, names: Sequence[str], conditions: Sequence[exp.Expr]) -> dict[str, exp.Expr]:
    """The columns of the relation that the names are, or that conditions say they are equal to."""
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


def _through(
    relation: Relation, names: Sequence[str], origin: Mapping[str, exp.Expr], small: Set[str]
) -> Relation | None:
    """The same question to an input, whose columns `origin` gives, and its answer under the names asked for."""
    columns = [c for n in names if isinstance(c := origin.get(n), exp.Column)]
    if len(columns) < len(names):
        return None
    found = bound(relation, list(dict.fromkeys(c.name for c in columns)), small)
    if found is None:
        return None
    types = {c.name: c.type for c in found.columns}
    pairs = zip(names, columns, strict=True)
    return Project(found, tuple(Item(col(c.name), Column(n, types[c.name])) for n, c in pairs))
