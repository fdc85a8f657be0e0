"""Aggregates and window functions, with DISTINCT, ORDER BY, FILTER, WITHIN GROUP and OVER."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.arithmetic import divide
from millstream.sql.postgres.casts import coerce, unify
from millstream.sql.postgres.functions.json import is_absent, printed, returning
from millstream.sql.postgres.ordering import Key, keys_of, ordered, sorted_list
from millstream.sql.postgres.refusals import RefusalError, refuse_unequal
from millstream.sql.postgres.types import array_of, as_numeric, numeric
from millstream.sql.postgres.values import ITEM, Value, at_least, cast, text_literal
from millstream.sql.postgres.windows import over

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions


@dataclass
class Call:
    """A call with its clauses, the arguments translated."""

    name: str
    args: list[Value] = field(default_factory=list)
    is_star: bool = False
    distinct: bool = False
    order: list[Key] = field(default_factory=list)
    within: list[Key] = field(default_factory=list)
    condition: str | None = None
    window: str | None = None
    """The text behind OVER."""
    window_order: list[Key] = field(default_factory=list)
    absent: bool = False
    """ABSENT ON NULL."""
    returning: t.Type = t.JSON

    def invoke(self, function: str, *args: str, distinct: bool | None = None, within: str = "") -> str:
        """One aggregate of Spark's with this call's DISTINCT, FILTER and OVER.

        Spark takes no FILTER before OVER: the arguments of other rows are NULL instead.
        """
        given = list(args)
        if self.condition is not None and self.window is not None:
            given = [f"CASE WHEN {self.condition} THEN {'1' if a == '*' else a} END" for a in given]
        word = "DISTINCT " if (self.distinct if distinct is None else distinct) else ""
        text = f"{function}({word}{', '.join(given)})"
        if within:
            text += f" WITHIN GROUP (ORDER BY {within})"
        if self.condition is not None and self.window is None:
            text += f" FILTER (WHERE {self.condition})"
        if self.window is not None:
            text += f" OVER {self.window}"
        return text


def is_aggregate(name: str) -> bool:
    """Whether a name is an aggregate's or a window function's."""
    return name in NAMES


def read(self: Expressions, node: exp.Expr) -> Call:
    """Take a call apart."""
    window: exp.Window | None = None
    condition: exp.Expr | None = None
    within: exp.Expr | None = None
    while isinstance(node, exp.Window | exp.Filter | exp.WithinGroup):
        if isinstance(node, exp.Window):
            window = node
        elif isinstance(node, exp.Filter):
            condition = node.expression.this
        else:
            within = node.expression
        node = node.this
    call = _bare(self, node)
    if window is not None:
        needs_order = call.name in _WINDOW_ONLY and call.name not in {"first_value", "last_value", "nth_value"}
        call.window, call.window_order = over(self, window, needs_order=needs_order)
    if condition is not None:
        call.condition = self.boolean(condition)
    if within is not None:
        call.within = keys_of(self, within.expressions)
    return call


def _bare(self: Expressions, node: exp.Expr) -> Call:
    if isinstance(node, exp.GroupConcat):
        call = Call("string_agg")
        _read_argument(self, call, node.this)
        separator = node.args.get("separator")
        call.args.append(self.translate(separator) if separator is not None else Value("''", t.UNKNOWN, constant=""))
        return call
    if isinstance(node, exp.JSONObjectAgg):
        if len(node.expressions) != 1:
            raise RefusalError("JSON_OBJECTAGG with such clauses")
        pair = node.expressions[0]
        pair_of = [self.translate(pair.this), self.translate(pair.expression)]
        return Call("json_objectagg", pair_of, absent=is_absent(node, default=False), returning=returning(node))
    if isinstance(node, exp.JSONArrayAgg):
        call = Call("json_arrayagg", absent=is_absent(node, default=True), returning=returning(node))
        _read_argument(self, call, node.this)
        return call
    if not isinstance(node, exp.Anonymous):
        raise RefusalError(f"{node.sql(dialect='postgres')} with FILTER, WITHIN GROUP or OVER")
    call = Call(str(node.this).lower())
    for argument in node.expressions:
        _read_argument(self, call, argument)
    return call


def _read_argument(self: Expressions, call: Call, node: exp.Expr) -> None:
    if isinstance(node, exp.Order):
        call.order = keys_of(self, node.expressions)
        node = node.this
    if isinstance(node, exp.Distinct):
        call.distinct = True
        call.args += [self.translate(e) for e in node.expressions]
    elif isinstance(node, exp.Star):
        call.is_star = True
    else:
        call.args.append(self.translate(node))


def translate(self: Expressions, call: Call) -> Value:
    """The call as Spark's."""
    if call.name in _WINDOW_ONLY:
        if call.window is None:
            raise RefusalError(f"{call.name} without OVER")
        if call.condition is not None or call.distinct or call.order:
            raise RefusalError(f"{call.name} with FILTER, DISTINCT or ORDER BY inside")
        return _WINDOW_ONLY[call.name](call)
    if call.name in _ORDERED_SETS:
        if len(call.within) != 1 or call.window is not None:
            raise RefusalError(f"{call.name} without WITHIN GROUP (ORDER BY one expression)")
        return _ORDERED_SETS[call.name](call)
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


