"""Aggregates, with DISTINCT, ORDER BY, FILTER, WITHIN GROUP and OVER."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.sql.postgres import types as t
from millstream.sql.postgres.aggregate_calls import STAR, Call, argument_of
from millstream.sql.postgres.arithmetic import divide
from millstream.sql.postgres.casts import coerce
from millstream.sql.postgres.list_aggregates import LISTS
from millstream.sql.postgres.refusals import RefusalError, refuse_unequal
from millstream.sql.postgres.spark_builders import TRUE, Node, and_, cases, fn, op, total, when
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import as_numeric, numeric
from millstream.sql.postgres.window_functions import ORDERED_SETS, WINDOW_ONLY


def is_aggregate(name: str) -> bool:
    """Whether the name is that of an aggregate or a window function."""
    return name in NAMES


def translate(call: Call) -> Value:
    """The call, translated to Spark."""
    if call.name in WINDOW_ONLY:
        if call.window is None:
            raise RefusalError(f"{call.name} without OVER")
        if call.condition is not None or call.distinct or call.order:
            raise RefusalError(f"{call.name} with FILTER, DISTINCT or ORDER BY inside")
        return WINDOW_ONLY[call.name](call)
    if call.name in ORDERED_SETS:
        if len(call.within) != 1 or call.window is not None:
            raise RefusalError(f"{call.name} without WITHIN GROUP (ORDER BY one expression)")
        return ORDERED_SETS[call.name](call)
    rule = _AGGREGATES.get(call.name)
    if rule is None:
        raise RefusalError(f"the aggregate {call.name}")
    if call.within:
        raise RefusalError(f"{call.name} WITHIN GROUP")
    if call.distinct:
        refuse_unequal((v.type for v in call.args), "DISTINCT")
    for value in call.args:
        if value.interval is not None or value.items:
            raise RefusalError(f"{call.name} of {value.type}", "use EXTRACT(EPOCH FROM ...) to get a number")
    return rule(call)


# Counting and adding


def _count(call: Call) -> Value:
    if call.is_star:
        return Value(call.invoke("COUNT", STAR), t.BIGINT)
    return Value(call.invoke("COUNT", argument_of(call).tree), t.BIGINT)


def _sum(call: Call) -> Value:
    x = argument_of(call)
    if x.type.is_float:
        result = x.type
        added = call.invoke("SUM", x.tree)
        return Value(added if result == t.DOUBLE else cast(added, result), result)
    if x.type == t.BIGINT:
        return Value(call.invoke("SUM", cast(x.tree, numeric(19, 0))), numeric(29, 0))
    if x.type.is_integer:
        return Value(call.invoke("SUM", x.tree), t.BIGINT)
    if x.type.name != "numeric":
        raise RefusalError(f"sum of {x.type}")
    result = numeric(x.type.digits + 10, x.type.scale, shows_scale=x.type.shows_scale)
    return Value(call.invoke("SUM", x.tree), result)


def _avg(call: Call) -> Value:
    x = argument_of(call)
    if x.type.is_float:
        return Value(call.invoke("AVG", cast(x.tree, t.DOUBLE) if x.type != t.DOUBLE else x.tree), t.DOUBLE)
    if not x.type.is_number:
        raise RefusalError(f"avg of {x.type}")
    type_ = as_numeric(x.type)
    total = numeric(type_.digits + 10, type_.scale)
    sums = call.invoke("SUM", cast(x.tree, type_) if x.type.is_integer else x.tree)
    count = fn("NULLIF", call.invoke("COUNT", x.tree), 0)
    return divide(sums, total, cast(count, numeric(19, 0)), numeric(19, 0))


def _extremum(name: str) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        x = argument_of(call)
        if x.type.name in {"boolean", "record"} or not x.type.has_order:
            raise RefusalError(f"{call.name} of {x.type}", "cast it to text" if x.type.label else None)
        x = x if x.type.name != "unknown" else coerce(x, t.TEXT)
        return Value(call.invoke(name, x.tree, distinct=False), x.type)

    return rule


def _plain(name: str, wanted: t.Type, result: t.Type | None = None) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        values = [coerce(v, wanted) for v in call.args]
        return Value(call.invoke(name, *(v.tree for v in values)), result or wanted)

    return rule


def _bits(name: str) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        x = argument_of(call)
        if not x.type.is_integer:
            raise RefusalError(f"{call.name} of {x.type}")
        return Value(call.invoke(name, x.tree), x.type)

    return rule


def _moment(name: str) -> Callable[[Call], Value]:
    """Computed in double precision even for exact numbers: PostgreSQL's numeric result has unlimited digits."""

    def rule(call: Call) -> Value:
        x = argument_of(call)
        if not x.type.is_number:
            raise RefusalError(f"{call.name} of {x.type}")
        return Value(call.invoke(name, cast(x.tree, t.DOUBLE)), t.DOUBLE)

    return rule


