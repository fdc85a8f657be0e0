"""A stage of a stream table: what its table stores, and the steps that keep it up to date.

A stream table is computed in one or more stages, each with a stored table: hidden ones for aggregations below other
operators, and the public one. A stage's steps are relations over named tables:

- `new_<input>` and `delta_<input>`: an input at the new frontier, and its changes since the last one;
- `state`: the stage's own stored rows, each with its place: file and row. The step needs only those that agree with a
  row of its `looks_up` in the stored key, or in all columns if there is no key;
- the name of an earlier step.

The step `TOUCHED` returns the change of each touched group, or the touched partitions. The steps `CHANGES` and
`RECOMPUTED` return stored rows to replace: new values, old values (with the suffix `OLD`), and the old row's place. The
step `NET` returns the net change of a bag, and `REMOVED` the places of rows to remove; for partitions `NET` returns
both.

A stage of a recursion also reads `stored`, its own rows without their places, and has steps that are repeated until
they find nothing more (`Fixpoint`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from millstream import naming
from millstream.ops import Column, Relation, Table, render, walk
from millstream.ops.relations import WEIGHT_COLUMN
from millstream.ops.render import to_sql

STATE = "state"
STORED = "stored"
FRONTIER = "frontier"
TOUCHED = "touched"
CHANGES = "changes"
RECOMPUTED = "recomputed"
NET = "net"
REMOVED = "removed"

PLACE = (Column(naming.FILE, "string"), Column(naming.ROW, "bigint"))
STORE = Column("__ms_store", "string")  # what happens to the stored row: insert, update, delete
SHOWN = Column("__ms_shown", "string")  # the change as the user sees it: insert, update, delete, none
MORE = Column("__ms_more", "boolean")  # the row needs the step that follows


class Kind(StrEnum):
    """How stored rows are identified."""

    KEYED = "keyed"
    BAG = "bag"
    PARTITIONED = "partitioned"


@dataclass(frozen=True)
class Step:
    """A named query.

    Args:
        only_if: the step runs only if that step has a row with `MORE` set.
        looks_up: the step whose rows determine which stored rows are read; if it is also `only_if`, only its rows with
            `MORE` set.
    """

    name: str
    relation: Relation
    only_if: str | None = None
    looks_up: str | None = None
    _texts: dict[tuple[bool, frozenset[str]], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def tables(self) -> frozenset[str]:
        """The names of the tables it reads."""
        return frozenset(node.name for node in walk(self.relation) if isinstance(node, Table))

    def text(self, *, hints: bool, tiny: frozenset[str] = frozenset()) -> str:
        """The query in Spark's SQL, the same at each refresh; see `to_sql`."""
        if (hints, tiny) not in self._texts:
            self._texts[hints, tiny] = to_sql(render(self.relation), hints=hints, tiny=tiny)
        return self._texts[hints, tiny]


@dataclass(frozen=True)
class Fixpoint:
    """A query repeated over its own result.

    The rows of `seed` are the first `FRONTIER`, and each further one is the result of `body` over the one before. The
    result, under the name of the step, is the rows of all of them. The body may read the rows found so far by that
    name.

    Args:
        only_if: it runs only if that step has a row with `MORE` set; `unless`: only if that step has none.
    """

    name: str
    seed: Step
    body: Step
    only_if: str | None = None
    unless: str | None = None
    strategy: str = ""
    """Its name in `explain` and in the history of refreshes."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the result."""
        return self.body.relation.schema

    @property
    def tables(self) -> frozenset[str]:
        """The names of the tables it reads, without its own results."""
        return (self.seed.tables | self.body.tables) - {FRONTIER, self.name}


AnyStep = Step | Fixpoint


@dataclass(frozen=True)
class Layout:
    """The stored table of a stage."""

    kind: Kind
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    outputs: tuple[str, ...]
    """The stored column of each output column, in the query's order."""
    hides_rows: bool = False
    """Whether rows with `naming.VISIBLE` false are stored but not part of the result."""

    @property
    def state(self) -> Table:
        """The stored rows with their places."""
        return Table(STATE, (*self.columns, *PLACE))


__all__ = [
    "CHANGES",
    "FRONTIER",
    "MORE",
    "NET",
    "PLACE",
    "RECOMPUTED",
    "REMOVED",
    "SHOWN",
    "STATE",
    "STORE",
    "STORED",
    "TOUCHED",
    "WEIGHT_COLUMN",
    "AnyStep",
    "Fixpoint",
    "Kind",
    "Layout",
    "Step",
]
