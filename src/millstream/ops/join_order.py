"""The order in which the inputs of an inner join are joined."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millstream.ops.relations import Relation, referenced


def connected_order(start: Relation, others: Sequence[Relation], conditions: tuple[exp.Expr, ...]) -> list[Relation]:
    """Order inputs so that an equality links each to those before it, where that is possible."""
    ordered, waiting = [start], list(others)
    reached = {c.name for c in start.columns}
    while waiting:
        best = max(waiting, key=lambda r: _ties(r, reached, conditions))
        waiting.remove(best)
        ordered.append(best)
        reached |= {c.name for c in best.columns}
    return ordered


def _ties(relation: Relation, reached: set[str], conditions: tuple[exp.Expr, ...]) -> tuple[bool, bool]:
    """Whether an equality, and whether any condition, becomes usable by joining the relation next."""
    own = {c.name for c in relation.columns}
    usable = [c for c in conditions if (names := referenced(c)) & own and names & reached and names <= own | reached]
    return any(isinstance(c.unnest(), exp.EQ | exp.NullSafeEQ) for c in usable), bool(usable)
