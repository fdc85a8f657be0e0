"""What is known of a relation's size before it is computed."""

from __future__ import annotations

from collections.abc import Set

from millstream.ops import (
    Aggregate,
    AntiJoin,
    Filter,
    InnerJoin,
    OuterJoin,
    Project,
    Relation,
    Repeat,
    SemiJoin,
    Table,
    UnionAll,
    Window,
)


def is_small(relation: Relation, steps: Set[str] = frozenset()) -> bool:
    """Whether a relation is about the size of a change: a change feed, a step's result, or what is joined to one."""
    match relation:
        case Filter() if relation.few:
            return True
        case Table():
            return relation.is_weighted or relation.name in steps
        case Filter() | Project() | Aggregate() | Window() | Repeat():
            return is_small(relation.input, steps)
        case InnerJoin():
            return any(is_small(i, steps) for i in relation.inputs)
        case SemiJoin():
            return is_small(relation.left, steps) or is_small(relation.right, steps)
        case AntiJoin():
            return is_small(relation.left, steps)
        case OuterJoin():
            return is_small(relation.left, steps) and (relation.kind == "left" or is_small(relation.right, steps))
        case UnionAll():
            return all(is_small(i, steps) for i in relation.inputs)
    return False
