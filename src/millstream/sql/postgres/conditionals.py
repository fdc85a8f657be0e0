"""COALESCE, NULLIF, GREATEST and LEAST, which are not functions: they convert all their values to one type."""

from __future__ import annotations

from collections.abc import Callable

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import beside, coerce, convert, unify
from millstream.sql.postgres.operands import compare
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import NULL, fn, when
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import as_numeric


def _coalesce(args: list[Value]) -> Value:
    values, type_ = unify(args)
    return Value(fn("COALESCE", *(v.tree for v in values)), type_)


def _nullif(args: list[Value]) -> Value:
    if len(args) != 2:
        raise RefusalError("NULLIF with other than two values")
    left, right = args
    if left.items or right.items or t.INTERVAL in (left.type, right.type):
        raise RefusalError("NULLIF of rows or intervals", "compare with = in a CASE, or EXTRACT(EPOCH FROM ...) first")
    test = compare("=", left, right)
    kept = _as_operand(left, right.type)
    return Value(when(test.tree, NULL, kept.tree), kept.type)


def _as_operand(left: Value, right: t.Type) -> Value:
    """The left operand as `=` takes it: one operator compares all integers, and one real and double precision."""
    if left.type.name == "unknown":
        read = beside(left, right)
        return coerce(read, right if right.name != "unknown" else t.TEXT) if read.type.name == "unknown" else read
    if right.is_float and not left.type.is_float and left.type.is_number:
        return convert(left, t.DOUBLE)
    if left.type.is_integer and right.name == "numeric":
        return convert(left, as_numeric(left.type))
    return left


def _extreme(name: str) -> Callable[[list[Value]], Value]:
    def rule(args: list[Value]) -> Value:
        values, type_ = unify(args)
        if not type_.has_order or type_.fields:
            raise RefusalError(f"{name} of {type_}")
        if len(values) == 1:
            return values[0]
        return Value(fn(name, *(v.tree for v in values)), type_)

    return rule


CONDITIONALS: dict[str, Callable[[list[Value]], Value]] = {
    "coalesce": _coalesce,
    "nullif": _nullif,
    "greatest": _extreme("GREATEST"),
    "least": _extreme("LEAST"),
}
