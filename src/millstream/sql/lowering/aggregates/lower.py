"""How each aggregate function is lowered."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from millstream.ops.expressions import ZERO, compare, not_, when
from millstream.sql.aggregate_names import EXACT_INSTEAD
from millstream.sql.lowering.aggregates.aggregation import Aggregation
from millstream.sql.lowering.aggregates.calls import Calls, both, present
from millstream.sql.lowering.aggregates.collected import any_value, array, extremum_by, mode, text
from millstream.sql.lowering.aggregates.moments import OF_ONE, OF_PAIRS, moment
from millstream.sql.lowering.refused_clauses import misplaced_aggregate
from millstream.sql.parse import place_of
from millstream.sql.refusals.unsupported import unsupported
from millstream.sql.result_types import decimal_parts

Lowering = Callable[[Aggregation, Calls], exp.Expr]

# a sum of numbers with this many digits cannot overflow its type before there are billions of rows
_SAFE_DIGITS = 27
_SAFE = {"tinyint", "smallint", "int"}


def lower_aggregation(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    """An aggregate as an expression over calls of the Aggregate.

    Raises:
        MillstreamError: UNSUPPORTED_SQL, QUERY_INVALID.
    """
    for part in aggregation.expressions:
        if (inner := part.find(exp.AggFunc)) is not None:
            raise misplaced_aggregate(inner, "inside another", calls.context)
    if exact := EXACT_INSTEAD.get(aggregation.name):
        raise unsupported(
            f"the approximate aggregate {_spelled(aggregation, calls)}",
            aggregation.function,
            calls.context.sql,
            f"the exact one is {exact}",
        )
    lowering = _LOWERINGS.get(aggregation.name)
    if lowering is None:
        raise unsupported(f"the aggregate {_spelled(aggregation, calls)}", aggregation.function, calls.context.sql)
    return lowering(aggregation, calls)


def _plain(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    """A call unchanged: its result depends only on the values of the rows, not on their order."""
    return calls.call(
        aggregation.name,
        *aggregation.arguments,
        condition=aggregation.condition,
        distinct=aggregation.is_distinct,
        order=aggregation.order,
    )


def _without_distinct(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    """A call whose result does not depend on how often a value occurs."""
    return calls.call(aggregation.name, *aggregation.arguments, condition=aggregation.condition)


def _count(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    """COUNT of several arguments counts the rows in which none is NULL."""
    if aggregation.is_distinct or len(aggregation.arguments) == 1:
        return _plain(aggregation, calls)
    return _count_where(calls, both(aggregation.condition, present(*aggregation.arguments)))


def _count_if(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    if aggregation.is_distinct:
        # true is counted once
        return when(_any(aggregation, calls), exp.Literal.number(1), ZERO)
    return _count_where(calls, both(aggregation.condition, aggregation.arguments[0]))


def _bool_and(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    value, condition = aggregation.arguments[0], aggregation.condition
    false = _count_where(calls, both(condition, not_(value)))
    return when(_any_present(aggregation, calls), compare(exp.EQ, false, ZERO))


def _bool_or(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    return when(_any_present(aggregation, calls), _any(aggregation, calls))


def _any(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    true = _count_where(calls, both(aggregation.condition, aggregation.arguments[0]))
    return compare(exp.GT, true, ZERO)


def _any_present(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    counted = calls.call("COUNT", aggregation.arguments[0], condition=aggregation.condition)
    return compare(exp.GT, counted, ZERO)


def _count_where(calls: Calls, condition: exp.Expr) -> exp.Expr:
    return calls.call("COUNT", exp.Star(), condition=condition)


def _try(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    """TRY_SUM and TRY_AVG return NULL where SUM and AVG overflow; if these cannot overflow, they are the same."""
    type_ = calls.type_of(aggregation.arguments[0])
    parts = decimal_parts(type_)
    never = type_ in _SAFE or (parts is not None and parts[0] <= _SAFE_DIGITS)
    name = aggregation.name.removeprefix("TRY_") if never else aggregation.name
    return calls.call(name, *aggregation.arguments, condition=aggregation.condition, distinct=aggregation.is_distinct)


def _moment(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    found = moment(aggregation, calls)
    return _plain(aggregation, calls) if found is None else found


def _spelled(aggregation: Aggregation, calls: Calls) -> str:
    place = place_of(aggregation.function)
    return calls.context.sql[place["start"] : place["end"] + 1] if place else aggregation.name


_LOWERINGS: dict[str, Lowering] = {
    "COUNT": _count,
    "COUNT_IF": _count_if,
    "BOOL_AND": _bool_and,
    "BOOL_OR": _bool_or,
    "TRY_SUM": _try,
    "TRY_AVG": _try,
    "COLLECT_LIST": array,
    "COLLECT_SET": array,
    "LISTAGG": text,
    "MODE": mode,
    "MAX_BY": extremum_by,
    "MIN_BY": extremum_by,
    **dict.fromkeys(("ANY_VALUE", "FIRST", "FIRST_VALUE", "LAST", "LAST_VALUE"), any_value),
    **dict.fromkeys((*OF_ONE, *OF_PAIRS), _moment),
    **dict.fromkeys(
        ("MIN", "MAX", "BIT_AND", "BIT_OR", "BITMAP_CONSTRUCT_AGG", "BITMAP_AND_AGG", "BITMAP_OR_AGG"),
        _without_distinct,
    ),
    **dict.fromkeys(
        (
            "SUM",
            "AVG",
            "BIT_XOR",
            "SKEWNESS",
            "KURTOSIS",
            "MEDIAN",
            "PERCENTILE",
            "PERCENTILE_CONT",
            "PERCENTILE_DISC",
        ),
        _plain,
    ),
}