def _one(call: Call) -> Value:
    if len(call.args) != 1:
        raise RefusalError(f"{call.name} of {len(call.args)} arguments")
    return call.args[0]


# Counting and adding


def _count(call: Call) -> Value:
    if call.is_star:
        return Value(call.invoke("COUNT", "*"), t.BIGINT)
    return Value(call.invoke("COUNT", _one(call).sql), t.BIGINT)


def _sum(call: Call) -> Value:
    x = _one(call)
    if x.type.is_float:
        result = x.type
        text = call.invoke("SUM", x.sql)
        return Value(text if result == t.DOUBLE else cast(text, result), result)
    if x.type == t.BIGINT:
        return Value(call.invoke("SUM", cast(x.sql, numeric(19, 0))), numeric(29, 0))
    if x.type.is_integer:
        return Value(call.invoke("SUM", x.sql), t.BIGINT)
    if x.type.name != "numeric":
        raise RefusalError(f"sum of {x.type}")
    result = numeric(x.type.digits + 10, x.type.scale, shows_scale=x.type.shows_scale)
    return Value(call.invoke("SUM", x.sql), result)


def _avg(call: Call) -> Value:
    x = _one(call)
    if x.type.is_float:
        return Value(call.invoke("AVG", cast(x.sql, t.DOUBLE) if x.type != t.DOUBLE else x.sql), t.DOUBLE)
    if not x.type.is_number:
        raise RefusalError(f"avg of {x.type}")
    type_ = as_numeric(x.type)
    total = numeric(type_.digits + 10, type_.scale)
    sums = call.invoke("SUM", cast(x.sql, type_) if x.type.is_integer else x.sql)
    count = f"NULLIF({call.invoke('COUNT', x.sql)}, 0)"
    return divide(sums, total, cast(count, numeric(19, 0)), numeric(19, 0))


def _extremum(name: str) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        x = _one(call)
        if x.type.name in {"boolean", "record"} or not x.type.has_order:
            raise RefusalError(f"{call.name} of {x.type}", "cast it to text" if x.type.label else None)
        x = x if x.type.name != "unknown" else coerce(x, t.TEXT)
        return Value(call.invoke(name, x.sql, distinct=False), x.type)

    return rule


def _plain(name: str, wanted: t.Type, result: t.Type | None = None) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        values = [coerce(v, wanted) for v in call.args]
        return Value(call.invoke(name, *(v.sql for v in values)), result or wanted)

    return rule


def _bits(name: str) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        x = _one(call)
        if not x.type.is_integer:
            raise RefusalError(f"{call.name} of {x.type}")
        return Value(call.invoke(name, x.sql), x.type)

    return rule


def _moment(name: str) -> Callable[[Call], Value]:
    """Of exact numbers too in double precision: PostgreSQL's numeric result has digits without end."""

    def rule(call: Call) -> Value:
        x = _one(call)
        if not x.type.is_number:
            raise RefusalError(f"{call.name} of {x.type}")
        return Value(call.invoke(name, cast(x.sql, t.DOUBLE)), t.DOUBLE)

    return rule


def _pair(name: str, result: t.Type = t.DOUBLE) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        if len(call.args) != 2 or call.distinct:
            raise RefusalError(f"{call.name} of {len(call.args)} arguments")
        values = [cast(coerce(v, t.DOUBLE).sql, t.DOUBLE) for v in call.args]
        return Value(call.invoke(name, *values), result)

    return rule


def _regression(template: str) -> Callable[[Call], Value]:
    """By the sums of squares and products: where one is zero Spark divides by it, PostgreSQL has NULL or 1."""

    def rule(call: Call) -> Value:
        if len(call.args) != 2 or call.distinct:
            raise RefusalError(f"{call.name} of {len(call.args)} arguments")
        values = [cast(coerce(v, t.DOUBLE).sql, t.DOUBLE) for v in call.args]
        parts = {name: call.invoke(f"REGR_{name.upper()}", *values) for name in ("sxx", "syy", "sxy", "avgx", "avgy")}
        return Value(template.format(**parts), t.DOUBLE)

    return rule


