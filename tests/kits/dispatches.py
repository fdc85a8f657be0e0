"""Finds the functions of the sources that ask which operator a relation is."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import millstream
from millstream.ops import Grouping, Join, Leaf, Opaque, RowWise
from millstream.ops.relations import OPERATORS

SOURCES = Path(millstream.__file__).parent
FAMILIES: dict[str, frozenset[str]] = {
    "Grouping": frozenset(o.__name__ for o in OPERATORS if issubclass(o, Grouping)),
    "Join": frozenset(o.__name__ for o in OPERATORS if issubclass(o, Join)),
    "Leaf": frozenset(o.__name__ for o in OPERATORS if issubclass(o, Leaf)),
    "Opaque": frozenset(o.__name__ for o in OPERATORS if issubclass(o, Opaque)),
    "RowWise": frozenset(o.__name__ for o in OPERATORS if issubclass(o, RowWise)),
    **{o.__name__: frozenset({o.__name__}) for o in OPERATORS},
}


@dataclass(frozen=True)
class Dispatch:
    """A function, the operators it asks for, and whether mypy proves that it answers for all of them."""

    name: str
    operators: frozenset[str]
    ends_in_assert_never: bool


@functools.cache
def dispatches() -> tuple[Dispatch, ...]:
    """The functions that distinguish two operators or more."""
    return tuple(found for path in sorted(SOURCES.rglob("*.py")) for found in _of(path) if len(found.operators) > 1)


def _of(path: Path) -> Iterator[Dispatch]:
    text = path.read_text()
    if "millstream.ops" in text:  # without it, no operator is known there
        module = ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)
        yield from _Finder(module, ast.parse(text)).found()


class _Finder(ast.NodeVisitor):
    """Collects by function; a test within a nested function is that function's."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._names = dict(_imported(tree))
        self._path = [module]
        self._asked: dict[str, set[str]] = {}
        self._proved: set[str] = set()
        for statement in tree.body:
            # a constant that stands for several operators, e.g. `_COSTLY = Join | Grouping`
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self._names.setdefault(statement.targets[0].id, self._operators(statement.value))
        self.visit(tree)

    def found(self) -> Iterator[Dispatch]:
        for name, operators in self._asked.items():
            yield Dispatch(name, frozenset(operators), name in self._proved)

    def _inside(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._path.append(node.name)
        self.generic_visit(node)
        self._path.pop()

    visit_FunctionDef = visit_ClassDef = _inside

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            self._ask(self._operators(node.args[1]))
        if isinstance(node.func, ast.Name) and node.func.id == "assert_never":
            self._proved.add(".".join(self._path))
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        self._ask(self._operators(node.cls))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if isinstance(node.left, ast.Call) and isinstance(node.left.func, ast.Name) and node.left.func.id == "type":
            for other in node.comparators:
                self._ask(self._operators(other))
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key in node.keys:
            if key is not None:
                self._ask(self._operators(key))
        self.generic_visit(node)

    def _ask(self, operators: frozenset[str]) -> None:
        self._asked.setdefault(".".join(self._path), set()).update(operators)

    def _operators(self, node: ast.expr) -> frozenset[str]:
        match node:
            case ast.Name():
                return self._names.get(node.id, frozenset())
            case ast.BinOp(op=ast.BitOr()):
                return self._operators(node.left) | self._operators(node.right)
            case ast.Tuple():
                return frozenset[str]().union(*(self._operators(e) for e in node.elts))
        return frozenset()


def _imported(tree: ast.Module) -> Iterator[tuple[str, frozenset[str]]]:
    """The operators and families of operators that a module knows by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("millstream.ops"):
            yield from ((a.asname or a.name, FAMILIES[a.name]) for a in node.names if a.name in FAMILIES)
