"""Aggregates whose result SQL leaves open, each turned into one that has a single result.

ANY_VALUE may return any value of the group, COLLECT_LIST its values in any order, MAX_BY the value of any row with the
greatest key: the result depends on the order in which rows are read. A delta reads them in another order than the
query, so one result has to be fixed for both; `verify` then compares with that one.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from millstream.ops.expressions import is_not_null, is_null, when
from millstream.sql.lowering.aggregates.aggregation import Aggregation
from millstream.sql.lowering.aggregates.calls import Calls
from millstream.sql.refusals.unsupported import unsupported

KEY, VALUE = "k", "v"


def any_value(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    """ANY_VALUE, FIRST and LAST: any value of the group is valid, and an extremum is cheap to maintain."""
    is_last = aggregation.name in {"LAST", "LAST_VALUE"}
    value = _ordered(aggregation, calls, aggregation.arguments[0])
    calls.context.close_result(aggregation.name, f"the {'greatest' if is_last else 'least'} value is taken")
    return calls.call("MAX" if is_last else "MIN", value, condition=aggregation.condition)


def extremum_by(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    """MAX_BY(x, y) and MIN_BY(x, y): the x of the greatest or least (y, x)."""
    if len(aggregation.arguments) != 2:
        what = f"{aggregation.name} of several values"
        hint = "write ROW_NUMBER() in a subquery and keep the first rows"
        raise unsupported(what, aggregation.function, calls.context.sql, hint)
    value, by = (_ordered(aggregation, calls, a) for a in aggregation.arguments)
    word = "greatest" if aggregation.name == "MAX_BY" else "least"
    calls.context.close_result(aggregation.name, f"of several values the {word} is taken")
    pair = when(is_not_null(exp.paren(by, copy=False)), _struct({KEY: by, VALUE: value}))
    return _field(calls.call(aggregation.name.removesuffix("_BY"), pair, condition=aggregation.condition), VALUE)


def array(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    """COLLECT_LIST and COLLECT_SET: sorted by value, or by the ORDER BY inside the call and then by value."""
    value = _ordered(aggregation, calls, aggregation.arguments[0])
    if _sorts_by_itself(aggregation, value):
        is_descending = bool(aggregation.order and aggregation.order[0].args.get("desc"))
    elif aggregation.order:
        return _array_by(aggregation, calls, value)
    else:
        is_descending = False
        calls.context.close_result(aggregation.name, "the values are sorted")
    return calls.call(
        aggregation.name,
        value,
        condition=aggregation.condition,
        distinct=aggregation.is_distinct,
        shape=_shaped(aggregation, lambda call: _sort(call, is_descending)),
    )


def text(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    """LISTAGG: without an ORDER BY the values are sorted; with one, the values break its ties."""
    value = _ordered(aggregation, calls, aggregation.arguments[0])
    order = list(aggregation.order)
    if not _sorts_by_itself(aggregation, value):
        how = "ties are broken by the values" if order else "the values are sorted"
        calls.context.close_result("LISTAGG", how)
        order.append(exp.Ordered(this=value, nulls_first=True))
    separator = aggregation.arguments[1:] or (exp.Null(),)
    return calls.call(
        "LISTAGG", value, *separator, condition=aggregation.condition, distinct=aggregation.is_distinct, order=order
    )


def mode(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    """MODE(x): of several most frequent values the least, which is what MODE(x, TRUE) returns."""
    if aggregation.order:
        return calls.call("MODE", order=aggregation.order, condition=aggregation.condition)
    value, *rest = aggregation.arguments
    _ordered(aggregation, calls, value)
    if rest != [exp.true()]:
        calls.context.close_result("MODE", "of several most frequent values the least is taken")
    return calls.call("MODE", value, exp.true(), condition=aggregation.condition)


def _array_by(aggregation: Aggregation, calls: Calls, value: exp.Expr) -> exp.Expr:
    """Sort pairs of sort keys and value, then keep the values."""
    directions = {bool(o.args.get("desc")) for o in aggregation.order}
    if len(directions) > 1 or aggregation.is_distinct:
        what = "DISTINCT with ORDER BY" if aggregation.is_distinct else "ORDER BY in two directions"
        raise unsupported(f"{what} inside {aggregation.name}", aggregation.function, calls.context.sql)
    is_descending = directions.pop()
    fields: dict[str, exp.Expr] = {}
    for number, ordered in enumerate(aggregation.order, start=1):
        key = _ordered(aggregation, calls, ordered.this)
        # engines differ in how they order NULLs within a struct, so a field before the value marks them
        is_flag = is_null if bool(ordered.args.get("nulls_first")) == is_descending else is_not_null
        fields[f"{KEY}{number}n"] = is_flag(exp.paren(key, copy=False))
        fields[f"{KEY}{number}"] = key
    calls.context.close_result(aggregation.name, "ties are broken by the values")
    element = exp.to_identifier("e")
    pick = exp.Lambda(this=exp.Dot(this=element, expression=_name(VALUE)), expressions=[element.copy()])
    pair: exp.Expr = _struct({**fields, VALUE: value})
    if not aggregation.keeps_nulls:
        pair = when(is_not_null(exp.paren(value, copy=False)), pair)
    return calls.call(
        aggregation.name,
        pair,
        condition=aggregation.condition,
        shape=lambda call: exp.Transform(this=_sort(call, is_descending), expression=pick),
    )


def _shaped(aggregation: Aggregation, sort: Callable[[exp.Expr], exp.Expr]) -> Callable[[exp.Expr], exp.Expr]:
    if not aggregation.keeps_nulls:
        return sort
    return lambda call: sort(exp.RespectNulls(this=call))


def _sorts_by_itself(aggregation: Aggregation, value: exp.Expr) -> bool:
    return len(aggregation.order) == 1 and aggregation.order[0].this.unnest() == value.unnest()


def _ordered(aggregation: Aggregation, calls: Calls, value: exp.Expr) -> exp.Expr:
    """Refuse a value without an order, which is needed to fix a result; return any other unchanged."""
    type_ = calls.type_of(value)
    if "map<" in type_ or "variant" in type_:
        what = f"the aggregate {aggregation.name} of the type {type_}, whose values have no order,"
        raise unsupported(what, aggregation.function, calls.context.sql, "cast it to STRING")
    return value


def _sort(array_: exp.Expr, is_descending: bool) -> exp.Expr:
    if is_descending:
        return exp.ArraySort(this=array_, asc=exp.false(), nulls_first=exp.false())
    return exp.ArraySort(this=array_, nulls_first=exp.true())


def _struct(fields: dict[str, exp.Expr]) -> exp.Struct:
    return exp.Struct(expressions=[exp.PropertyEQ(this=_name(n), expression=e) for n, e in fields.items()])


def _field(struct: exp.Expr, name: str) -> exp.Expr:
    return exp.Dot(this=struct, expression=_name(name))


def _name(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)
