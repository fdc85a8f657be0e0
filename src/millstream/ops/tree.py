"""Operator trees as indented text, for people and for golden files.

A relation that stands in several places is written out once, with a number, and referred to by it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlglot import exp

from millstream.ops.relations import (
    Aggregate,
    AntiJoin,
    Filter,
    InnerJoin,
    Item,
    OneRow,
    OuterJoin,
    Project,
    Recursion,
    Relation,
    Repeat,
    Scan,
    SemiJoin,
    Table,
    Window,
)
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
        yield f"{indent}{label}{describe(node)}"
        for child in node.children:
            yield from lines(child, depth + 1)

    return "\n".join(lines(relation, 0))


def describe(relation: Relation) -> str:
    """One operator without its inputs."""
    match relation:
        case Scan():
            names = zip(relation.output, relation.origin, strict=True)
            return f"scan {relation.source}: " + ", ".join(f"{c.name} = {origin}" for c, origin in names)
        case Table():
            return f"table {relation.name}"
        case OneRow():
            return "one row"
        case Recursion():
            return f"recursion {relation.reference}, {'union' if relation.distinct else 'union all'}"
        case Filter():
            return f"filter {_text(relation.predicate)}"
        case Project():
            return f"project {_items(relation.items)}"
        case InnerJoin():
            kind = "join, small first" if relation.small_first else "join"
            return f"{kind}, on {' AND '.join(map(_text, relation.conditions))}" if relation.conditions else kind
        case OuterJoin():
            return f"{relation.kind} join, on {_text(relation.condition)}"
        case SemiJoin():
            return f"semi join, on {_text(relation.condition)}"
        case AntiJoin():
            return f"anti join, on {_text(relation.condition)}"
        case Aggregate():
            keys = _items(relation.keys) or "all rows"
            return f"aggregate by {keys}" + (f": {_items(relation.calls)}" if relation.calls else "")
        case Window():
            return f"window by {', '.join(relation.partition) or 'all rows'}: {_items(relation.calls)}"
        case Repeat():
            return f"repeat {_text(relation.count)} times, numbered {relation.number.name}"
    return "union all"


def _items(items: Iterable[Item]) -> str:
    return ", ".join(
        item.column.name
        if _text(item.expression) == item.column.name
        else f"{item.column.name} = {_text(item.expression)}"
        for item in items
    )


def _text(expression: exp.Expr) -> str:
    return expression.sql(dialect="spark", comments=False).replace("`", "")
