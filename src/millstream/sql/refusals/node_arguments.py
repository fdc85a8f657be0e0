"""Which arguments of the parser's nodes are handled; every other one is refused by name.

The parser reads the clauses of many dialects and future versions, and keeps each as an argument of a node. An argument
that no code looks at is a clause that silently has no effect. So a registry per dialect lists the node classes with the
arguments that are handled and those that are refused. An argument on neither list, such as one that a new version of
the parser adds, is refused as well, and a test that enumerates the parser's classes fails until it is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from millstream.sql.parse import place_of


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one class of nodes.

    Args:
        handled: arguments that are looked at, even if only to refuse some of their values.
        refused: arguments that are refused if they have a value.
        false_counts: refused arguments for which False is also a value.
    """

    handled: frozenset[str]
    refused: frozenset[str] = frozenset()
    false_counts: frozenset[str] = frozenset()


Registry = Mapping[type[exp.Expr], Arguments]


@dataclass(frozen=True, slots=True)
class Unhandled:
    """An argument that has a value and is not handled."""

    node: exp.Expr
    argument: str

    @property
    def value(self) -> object:
        """What the parser found."""
        return self.node.args[self.argument]

    @property
    def place(self) -> exp.Expr:
        """The node that best shows its position."""
        found = self.value
        found = found[0] if isinstance(found, list) and found else found
        node: exp.Expr | None = found if isinstance(found, exp.Expr) else self.node
        while node is not None and node.parent is not None and not place_of(node):
            node = node.parent
        return node or self.node


def arguments(handled: str, refused: str = "", false_counts: str = "") -> Arguments:
    """The arguments of a class, from names separated by blanks."""
    return Arguments(
        frozenset(handled.split()),
        frozenset(refused.split()) | frozenset(false_counts.split()),
        frozenset(false_counts.split()),
    )


def unhandled(tree: exp.Expr, registry: Registry) -> Iterator[Unhandled]:
    """The arguments of a tree's nodes that are not handled; a class that is not in the registry is skipped.

    >>> registry = {exp.Where: arguments("this"), exp.Ordered: arguments("this desc nulls_first", "with_fill")}
    >>> [u.argument for u in unhandled(exp.Ordered(this=exp.Where(this=exp.true(), new=[1]), with_fill=True), registry)]
    ['with_fill', 'new']
    """
    for node in tree.walk():
        known = registry.get(type(node))
        if known is None:
            continue
        for argument, value in node.args.items():
            if value is None or value == [] or argument in known.handled:
                continue
            # the parser sets False for most absent clauses; for an unknown clause, False may mean anything
            if value is False and argument in known.refused - known.false_counts:
                continue
            yield Unhandled(node, argument)
