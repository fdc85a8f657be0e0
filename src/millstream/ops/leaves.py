"""The operators without inputs."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream import naming
from millstream.ops.known import Known
from millstream.ops.operator import Column, Opaque, require_unique

if TYPE_CHECKING:
    from sqlglot import exp

    from millstream.ops.relations import Relation


class _Leaf(Opaque):
    """The facts that all leaves share."""

    @property
    def expressions(self) -> tuple[exp.Expr, ...]:
        return ()

    @property
    def is_monotone(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Scan(_Leaf):
    """An input of the query: `source` names it, `origin` is each column's name in the source."""

    source: str
    origin: tuple[str, ...]
    output: tuple[Column, ...]

    def __post_init__(self) -> None:
        require_unique(self.output)
        if len(self.origin) != len(self.output):
            raise ValueError("every column of a scan needs its origin")

    @property
    def schema(self) -> tuple[Column, ...]:
        return self.output

    @property
    def label(self) -> str:
        if self.source.startswith(naming.RECURSION):
            return "the rows found last"
        return f"scan {self.source} ({', '.join(self.origin)})"

    @property
    def line(self) -> str:
        names = zip(self.output, self.origin, strict=True)
        return f"scan {self.source}: " + ", ".join(f"{c.name} = {origin}" for c, origin in names)

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return False

    def known(self, sources: Mapping[str, Known]) -> Known:
        names = {origin.lower(): column.name for origin, column in zip(self.origin, self.output, strict=True)}
        return sources.get(self.source, Known()).renamed(names)

    def pruned(self, names: Set[str], inputs: tuple[Relation, ...]) -> Relation:
        # a relation has at least one column, so that its rows can be counted
        kept = [i for i, c in enumerate(self.output) if c.name in names] or [0]
        return Scan(self.source, tuple(self.origin[i] for i in kept), tuple(self.output[i] for i in kept))


@dataclass(frozen=True, eq=False)
class Table(_Leaf):
    """A relation that exists when the plan runs: a version of an input, a change feed, the result of a step."""

    name: str
    output: tuple[Column, ...]

    def __post_init__(self) -> None:
        require_unique(self.output)

    @property
    def schema(self) -> tuple[Column, ...]:
        return self.output

    @property
    def label(self) -> str:
        return f"table {self.name}"

    @property
    def line(self) -> str:
        return f"table {self.name}"

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return self.is_weighted or self.name in steps

    def known(self, sources: Mapping[str, Known]) -> Known:
        return Known()


@dataclass(frozen=True, eq=False)
class OneRow(_Leaf):
    """A single row without values: what a SELECT without FROM reads."""

    @property
    def schema(self) -> tuple[Column, ...]:
        return (Column(f"{naming.RESERVED_PREFIX}one", "int"),)

    @property
    def label(self) -> str:
        return "one row"

    @property
    def line(self) -> str:
        return "one row"

    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        return False

    def known(self, sources: Mapping[str, Known]) -> Known:
        return Known()


Leaf = Scan | Table | OneRow

__all__ = ["Leaf", "OneRow", "Scan", "Table"]
