"""The closed set of relational operators.

A relation's output columns have names that are unique within the relation, so that an expression refers to a column
by its bare name and no operator needs aliases. Scalar expressions are sqlglot nodes, copied when they enter and
read-only from then on (docs/adr/0001).

A *Z-set* is a relation with the column `naming.WEIGHT`; a relation without it counts every row once. Joins multiply the
weights of their inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from sqlglot import exp

from millstream import naming

OuterKind = Literal["left", "full"]


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


class Relation(ABC):
    """An operator with its inputs.

    Equal operators over equal inputs are equal. Rules build graphs in which one relation stands in many places, so
    its hash and its columns are computed once.
    """

    @property
    @abstractmethod
    def schema(self) -> tuple[Column, ...]:
        """The output columns."""

    @cached_property
    def children(self) -> tuple[Relation, ...]:
        """The inputs, left to right."""
        values = (v for field in self._fields for v in (field if isinstance(field, tuple) else (field,)))
        return tuple(v for v in values if isinstance(v, Relation))

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
        if not isinstance(other, Relation) or type(self) is not type(other):
            return NotImplemented
        return self._hash == other._hash and self._fields == other._fields

    @cached_property
    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]  # subclasses are dataclasses

    @cached_property
    def _hash(self) -> int:
        return hash((type(self).__name__, self._fields))

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(c.name for child in self.children for c in child.schema)

    def _require(self, names: set[str], where: str) -> None:
        if missing := names - self._known:
            known = sorted(self._known)
            raise ValueError(f"{type(self).__name__}: {where} refers to {sorted(missing)}, inputs have {known}")


def referenced(expression: exp.Expr) -> set[str]:
    """The names of the columns an expression reads."""
    if isinstance(expression, exp.Column):
        return {expression.name}
    return {column.name for column in expression.find_all(exp.Column)}


def _unique(columns: tuple[Column, ...]) -> None:
    names = [c.name.lower() for c in columns]
    if len(set(names)) != len(names):
        raise ValueError(f"column names are not unique: {names}")


@dataclass(frozen=True, eq=False)
class Scan(Relation):
    """An input of the query: `source` names it, `origin` gives the source's own name of each column."""

    source: str
    origin: tuple[str, ...]
    output: tuple[Column, ...]

    def __post_init__(self) -> None:
        _unique(self.output)
        if len(self.origin) != len(self.output):
            raise ValueError("every column of a scan needs its origin")

    @property
    def schema(self) -> tuple[Column, ...]:
        return self.output


@dataclass(frozen=True, eq=False)
class Table(Relation):
    """A relation that is there when the plan runs: a version of an input, a change feed, the result of a step."""

    name: str
    output: tuple[Column, ...]

    def __post_init__(self) -> None:
        _unique(self.output)

    @property
    def schema(self) -> tuple[Column, ...]:
        return self.output


@dataclass(frozen=True, eq=False)
class Filter(Relation):
    """The rows of the input for which the predicate is true; with `few`, not many are expected to be."""

    input: Relation
    predicate: exp.Expr
    few: bool = False

    def __post_init__(self) -> None:
        self._require(referenced(self.predicate), "predicate")

    @property
    def schema(self) -> tuple[Column, ...]:
        return self.input.schema


@dataclass(frozen=True, eq=False)
class Project(Relation):
    """One row per input row, of computed columns."""

    input: Relation
    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        _unique(self.schema)
        for item in self.items:
            self._require(referenced(item.expression), item.column.name)

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        return tuple(item.column for item in self.items)


@dataclass(frozen=True, eq=False)
class InnerJoin(Relation):
    """The n-ary join of the inputs, in the order they are to be joined, on all conditions.

    With `small_first` the first input, and so each intermediate result, is expected to be small enough to be sent to
    every task; a join that starts from a delta is.
    """

    inputs: tuple[Relation, ...]
    conditions: tuple[exp.Expr, ...]
    small_first: bool = False

    def __post_init__(self) -> None:
        if len(self.inputs) < 2:
            raise ValueError("a join needs two inputs")
        _unique(self.columns)
        for condition in self.conditions:
            self._require(referenced(condition), "condition")

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        columns = tuple(c for i in self.inputs for c in i.columns)
        return (*columns, WEIGHT_COLUMN) if any(i.is_weighted for i in self.inputs) else columns


