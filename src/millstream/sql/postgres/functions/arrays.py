"""Functions of arrays, which have one dimension and are indexed from 1."""

from __future__ import annotations

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import beside, coerce, compared, convert, unify
from millstream.sql.postgres.functions.registry import function, simple
from millstream.sql.postgres.functions.strings import shown
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import (
    FALSE,
    ITEM,
    PLACE,
    Node,
    and_,
    at_least,
    each,
    fn,
    is_not_null,
    kept,
    lambda_,
    not_,
    not_like,
    op,
    or_,
    when,
)
from millstream.sql.postgres.spark_builders import array as array_of_items
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import Type, array_of

simple(t.INTEGER, "array", cardinality="CARDINALITY")


def element(array: Value) -> Type:
    """The type of an array's elements."""
    if array.type.element is None:
        raise RefusalError(f"{array.type} where an array is needed")
    return array.type.element


def _with_items(array: Value, *values: Value) -> tuple[Value, list[Node]]:
    """An array, and values to add to it or to compare with its elements, converted to one type."""
    (_, *items), type_ = unify([Value(ITEM, element(array)), *values])
    if type_.spark != element(array).spark:
        array = convert(array, array_of(type_))
    return array.of(array_of(type_)), [i.tree for i in items]


@function("array_length array_upper", "array integer!")
def _array_length(array: Value, dimension: Value) -> Value:
    if dimension.constant != 1:
        raise RefusalError("array_length of any dimension but the first")
    return Value(fn("NULLIF", fn("CARDINALITY", array.tree), 0), t.INTEGER)


@function("array_lower", "array integer!")
def _array_lower(array: Value, dimension: Value) -> Value:
    if dimension.constant != 1:
        raise RefusalError("array_lower of any dimension but the first")
    return Value(when(_has_items(array), 1), t.INTEGER)


def _has_items(array: Value) -> Node:
    return op(fn("CARDINALITY", array.tree), ">", 0)


def _or_empty(array: Value) -> Node:
    """An array; an empty one for NULL."""
    return fn("COALESCE", array.tree, cast(array_of_items(), array.type))


def subscript(array: Value, index: Value) -> Value:
    """`array[index]`: from 1, NULL outside."""
    return Value(fn("GET", array.tree, op(coerce(index, t.INTEGER).tree, "-", 1)), element(array))


def slice_of(array: Value, first: Value, last: Value) -> Value:
    """`array[first:last]`: the elements that exist in this range."""
    low = at_least(coerce(first, t.INTEGER).tree, 1)
    size = at_least(op(op(coerce(last, t.INTEGER).tree, "-", low), "+", 1), 0)
    return Value(fn("SLICE", array.tree, low, size), array.type)


@function("array_append", "array any")
def _append(array: Value, value: Value) -> Value:
    array, (item,) = _with_items(array, value)
    return Value(fn("CONCAT", _or_empty(array), array_of_items(item)), array.type)


@function("array_prepend", "any array")
def _prepend(value: Value, array: Value) -> Value:
    array, (item,) = _with_items(array, value)
    return Value(fn("CONCAT", array_of_items(item), _or_empty(array)), array.type)


@function("array_cat", "array array")
def concatenate(one: Value, two: Value) -> Value:
    """`array || array`: a NULL array counts as an empty one, unless both are NULL."""
    (a, b), type_ = unify([one, two])
    both = fn("CONCAT", _or_empty(a.of(type_)), _or_empty(b.of(type_)))
    return Value(when(or_(is_not_null(a.tree), is_not_null(b.tree)), both), type_)


@function("array_position", "array any")
def _position(array: Value, value: Value) -> Value:
    array, (item,) = _with_items(array, value)
    is_it = op(fn("GET", array.tree, op(PLACE, "-", 1)), "<=>", item)
    places = fn("FILTER", fn("SEQUENCE", 1, fn("CARDINALITY", array.tree)), lambda_(is_it, PLACE))
    return Value(when(_has_items(array), fn("GET", places, 0)), t.INTEGER)


@function("array_remove", "array any")
def _remove(array: Value, value: Value) -> Value:
    array, (item,) = _with_items(array, value)
    return Value(kept(array.tree, not_(op(ITEM, "<=>", item))), array.type)


@function("array_replace", "array any any")
def _replace(array: Value, old: Value, new: Value) -> Value:
    array, (a, b) = _with_items(array, old, new)
    return Value(each(array.tree, when(op(ITEM, "<=>", a), b, ITEM)), array.type)


@function("array_to_string", "array text text?")
def _to_string(array: Value, separator: Value, null_text: Value | None = None) -> Value:
    texts = array.tree
    if element(array) != t.TEXT:
        texts = each(array.tree, shown(Value(ITEM, element(array))))
    without = fn("ARRAY_JOIN", texts, separator.tree)
    if null_text is None:
        return Value(without, t.TEXT)
    joined = fn("ARRAY_JOIN", texts, separator.tree, null_text.tree)
    return Value(joined if isinstance(null_text.constant, str) else fn("COALESCE", joined, without), t.TEXT)


def overlaps(one: Value, two: Value) -> Value:
    """`&&`: an element in common; NULLs have nothing in common."""
    (a, b), _ = unify([one, two])
    return _of_both(a, b, fn("EXISTS", a.tree, lambda_(_is_in(b), ITEM)))


def contains(one: Value, two: Value) -> Value:
    """`@>`: every element of the second is in the first; a NULL never is."""
    (a, b), _ = unify([one, two])
    return _of_both(a, b, fn("FORALL", b.tree, lambda_(_is_in(a), ITEM)))


def _is_in(array: Value) -> Node:
    return and_(is_not_null(ITEM), fn("COALESCE", fn("ARRAY_CONTAINS", array.tree, ITEM), FALSE))


def _of_both(a: Value, b: Value, test: Node) -> Value:
    """A test of two arrays, NULL where one of them is NULL."""
    return Value(when(and_(is_not_null(a.tree), is_not_null(b.tree)), test), t.BOOLEAN)


def constructor(values: list[Value]) -> Value:
    """ARRAY[...]."""
    if not values:
        raise RefusalError("an empty ARRAY[]", "write '{}'::type[]")
    items, type_ = unify(values)
    if type_.element is not None:
        raise RefusalError("an array of arrays", "only arrays of one dimension are supported")
    return Value(array_of_items(*(i.tree for i in items)), array_of(type_))


def quantified(operator: str, left: Value, array: Value, *, every: bool, negated: bool = False) -> Value:
    """`x op ANY(array)` and `x op ALL(array)`, with SQL's three-valued logic.

    Args:
        negated: the operator is NOT LIKE or NOT ILIKE.
    """
    array = beside(array, array_of(left.type))
    if array.type.name == "unknown":
        array = convert(array, array_of(left.type))
    left = beside(left, element(array))
    (left, _), type_ = compared(left, Value(ITEM, element(array)))
    if element(array).spark != type_.spark:
        array = convert(array, array_of(type_))
    test = op(left.tree, operator, ITEM) if not negated else not_like(left.tree, operator, ITEM)
    return Value(fn("FORALL" if every else "EXISTS", array.tree, lambda_(test, ITEM)), t.BOOLEAN)