def _pair(name: str, result: t.Type = t.DOUBLE) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        if len(call.args) != 2 or call.distinct:
            raise RefusalError(f"{call.name} of {len(call.args)} arguments")
        values = [cast(coerce(v, t.DOUBLE).tree, t.DOUBLE) for v in call.args]
        return Value(call.invoke(name, *values), result)

    return rule


Sums = dict[str, Node]
"""The sums of squares and products of two arguments, and their averages."""


def _regression(formula: Callable[[Sums], Node]) -> Callable[[Call], Value]:
    """From the sums of squares and products: where one is zero, Spark divides by it; PostgreSQL returns NULL or 1."""

    def rule(call: Call) -> Value:
        if len(call.args) != 2 or call.distinct:
            raise RefusalError(f"{call.name} of {len(call.args)} arguments")
        values = [cast(coerce(v, t.DOUBLE).tree, t.DOUBLE) for v in call.args]
        names = ("sxx", "syy", "sxy", "avgx", "avgy")
        return Value(formula({name: call.invoke(f"REGR_{name.upper()}", *values) for name in names}), t.DOUBLE)

    return rule


def _correlation(of: Sums) -> Node:
    spread = fn("SQRT", op(of["sxx"], "*", of["syy"]))
    return when(and_(op(of["sxx"], ">", 0), op(of["syy"], ">", 0)), op(of["sxy"], "/", spread))


def _intercept(of: Sums) -> Node:
    climb = op(op(of["avgx"], "*", of["sxy"]), "/", of["sxx"])
    return when(op(of["sxx"], ">", 0), op(of["avgy"], "-", climb))


def _slope(of: Sums) -> Node:
    return when(op(of["sxx"], ">", 0), op(of["sxy"], "/", of["sxx"]))


def _determination(of: Sums) -> Node:
    varies = op(of["sxx"], ">", 0)
    share = op(op(of["sxy"], "*", of["sxy"]), "/", op(of["sxx"], "*", of["syy"]))
    return cases((and_(varies, op(of["syy"], "=", 0)), cast(1, t.DOUBLE)), (varies, share))


def _any_value(call: Call) -> Value:
    x = argument_of(call)
    found = call.invoke("ANY_VALUE", x.tree, TRUE) if call.window is None else call.invoke("MAX", x.tree)
    return Value(found, x.type)


def grouping_number(flags: Sequence[Node]) -> Value:
    """GROUPING of several keys: the flags as the bits of a number, that of the last key the lowest."""
    if len(flags) == 1:
        return Value(flags[0], t.INTEGER)
    bits = [op(flag, "*", 2 ** (len(flags) - 1 - n)) for n, flag in enumerate(flags)]
    return Value(total(bits), t.INTEGER)


_AGGREGATES: dict[str, Callable[[Call], Value]] = {
    "count": _count,
    "sum": _sum,
    "avg": _avg,
    "min": _extremum("MIN"),
    "max": _extremum("MAX"),
    "bool_and": _plain("BOOL_AND", t.BOOLEAN),
    "every": _plain("BOOL_AND", t.BOOLEAN),
    "bool_or": _plain("BOOL_OR", t.BOOLEAN),
    "bit_and": _bits("BIT_AND"),
    "bit_or": _bits("BIT_OR"),
    "bit_xor": _bits("BIT_XOR"),
    "stddev": _moment("STDDEV_SAMP"),
    "stddev_samp": _moment("STDDEV_SAMP"),
    "stddev_pop": _moment("STDDEV_POP"),
    "variance": _moment("VAR_SAMP"),
    "var_samp": _moment("VAR_SAMP"),
    "var_pop": _moment("VAR_POP"),
    "corr": _regression(_correlation),
    "covar_pop": _pair("COVAR_POP"),
    "covar_samp": _pair("COVAR_SAMP"),
    "regr_avgx": _pair("REGR_AVGX"),
    "regr_avgy": _pair("REGR_AVGY"),
    "regr_count": _pair("REGR_COUNT", t.BIGINT),
    "regr_intercept": _regression(_intercept),
    "regr_r2": _regression(_determination),
    "regr_slope": _regression(_slope),
    "regr_sxx": _pair("REGR_SXX"),
    "regr_sxy": _pair("REGR_SXY"),
    "regr_syy": _pair("REGR_SYY"),
    "any_value": _any_value,
    **LISTS,
}
NAMES = {*_AGGREGATES, *ORDERED_SETS, *WINDOW_ONLY}
