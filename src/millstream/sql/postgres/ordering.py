"""ORDER BY: in PostgreSQL, NULLs are greater than all values unless the query says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import (
    ITEM,
    OTHER,
    Node,
    and_,
    cases,
    each,
    fn,
    is_null,
    lambda_,
    not_,
    op,
    own_field,
    struct,
)
from millstream.sql.postgres.spark_queries import ordered
from millstream.sql.postgres.typed_expressions import Value

if TYPE_CHECKING:
    from millstream.sql.postgres.aggregate_calls import Call
    from millstream.sql.postgres.expressions import Expressions


@dataclass(frozen=True, slots=True)
class Key:
    """One expression of an ORDER BY."""

    value: Value
    descending: bool
    nulls_first: bool

    @property
    def tree(self) -> exp.Ordered:
        """The key for Spark, always with an explicit position of NULLs."""
        return ordered(self.value.tree, descending=self.descending, nulls_first=self.nulls_first)


def keys_of(self: Expressions, nodes: list[exp.Expr]) -> list[Key]:
    """The keys of an ORDER BY over input columns."""
    return [key_of(node, self.translate(node.this)) for node in nodes]


def key_of(node: exp.Expr, value: Value) -> Key:
    """A key with its direction, as the parser found it."""
    if not isinstance(node, exp.Ordered) or node.args.get("with_fill"):
        raise RefusalError("this ORDER BY")
    if value.items or not value.type.has_order:
        raise RefusalError(f"ORDER BY {value.type}", "cast it to text" if value.type.label else None)
    if value.interval is not None:
        value = Value(value.interval.span, value.type)
    return Key(value, bool(node.args.get("desc")), bool(node.args.get("nulls_first")))


def sorted_list(call: Call, x: Value) -> Node:
    """The values of an aggregate as a list with NULLs, in the order of its ORDER BY or window, else sorted by value.

    Without an ORDER BY any order is valid; a fixed one gives the same result at each refresh.
    """
    keys = call.order or [*call.window_order, Key(x, descending=False, nulls_first=False)]
    fields: list[tuple[str, Node]] = []
    for i, key in enumerate(keys):
        fields += [(f"n{i}", is_null(key.value.tree)), (f"k{i}", key.value.tree)]
    entry = struct([*fields, ("v", x.tree)])
    listed = call.invoke("COLLECT_SET" if call.distinct else "COLLECT_LIST", entry, distinct=False)
    comparator = () if all(not k.descending and not k.nulls_first for k in keys) else (_comparator(keys),)
    return each(fn("ARRAY_SORT", listed, *comparator), own_field(ITEM, "v"))


def _comparator(keys: list[Key]) -> exp.Lambda:
    """Which of two entries of a list comes first: -1, 0 or 1."""
    branches: list[tuple[Node, int]] = []
    for i, key in enumerate(keys):
        first, last = (-1, 1) if key.nulls_first else (1, -1)
        less, more = (1, -1) if key.descending else (-1, 1)
        is_null_here, is_null_there = own_field(ITEM, f"n{i}"), own_field(OTHER, f"n{i}")
        here, there = own_field(ITEM, f"k{i}"), own_field(OTHER, f"k{i}")
        branches += [
            (and_(is_null_here, not_(is_null_there)), first),
            (and_(is_null_there, not_(is_null_here)), last),
            (op(here, "<", there), less),
            (op(here, ">", there), more),
        ]
    return lambda_(cases(*branches, otherwise=0), ITEM, OTHER)
