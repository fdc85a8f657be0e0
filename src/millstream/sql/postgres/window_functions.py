"""Window functions, and ordered-set aggregates."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.aggregate_calls import Call, argument_of
from millstream.sql.postgres.casts import coerce, unify
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import FALSE, TRUE, at_least, fn, op
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import Value

# Ordered-set aggregates


def _percentile_cont(call: Call) -> Value:
    fraction, key = coerce(argument_of(call), t.DOUBLE), call.within[0]
    if not key.value.type.is_number:
        raise RefusalError(f"percentile_cont of {key.value.type}")
    if call.args[0].is_null:
        raise RefusalError("percentile_cont(NULL)", "its value is NULL: write NULL")
    place = op(1, "-", fraction.tree) if key.descending else fraction.tree
    bare = Call(call.name, condition=call.condition)
    return Value(bare.invoke("PERCENTILE", cast(key.value.tree, t.DOUBLE), place), t.DOUBLE)


def _percentile_disc(call: Call) -> Value:
    fraction, key = coerce(argument_of(call), t.DOUBLE), call.within[0]
    if key.value.type.name in {"json", "jsonb", "boolean", "record"} or key.value.interval is not None:
        raise RefusalError(f"percentile_disc of {key.value.type}")
    bare, x = Call(call.name, condition=call.condition), key.value.tree
    listed = fn("SORT_ARRAY", bare.invoke("COLLECT_LIST", x), FALSE if key.descending else TRUE)
    place = at_least(cast(fn("CEIL", op(fraction.tree, "*", bare.invoke("COUNT", x))), t.INTEGER), 1)
    return Value(fn("GET", listed, op(place, "-", 1)), key.value.type)


def _mode(call: Call) -> Value:
    key = call.within[0]
    within = exp.Ordered(this=key.value.tree, desc=key.descending or None, nulls_first=not key.descending)
    return Value(Call(call.name, condition=call.condition).invoke("MODE", within=[within]), key.value.type)


ORDERED_SETS: dict[str, Callable[[Call], Value]] = {
    "percentile_cont": _percentile_cont,
    "percentile_disc": _percentile_disc,
    "mode": _mode,
}


# Window functions


def _rank(name: str) -> Callable[[Call], Value]:
    return lambda call: Value(cast(call.invoke(name), t.BIGINT), t.BIGINT)


def _share(name: str) -> Callable[[Call], Value]:
    return lambda call: Value(call.invoke(name), t.DOUBLE)


def _ntile(call: Call) -> Value:
    return Value(call.invoke("NTILE", coerce(argument_of(call), t.INTEGER).tree), t.INTEGER)


def _offset(name: str) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        x = call.args[0]
        args = [x.tree]
        if len(call.args) > 1:
            if not isinstance(call.args[1].constant, int):
                raise RefusalError(f"{call.name} with an offset that is not a constant")
            args.append(call.args[1].tree)
        type_ = x.type
        if len(call.args) > 2:
            (x, default), type_ = unify([x, call.args[2]])
            args = [x.tree, args[1], default.tree]
        return Value(call.invoke(name, *args), type_)

    return rule


def _nth(name: str) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        return Value(call.invoke(name, *(a.tree for a in call.args)), call.args[0].type)

    return rule


WINDOW_ONLY: dict[str, Callable[[Call], Value]] = {
    "row_number": _rank("ROW_NUMBER"),
    "rank": _rank("RANK"),
    "dense_rank": _rank("DENSE_RANK"),
    "percent_rank": _share("PERCENT_RANK"),
    "cume_dist": _share("CUME_DIST"),
    "ntile": _ntile,
    "lag": _offset("LAG"),
    "lead": _offset("LEAD"),
    "first_value": _nth("FIRST_VALUE"),
    "last_value": _nth("LAST_VALUE"),
    "nth_value": _nth("NTH_VALUE"),
}
