"""Functions of arrays, of one dimension and counted from 1."""

from __future__ import annotations

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import beside, coerce, compared, convert, unify
from millstream.sql.postgres.functions.registry import function, simple
from millstream.sql.postgres.functions.strings import shown
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.types import Type, array_of
from millstream.sql.postgres.values import ITEM, PLACE, Value, at_least, cast

simple(t.INTEGER, "array", cardinality="CARDINALITY({0})")


def element(array: Value) -> Type:
    """The type of an array's elements."""
    if array.type.element is None:
        raise RefusalError(f"{array.type} where an array is needed")
    return array.type.element


def _with_items(array: Value, *values: Value) -> tuple[Value, list[str]]:
    """An array and values that are to be its elements or compared with them, of one type."""
    (_, *items), type_ = unify([Value(ITEM, element(array)), *values])
    if type_.spark != element(array).spark:
        array = convert(array, array_of(type_))
    return array.of(array_of(type_)), [i.sql for i in items]


@function("array_length array_upper", "array integer!")
def _array_length(array: Value, dimension: Value) -> Value:
    if dimension.constant != 1:
        raise RefusalError("array_length of a further dimension")
    return Value(f"NULLIF(CARDINALITY({array.sql}), 0)", t.INTEGER)


@function("array_lower", "array integer!")
def _array_lower(array: Value, dimension: Value) -> Value:
    if dimension.constant != 1:
        raise RefusalError("array_lower of a further dimension")
    return Value(f"CASE WHEN CARDINALITY({array.sql}) > 0 THEN 1 END", t.INTEGER)


def subscript(array: Value, index: Value) -> Value:
    """`array[index]`: from 1, NULL outside."""
    return Value(f"GET({array.sql}, {coerce(index, t.INTEGER).sql} - 1)", element(array))


def slice_of(array: Value, first: Value, last: Value) -> Value:
    """`array[first:last]`: what there is of it."""
    low = at_least(coerce(first, t.INTEGER).sql, "1")
    size = at_least(f"({coerce(last, t.INTEGER).sql} - {low} + 1)", "0")
    return Value(f"SLICE({array.sql}, {low}, {size})", array.type)


@function("array_append", "array any")
def _append(array: Value, value: Value) -> Value:
    array, (item,) = _with_items(array, value)
    return Value(f"CONCAT(COALESCE({array.sql}, {cast('ARRAY()', array.type)}), ARRAY({item}))", array.type)


@function("array_prepend", "any array")
def _prepend(value: Value, array: Value) -> Value:
    array, (item,) = _with_items(array, value)
    return Value(f"CONCAT(ARRAY({item}), COALESCE({array.sql}, {cast('ARRAY()', array.type)}))", array.type)


@function("array_cat", "array array")
def concatenate(one: Value, two: Value) -> Value:
    """`array || array`: a NULL array counts as none."""
    (a, b), type_ = unify([one, two])
    both = f"CONCAT(COALESCE({a.sql}, {cast('ARRAY()', type_)}), COALESCE({b.sql}, {cast('ARRAY()', type_)}))"
    return Value(f"CASE WHEN {a.sql} IS NOT NULL OR {b.sql} IS NOT NULL THEN {both} END", type_)


@function("array_position", "array any")
def _position(array: Value, value: Value) -> Value:
    array, (item,) = _with_items(array, value)
    places = f"FILTER(SEQUENCE(1, CARDINALITY({array.sql})), {PLACE} -> GET({array.sql}, {PLACE} - 1) <=> {item})"
    return Value(f"CASE WHEN CARDINALITY({array.sql}) > 0 THEN GET({places}, 0) END", t.INTEGER)


@function("array_remove", "array any")
def _remove(array: Value, value: Value) -> Value:
    array, (item,) = _with_items(array, value)
    return Value(f"FILTER({array.sql}, {ITEM} -> NOT ({ITEM} <=> {item}))", array.type)


@function("array_replace", "array any any")
def _replace(array: Value, old: Value, new: Value) -> Value:
    array, (a, b) = _with_items(array, old, new)
    return Value(f"TRANSFORM({array.sql}, {ITEM} -> CASE WHEN {ITEM} <=> {a} THEN {b} ELSE {ITEM} END)", array.type)


@function("array_to_string", "array text text?")
def _to_string(array: Value, separator: Value, null_text: Value | None = None) -> Value:
    texts = array.sql
    if element(array) != t.TEXT:
        texts = f"TRANSFORM({array.sql}, {ITEM} -> {shown(Value(ITEM, element(array)))})"
    without = f"ARRAY_JOIN({texts}, {separator.sql})"
    if null_text is None:
        return Value(without, t.TEXT)
    joined = f"ARRAY_JOIN({texts}, {separator.sql}, {null_text.sql})"
    return Value(joined if isinstance(null_text.constant, str) else f"COALESCE({joined}, {without})", t.TEXT)


def overlaps(one: Value, two: Value) -> Value:
    """`&&`: an element in common; NULLs have nothing in common."""
    (a, b), _ = unify([one, two])
    found = f"EXISTS({a.sql}, {ITEM} -> {ITEM} IS NOT NULL AND COALESCE(ARRAY_CONTAINS({b.sql}, {ITEM}), FALSE))"
    return Value(f"CASE WHEN {a.sql} IS NOT NULL AND {b.sql} IS NOT NULL THEN {found} END", t.BOOLEAN)


def contains(one: Value, two: Value) -> Value:
    """`@>`: every element of the second is in the first; a NULL never is."""
    (a, b), _ = unify([one, two])
    found = f"FORALL({b.sql}, {ITEM} -> {ITEM} IS NOT NULL AND COALESCE(ARRAY_CONTAINS({a.sql}, {ITEM}), FALSE))"
    return Value(f"CASE WHEN {a.sql} IS NOT NULL AND {b.sql} IS NOT NULL THEN {found} END", t.BOOLEAN)


def constructor(values: list[Value]) -> Value:
    """ARRAY[...]."""
    if not values:
        raise RefusalError("an empty ARRAY[]", "write '{}'::type[]")
    items, type_ = unify(values)
    if type_.element is not None:
        raise RefusalError("an array of arrays", "arrays have one dimension here")
    return Value(f"ARRAY({', '.join(i.sql for i in items)})", array_of(type_))


def quantified(operator: str, left: Value, array: Value, *, every: bool) -> Value:
    """`x op ANY(array)` and `x op ALL(array)`, with SQL's unknown."""
    array = beside(array, array_of(left.type))
    if array.type.name == "unknown":
        array = convert(array, array_of(left.type))
    left = beside(left, element(array))
    (left, _), type_ = compared(left, Value(ITEM, element(array)))
    if element(array).spark != type_.spark:
        array = convert(array, array_of(type_))
    test = f"{left.sql} {operator} {ITEM}"
    return Value(f"{'FORALL' if every else 'EXISTS'}({array.sql}, {ITEM} -> {test})", t.BOOLEAN)
