"""ORDER BY: NULLs are greater than everything, in PostgreSQL, unless it is said otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.values import ITEM, OTHER, Value

if TYPE_CHECKING:
    from millstream.sql.postgres.aggregates import Call
    from millstream.sql.postgres.expressions import Expressions


@dataclass(frozen=True, slots=True)
class Key:
    """One expression of an ORDER BY."""

    value: Value
    descending: bool
    nulls_first: bool

    @property
    def text(self) -> str:
        """As Spark writes it, always with the place of the NULLs."""
        return (
            f"{self.value.sql} {'DESC' if self.descending else 'ASC'} NULLS {'FIRST' if self.nulls_first else 'LAST'}"
        )


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


def ordered(keys: list[Key]) -> str:
    """The keys, with commas."""
    return ", ".join(key.text for key in keys)


def sorted_list(call: Call, x: Value) -> str:
    """The values of an aggregate as a list, NULLs kept, in its order or its window's; without one, in the values' own.

    Any order is right then; a fixed one gives the same result at each refresh.
    """
    keys = call.order or [*call.window_order, Key(x, descending=False, nulls_first=False)]
    fields = []
    for i, key in enumerate(keys):
        fields += [f"'n{i}', {key.value.sql} IS NULL", f"'k{i}', {key.value.sql}"]
    listed = call.invoke(
        "COLLECT_SET" if call.distinct else "COLLECT_LIST",
        f"NAMED_STRUCT({', '.join(fields)}, 'v', {x.sql})",
        distinct=False,
    )
    if all(not k.descending and not k.nulls_first for k in keys):
        return f"TRANSFORM(ARRAY_SORT({listed}), {ITEM} -> {ITEM}.v)"
    cases = []
    for i, key in enumerate(keys):
        first, last = ("-1", "1") if key.nulls_first else ("1", "-1")
        less, more = ("1", "-1") if key.descending else ("-1", "1")
        cases += [
            f"WHEN {ITEM}.n{i} AND NOT {OTHER}.n{i} THEN {first} WHEN {OTHER}.n{i} AND NOT {ITEM}.n{i} THEN {last}",
            f"WHEN {ITEM}.k{i} < {OTHER}.k{i} THEN {less} WHEN {ITEM}.k{i} > {OTHER}.k{i} THEN {more}",
        ]
    return (
        f"TRANSFORM(ARRAY_SORT({listed}, ({ITEM}, {OTHER}) -> CASE {' '.join(cases)} ELSE 0 END), {ITEM} -> {ITEM}.v)"
    )