def _any_value(call: Call) -> Value:
    x = _one(call)
    text = call.invoke("ANY_VALUE", x.sql, "TRUE") if call.window is None else call.invoke("MAX", x.sql)
    return Value(text, x.type)


# Lists


def _string_agg(call: Call) -> Value:
    if len(call.args) != 2 or not isinstance(call.args[1].constant, str):
        raise RefusalError("string_agg with a separator that is not a constant")
    if call.window is not None:
        raise RefusalError("string_agg with OVER")
    x = coerce(call.args[0], t.TEXT)
    within = ordered(call.order) if call.order else ""
    return Value(call.invoke("LISTAGG", x.sql, text_literal(call.args[1].constant), within=within), t.TEXT)


def _array_agg(call: Call) -> Value:
    x = _one(call)
    if x.type.element is not None:
        raise RefusalError("array_agg of arrays", "arrays have one dimension here")
    x = coerce(x, t.TEXT) if x.type.name == "unknown" else x
    return Value(_some(call, sorted_list(call, x)), array_of(x.type))


def _some(call: Call, result: str) -> str:
    """NULL for no rows, where Spark has an empty list."""
    return f"CASE WHEN {call.invoke('COUNT', '*', distinct=False)} > 0 THEN {result} END"


def _json_agg(type_: t.Type) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        x = _one(call)
        if call.distinct:
            raise RefusalError(f"{call.name} with DISTINCT")
        if x.type.element is not None and type_ == t.JSON:
            raise RefusalError(f"{call.name} of {x.type}", "use jsonb_agg: json_agg puts them on lines")
        space = " " if type_ == t.JSONB else ""
        listed = sorted_list(call, x)
        if call.absent:
            listed = f"FILTER({listed}, {ITEM} -> {ITEM} IS NOT NULL)"
        items = f"TRANSFORM({listed}, {ITEM} -> {printed(Value(ITEM, x.type), space)})"
        return Value(_some(call, f"CONCAT('[', ARRAY_JOIN({items}, ', '), ']')"), type_)

    return rule


def _json_object_agg(call: Call) -> Value:
    if len(call.args) != 2 or call.order or call.distinct:
        raise RefusalError(f"{call.name} with such arguments")
    if call.window_order:
        raise RefusalError(f"{call.name} over an ordered window", "use jsonb_object_agg, which sorts its keys")
    key, value = coerce(call.args[0], t.TEXT), call.args[1]
    pair = _present(call, value, f"CONCAT({printed(key)}, ' : ', {printed(value)})")
    listed = f"ARRAY_SORT({call.invoke('COLLECT_LIST', pair)})"
    return Value(_some(call, f"CONCAT('{{ ', ARRAY_JOIN({listed}, ', '), ' }}')"), t.JSON)


def _jsonb_object_agg(call: Call) -> Value:
    """Keys in jsonb's order. Which of several values of a key PostgreSQL keeps depends on the order of rows: here, an
    error.
    """
    if len(call.args) != 2 or call.order or call.distinct:
        raise RefusalError(f"{call.name} with such arguments")
    key, value = coerce(call.args[0], t.TEXT), call.args[1]
    name = printed(key)
    entry = f"NAMED_STRUCT('n', OCTET_LENGTH({key.sql}), 'k', {name}, 'v', CONCAT({name}, ': ', {printed(value, ' ')}))"
    listed = call.invoke("COLLECT_LIST", _present(call, value, entry))
    place = f"NAMED_STRUCT('n', {ITEM}.n, 'k', {ITEM}.k)"
    unique = f"MAP_FROM_ENTRIES(TRANSFORM({listed}, {ITEM} -> NAMED_STRUCT('k', {place}, 'v', {ITEM}.v)))"
    items = f"TRANSFORM(ARRAY_SORT(MAP_ENTRIES({unique})), {ITEM} -> {ITEM}.value)"
    return Value(_some(call, f"CONCAT('{{', ARRAY_JOIN({items}, ', '), '}}')"), t.JSONB)


def _present(call: Call, value: Value, entry: str) -> str:
    """An entry, or NULL where ABSENT ON NULL leaves it out: COLLECT_LIST does, too."""
    return f"CASE WHEN {value.sql} IS NOT NULL THEN {entry} END" if call.absent else entry


def _json_arrayagg(call: Call) -> Value:
    return _json_agg(call.returning)(call)


def _json_objectagg(call: Call) -> Value:
    return (_jsonb_object_agg if call.returning == t.JSONB else _json_object_agg)(call)


# Ordered sets


