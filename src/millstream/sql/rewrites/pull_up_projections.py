"""Merge joins in subqueries into the join that reads them, so that the n-ary delta rule sees all inputs side by side.

`(SELECT a + 1 AS x FROM t JOIN u ...) JOIN v` becomes one join of t, u and v with `a + 1` computed above it. Without
this rewrite, a change of v would be joined with the subquery's old contents, which is the whole of t joined with the
whole of u.

A relation that is read in several places (a CTE) stays one, so that its delta is computed once. But a row of constants,
as in `WITH p AS (SELECT now() - INTERVAL 1 DAY AS since)`, is not joined: its values are inserted where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from sqlglot import exp

from millstream.ops import (
    Aggregate,
    AntiJoin,
    Filter,
    InnerJoin,
    Item,
    OneRow,
    Opaque,
    OuterJoin,
    Project,
    Relation,
    SemiJoin,
    UnionAll,
)
from millstream.ops.expressions import ONE, col, conjuncts, substitute
from millstream.ops.walk import occurrences
from millstream.sql.lowering.conditions import filtered


@dataclass(frozen=True)
class _Opened:
    """A relation as the inputs and conditions of a join, and its columns as expressions over those inputs."""

    inputs: tuple[Relation, ...]
    conditions: tuple[exp.Expr, ...]
    values: dict[str, exp.Expr]


def pull_up_projections(relation: Relation) -> Relation:
    """The same result, with joins below projections and filters merged into the join above."""
    counts = occurrences((relation,))
    done: dict[Relation, Relation] = {}

    def visit(node: Relation) -> Relation:
        if node not in done:
            rebuilt = node.over(tuple(visit(child) for child in node.children))
            done[node] = _with_own_joins(rebuilt, node, counts) if isinstance(rebuilt, InnerJoin) else rebuilt
        return done[node]

    return visit(relation)


def _with_own_joins(join: InnerJoin, before: Relation, counts: Mapping[Relation, int]) -> Relation:
    constants = [_is_one_row(child) for child in before.children]
    own = [_is_own_join(child, counts) for child in before.children]
    mergeable = [is_own or is_one for is_own, is_one in zip(own, constants, strict=True)]
    return _merged(join, mergeable) if any(mergeable) and not all(constants) else join


def _is_own_join(relation: Relation, counts: Mapping[Relation, int]) -> bool:
    """Whether there is a join below filters and projections that is read only here."""
    while counts[relation] == 1 and isinstance(relation, Filter | Project):
        relation = relation.input
    return counts[relation] == 1 and isinstance(relation, InnerJoin)


def _is_one_row(relation: Relation) -> bool:
    """Whether a relation is a row of constants, perhaps filtered."""
    while isinstance(relation, Filter | Project):
        relation = relation.input
    return isinstance(relation, OneRow)


def _merged(join: InnerJoin, mergeable: list[bool]) -> Relation:
    parts = [_opened(i) if is_own else _closed(i) for i, is_own in zip(join.inputs, mergeable, strict=True)]
    values = {name: value for part in parts for name, value in part.values.items()}
    conditions = [c for part in parts for c in part.conditions]
    conditions += [c for condition in join.conditions for c in conjuncts(substitute(condition, values))]
    inputs = tuple(i for part in parts for i in part.inputs)
    inner = filtered(InnerJoin(inputs, ()) if len(inputs) > 1 else inputs[0], conditions)
    return Project(inner, tuple(Item(values[c.name], c) for c in join.columns))


def _closed(relation: Relation) -> _Opened:
    return _Opened((relation,), (), {c.name: col(c.name) for c in relation.columns})


def _opened(relation: Relation) -> _Opened:
    match relation:
        case OneRow():
            return _Opened((), (), {c.name: ONE for c in relation.columns})
        case InnerJoin():
            return _Opened(relation.inputs, relation.conditions, {c.name: col(c.name) for c in relation.columns})
        case Filter():
            inner = _opened(relation.input)
            predicate = conjuncts(substitute(relation.predicate, inner.values))
            return _Opened(inner.inputs, (*inner.conditions, *predicate), inner.values)
        case Project():
            inner = _opened(relation.input)
            values = {i.column.name: substitute(i.expression, inner.values) for i in relation.items}
            return _Opened(inner.inputs, inner.conditions, values)
        case OuterJoin() | SemiJoin() | AntiJoin() | UnionAll() | Aggregate() | Opaque():
            raise TypeError(f"{type(relation).__name__} is not an inner join")
    assert_never(relation)
