"""Walking and rebuilding operator trees.

A tree is a graph if a relation occurs in several places (a CTE read twice); rebuilding keeps it one relation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millstream.ops.relations import Relation


def walk(relation: Relation) -> Iterator[Relation]:
    """Each relation below and including this one, once, parents before their first child."""
    seen: set[Relation] = set()

    def visit(node: Relation) -> Iterator[Relation]:
        if node not in seen:
            seen.add(node)
            yield node
            for child in node.children:
                yield from visit(child)

    return visit(relation)


def transform(relation: Relation, rewrite: Callable[[Relation], Relation]) -> Relation:
    """Rewrite every node, children first."""
    done: dict[Relation, Relation] = {}

    def visit(node: Relation) -> Relation:
        if node not in done:
            done[node] = rewrite(node.over(tuple(visit(child) for child in node.children)))
        return done[node]

    return visit(relation)


def occurrences(roots: tuple[Relation, ...]) -> dict[Relation, int]:
    """In how many places each relation is read; the inputs of a relation that is read several times count once."""
    counts: dict[Relation, int] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        counts[node] = counts.get(node, 0) + 1
        if counts[node] == 1:
            waiting.extend(node.children)
    return counts