def _percentile_cont(call: Call) -> Value:
    fraction, key = coerce(_one(call), t.DOUBLE), call.within[0]
    if not key.value.type.is_number:
        raise RefusalError(f"percentile_cont of {key.value.type}")
    if call.args[0].is_null:
        raise RefusalError("percentile_cont(NULL)", "its value is NULL: write that")
    place = f"(1 - {fraction.sql})" if key.descending else fraction.sql
    bare = Call(call.name, condition=call.condition)
    return Value(bare.invoke("PERCENTILE", cast(key.value.sql, t.DOUBLE), place), t.DOUBLE)


def _percentile_disc(call: Call) -> Value:
    fraction, key = coerce(_one(call), t.DOUBLE), call.within[0]
    if key.value.type.name in {"json", "jsonb", "boolean", "record"} or key.value.interval is not None:
        raise RefusalError(f"percentile_disc of {key.value.type}")
    bare = Call(call.name, condition=call.condition)
    listed = f"SORT_ARRAY({bare.invoke('COLLECT_LIST', key.value.sql)}, {'FALSE' if key.descending else 'TRUE'})"
    place = at_least(f"CAST(CEIL({fraction.sql} * {bare.invoke('COUNT', key.value.sql)}) AS INT)", "1")
    return Value(f"GET({listed}, {place} - 1)", key.value.type)


def _mode(call: Call) -> Value:
    key = call.within[0]
    within = f"{key.value.sql}{' DESC' if key.descending else ''}"
    return Value(Call(call.name, condition=call.condition).invoke("MODE", within=within), key.value.type)


# Functions of windows


def _rank(name: str) -> Callable[[Call], Value]:
    return lambda call: Value(cast(call.invoke(name), t.BIGINT), t.BIGINT)


def _share(name: str) -> Callable[[Call], Value]:
    return lambda call: Value(call.invoke(name), t.DOUBLE)


def _ntile(call: Call) -> Value:
    return Value(call.invoke("NTILE", coerce(_one(call), t.INTEGER).sql), t.INTEGER)


def _offset(name: str) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        x = call.args[0]
        args = [x.sql]
        if len(call.args) > 1:
            if not isinstance(call.args[1].constant, int):
                raise RefusalError(f"{call.name} by an offset that is not a constant")
            args.append(call.args[1].sql)
        type_ = x.type
        if len(call.args) > 2:
            (x, default), type_ = unify([x, call.args[2]])
            args = [x.sql, args[1], default.sql]
        return Value(call.invoke(name, *args), type_)

    return rule


def _nth(name: str) -> Callable[[Call], Value]:
    def rule(call: Call) -> Value:
        return Value(call.invoke(name, *(a.sql for a in call.args)), call.args[0].type)

    return rule


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
    "corr": _regression("CASE WHEN {sxx} > 0 AND {syy} > 0 THEN {sxy} / SQRT({sxx} * {syy}) END"),
    "covar_pop": _pair("COVAR_POP"),
    "covar_samp": _pair("COVAR_SAMP"),
    "regr_avgx": _pair("REGR_AVGX"),
    "regr_avgy": _pair("REGR_AVGY"),
    "regr_count": _pair("REGR_COUNT", t.BIGINT),
    "regr_intercept": _regression("CASE WHEN {sxx} > 0 THEN {avgy} - {avgx} * {sxy} / {sxx} END"),
    "regr_r2": _regression(
        "CASE WHEN {sxx} > 0 AND {syy} = 0 THEN CAST(1 AS DOUBLE) "
        "WHEN {sxx} > 0 THEN {sxy} * {sxy} / ({sxx} * {syy}) END"
    ),
    "regr_slope": _regression("CASE WHEN {sxx} > 0 THEN {sxy} / {sxx} END"),
    "regr_sxx": _pair("REGR_SXX"),
    "regr_sxy": _pair("REGR_SXY"),
    "regr_syy": _pair("REGR_SYY"),
    "any_value": _any_value,
    "string_agg": _string_agg,
    "array_agg": _array_agg,
    "json_agg": _json_agg(t.JSON),
    "jsonb_agg": _json_agg(t.JSONB),
    "json_arrayagg": _json_arrayagg,
    "json_object_agg": _json_object_agg,
    "json_objectagg": _json_objectagg,
    "jsonb_object_agg": _jsonb_object_agg,
}
_ORDERED_SETS: dict[str, Callable[[Call], Value]] = {
    "percentile_cont": _percentile_cont,
    "percentile_disc": _percentile_disc,
    "mode": _mode,
}
_WINDOW_ONLY: dict[str, Callable[[Call], Value]] = {
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
NAMES = {*_AGGREGATES, *_ORDERED_SETS, *_WINDOW_ONLY}
