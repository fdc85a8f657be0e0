"""What is known of a relation's rows without looking at them: a key, and columns that are never NULL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from millstream.ops.relations import (
    Aggregate,
    AntiJoin,
    Filter,
    InnerJoin,
    Item,
    OuterJoin,
    Project,
    Relation,
    Scan,
    SemiJoin,
    Window,
)


@dataclass(frozen=True, slots=True)
class Known:
    """`key`: columns no two rows agree in, NULLs being equal, or None; `not_null`: columns without NULL."""

    key: frozenset[str] | None = None
    not_null: frozenset[str] = frozenset()

    def renamed(self, names: Mapping[str, str]) -> Known:
        """The same of a relation that has only some columns, under other names."""
        key = frozenset(names[k] for k in self.key) if self.key is not None and self.key <= names.keys() else None
        return Known(key, frozenset(names[n] for n in self.not_null if n in names))


def known(relation: Relation, sources: Mapping[str, Known]) -> Known:
    """What is known of a relation by what is known of its sources, whose columns are named in lower case."""
    match relation:
        case Scan():
            names = {
                origin.lower(): column.name for origin, column in zip(relation.origin, relation.output, strict=True)
            }
            return sources.get(relation.source, Known()).renamed(names)
        case Filter() | Window():
            return known(relation.input, sources)
        case Project():
            return known(relation.input, sources).renamed(_kept(relation.items))
        case SemiJoin() | AntiJoin():
            return known(relation.left, sources)
        case InnerJoin():
            return _joined([known(i, sources) for i in relation.inputs])
        case OuterJoin(kind="left"):
            left, right = known(relation.left, sources), known(relation.right, sources)
            return Known(_joined([left, right]).key, left.not_null)
        case Aggregate():
            kept = known(relation.input, sources).renamed(_kept(relation.keys))
            return Known(frozenset(i.column.name for i in relation.keys), kept.not_null)
    return Known()


def _kept(items: tuple[Item, ...]) -> dict[str, str]:
    """The columns that are handed on as they are, under their new names."""
    return {i.expression.name: i.column.name for i in items if isinstance(i.expression, exp.Column)}


def _joined(inputs: list[Known]) -> Known:
    keys = [i.key for i in inputs]
    key = frozenset[str]().union(*(k for k in keys if k is not None)) if all(k is not None for k in keys) else None
    return Known(key, frozenset[str]().union(*(i.not_null for i in inputs)))
