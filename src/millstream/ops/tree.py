"""Operator trees as indented text, for people and for golden files.

A relation that occurs in several places is written once, with a number, and referred to by that number afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.ops.relations import Relation
from millstream.ops.walk import occurrences


def format_tree(relation: Relation) -> str:
    """The tree, one operator per line, inputs below and to the right."""
    counts = occurrences((relation,))
    numbers: dict[Relation, int] = {}

    def lines(node: Relation, depth: int) -> Iterator[str]:
        indent = "  " * depth
        if node in numbers:
            yield f"{indent}#{numbers[node]} again"
            return
        label = ""
        if counts[node] > 1 and node.children:
            numbers[node] = len(numbers) + 1
            label = f"#{numbers[node]} "
        yield f"{indent}{label}{node.line}"
        for child in node.children:
            yield from lines(child, depth + 1)

    return "\n".join(lines(relation, 0))
