"""What every relational operator has: columns, inputs, and the facts that other modules need.

A fact that every operator has is a method here, abstract where no default is safe for all of them. So a new operator
provides these facts in its own class, and the modules that use them need not change.

A relation's output columns have names that are unique within the relation, so that an expression refers to a column
by its bare name and no operator needs aliases. Scalar expressions are sqlglot nodes, copied when they enter and
read-only from then on (docs/adr/0001).
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

from sqlglot import exp

from millstream import naming

if TYPE_CHECKING:
    from millstream.ops.known import Known
    from millstream.ops.relations import Relation


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name and its type as Spark spells it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Item:
    """A named expression of a projection or an aggregation."""

    expression: exp.Expr
    column: Column


WEIGHT_COLUMN = Column(naming.WEIGHT, "bigint")


class Operator(ABC):
    """An operator with its inputs; `Relation` is the closed set of its subclasses.

    Equal operators over equal inputs are equal. Rules build graphs in which one relation occurs in many places, so
    its hash and its columns are computed once.
    """

    @property
    @abstractmethod
    def schema(self) -> tuple[Column, ...]:
        """The output columns."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Its description in `explain`."""

    @property
    @abstractmethod
    def line(self) -> str:
        """The operator without its inputs, for trees in golden files."""

    @property
    @abstractmethod
    def expressions(self) -> tuple[exp.Expr, ...]:
        """The scalar expressions it computes for each input row, without the calls of aggregates and windows."""

    @property
    @abstractmethod
    def is_monotone(self) -> bool:
        """Whether inserts into its inputs can only add rows to it."""

    @abstractmethod
    def is_small(self, steps: Set[str] = frozenset()) -> bool:
        """Whether it is about the size of a change: a change feed, the result of a step, or a join with one."""

    @abstractmethod
    def known(self, sources: Mapping[str, Known]) -> Known:
        """The key and the columns without NULL, derived from those of its sources, whose names are in lower case."""

    def needs(self, names: Set[str]) -> Set[str]:
        """The input columns that some output columns need; all of them unless an operator overrides this."""
        return self._known_names

    def pruned(self, names: Set[str], inputs: tuple[Relation, ...]) -> Relation:
        """The operator over pruned inputs; an operator that computes columns drops those not in `names`."""
        return cast("Relation", self.over(inputs))

    @cached_property
    def children(self) -> tuple[Relation, ...]:
        """The inputs, left to right."""
        found = tuple(v for value in self._fields for v in _each(value) if isinstance(v, Operator))
        return cast("tuple[Relation, ...]", found)

    def over(self, inputs: tuple[Relation, ...]) -> Self:
        """The same operator over other inputs."""
        if all(new is old for new, old in zip(inputs, self.children, strict=True)):
            return self
        waiting = iter(inputs)
        changed: dict[str, Any] = {}
        for name, value in zip(self._names, self._fields, strict=True):
            if isinstance(value, Operator):
                changed[name] = next(waiting)
            elif isinstance(value, tuple) and any(isinstance(v, Operator) for v in value):
                changed[name] = tuple(next(waiting) for _ in value)
        return dataclasses.replace(self, **changed)  # type: ignore[type-var]  # subclasses are dataclasses

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The output columns without the weight."""
        return tuple(c for c in self.schema if c.name != naming.WEIGHT)

    @property
    def is_weighted(self) -> bool:
        """Whether the relation is a Z-set with explicit weights."""
        return any(c.name == naming.WEIGHT for c in self.schema)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Operator) or type(self) is not type(other):
            return NotImplemented
        return self._hash == other._hash and self._fields == other._fields

    @cached_property
    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(f.name for f in fields(self))  # type: ignore[arg-type]  # subclasses are dataclasses

    @cached_property
    def _hash(self) -> int:
        return hash((type(self).__name__, self._fields))

    @cached_property
    def _known_names(self) -> frozenset[str]:
        return frozenset(c.name for child in self.children for c in child.schema)

    def _require(self, names: set[str], where: str) -> None:
        if missing := names - self._known_names:
            known = sorted(self._known_names)
            raise ValueError(f"{type(self).__name__}: {where} refers to {sorted(missing)}, inputs have {known}")


class Opaque(Operator):
    """An operator that rewrites of queries and deltas do not move anything through.

    That is always correct, if not always fast, so a new operator starts as opaque.
    """


def referenced(expression: exp.Expr) -> set[str]:
    """The names of the columns that an expression reads."""
    if isinstance(expression, exp.Column):
        return {expression.name}
    return {column.name for column in expression.find_all(exp.Column)}


def referenced_by(expressions: Iterable[exp.Expr]) -> set[str]:
    """The names of the columns that some expressions read."""
    return {name for expression in expressions for name in referenced(expression)}


def require_unique(columns: tuple[Column, ...]) -> None:
    """Refuse columns of the same name, which Spark compares without regard to case."""
    names = [c.name.lower() for c in columns]
    if len(set(names)) != len(names):
        raise ValueError(f"column names are not unique: {names}")


def kept_names(items: tuple[Item, ...]) -> dict[str, str]:
    """The input columns that items pass on unchanged, with their new names."""
    return {i.expression.name: i.column.name for i in items if isinstance(i.expression, exp.Column)}


def text_of(expression: exp.Expr) -> str:
    """An expression for a line of a tree."""
    return expression.sql(dialect="spark", comments=False).replace("`", "")


def texts_of(items: Iterable[Item]) -> str:
    """Items for a line of a tree; an item that only passes a column on is shown by its name."""
    pairs = ((item.column.name, text_of(item.expression)) for item in items)
    return ", ".join(name if name == text else f"{name} = {text}" for name, text in pairs)


def _each(value: object) -> Iterator[object]:
    yield from value if isinstance(value, tuple) else (value,)