@dataclass(frozen=True, eq=False)
class OuterJoin(Relation):
    """A LEFT or FULL outer join (a RIGHT one is a LEFT one with its inputs exchanged).

    Only the left input may be weighted: then the right one is looked up for each row of a delta. With `small_right`
    that one is expected to be small enough to be sent to every task.
    """

    kind: OuterKind
    left: Relation
    right: Relation
    condition: exp.Expr
    small_right: bool = False

    def __post_init__(self) -> None:
        if self.right.is_weighted:
            raise ValueError("the right input of an outer join may not be weighted")
        _unique(self.schema)
        self._require(referenced(self.condition), "condition")

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        columns = (*self.left.columns, *self.right.columns)
        return (*columns, WEIGHT_COLUMN) if self.left.is_weighted else columns


@dataclass(frozen=True, eq=False)
class _FilteringJoin(Relation):
    """Keeps or drops rows of the left input; the right one may be a Z-set, of which any weight counts as there.

    With `small_right` the right one is expected to be small enough to be sent to every task.
    """

    left: Relation
    right: Relation
    condition: exp.Expr
    small_right: bool = False

    def __post_init__(self) -> None:
        self._require(referenced(self.condition), "condition")

    @property
    def schema(self) -> tuple[Column, ...]:
        return self.left.schema


class SemiJoin(_FilteringJoin):
    """The rows of the left input that have a partner in the right one."""


class AntiJoin(_FilteringJoin):
    """The rows of the left input that have no partner in the right one."""


@dataclass(frozen=True, eq=False)
class UnionAll(Relation):
    """The rows of all inputs; columns match by position, the names are those of the first input."""

    inputs: tuple[Relation, ...]

    def __post_init__(self) -> None:
        if len({len(i.columns) for i in self.inputs}) != 1:
            raise ValueError("the inputs of a union differ in their number of columns")
        if len({i.is_weighted for i in self.inputs}) != 1:
            raise ValueError("either all inputs of a union are weighted or none is")

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        first = self.inputs[0]
        return (*first.columns, WEIGHT_COLUMN) if first.is_weighted else first.columns


@dataclass(frozen=True, eq=False)
class Window(Relation):
    """The rows of the input, each with values computed from the rows of its partition.

    Every call is a window expression whose PARTITION BY is `partition`: columns of the input.
    """

    input: Relation
    partition: tuple[str, ...]
    calls: tuple[Item, ...]

    def __post_init__(self) -> None:
        _unique(self.schema)
        self._require(set(self.partition), "partition")
        for item in self.calls:
            self._require(referenced(item.expression), item.column.name)

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        return (*self.input.schema, *(item.column for item in self.calls))


@dataclass(frozen=True, eq=False)
class Repeat(Relation):
    """Each row of the input as often as `count` says, numbered from 1 in the column `number`; none for zero or NULL."""

    input: Relation
    count: exp.Expr
    number: Column

    def __post_init__(self) -> None:
        _unique(self.schema)
        self._require(referenced(self.count), "count")

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        return (*self.input.columns, self.number, *(c for c in self.input.schema if c.name == naming.WEIGHT))


@dataclass(frozen=True, eq=False)
class Aggregate(Relation):
    """One row per distinct value of the keys; without keys exactly one row. DISTINCT is keys without calls."""

    input: Relation
    keys: tuple[Item, ...]
    calls: tuple[Item, ...]

    def __post_init__(self) -> None:
        _unique(self.schema)
        for item in (*self.keys, *self.calls):
            self._require(referenced(item.expression), item.column.name)

    @cached_property
    def schema(self) -> tuple[Column, ...]:
        return tuple(item.column for item in (*self.keys, *self.calls))


@dataclass(frozen=True, eq=False)
class OneRow(Relation):
    """A single row, of which only that it is there matters: what a SELECT without FROM reads."""

    @property
    def schema(self) -> tuple[Column, ...]:
        return (Column(f"{naming.RESERVED_PREFIX}one", "int"),)


@dataclass(frozen=True, eq=False)
class Recursion(Relation):
    """The rows of `base`, and of `step` over them, over those that gives, and so on: `base UNION [ALL] step`.

    The step reads the rows found last by a scan of the source `reference`, whose columns have the names of `output`.
    It is linear in them: what it makes of some rows it makes of each of them alone. With `distinct` (UNION) a row
    counts once, and the recursion ends when it finds no row it has not found before.
    """

    base: Relation
    step: Relation
    reference: str
    output: tuple[Column, ...]
    distinct: bool

    def __post_init__(self) -> None:
        _unique(self.output)
        if {len(self.base.columns), len(self.step.columns)} != {len(self.output)}:
            raise ValueError("the branches of a recursion differ in their number of columns")

    @property
    def schema(self) -> tuple[Column, ...]:
        return self.output
