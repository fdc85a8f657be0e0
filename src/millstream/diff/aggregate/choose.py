"""Chooses the accumulators that an aggregate call needs, by its function and type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from millstream import naming
from millstream.diff.aggregate.accumulator import Accumulator
from millstream.diff.aggregate.algebraic import CountOf, SumOf
from millstream.diff.aggregate.extremum import Extremum
from millstream.diff.aggregate.rescan import Rescan
from millstream.diff.aggregate.wide_sum import MAX_SCALE, WideSum
from millstream.ops import Column, Item
from millstream.ops.expressions import ZERO, cast, col, compare, when

# up to this precision, the product of a DECIMAL(p, s) and a weight of ten digits keeps all digits
MAX_EXACT_PRECISION = 27
# up to this precision, its sum, a DECIMAL(p + 10, s), divided by a count has the s + 4 digits of AVG; then at least six
MAX_EXACT_AVERAGE = 24
LEAST_QUOTIENT_SCALE = 6
_SMALL_INTEGRAL = {"tinyint", "smallint", "int"}


@dataclass(frozen=True)
class Call:
    """An aggregate call: its result as an expression over stored columns, and how it is maintained."""

    column: Column
    value: exp.Expr
    strategy: str


def accumulate(calls: Sequence[Item], types: dict[str, str]) -> tuple[tuple[Accumulator, ...], tuple[Call, ...]]:
    """The accumulators of all calls, shared where calls agree, and the calls expressed over them.

    Args:
        calls: the Aggregate's calls over columns of its input.
        types: the input's column types.
    """
    chooser = _Chooser(types)
    results = tuple(chooser.call(item) for item in calls)
    return tuple(chooser.accumulators), results


class _Chooser:
    def __init__(self, types: dict[str, str]) -> None:
        self.types = types
        # the number of rows of a group: COUNT(*), which is zero for a group to remove
        self.accumulators: list[Accumulator] = [CountOf(naming.GROUP_ROWS, None, None)]

    def call(self, item: Item) -> Call:
        call, condition = item.expression, None
        if isinstance(call, exp.Filter):
            call, condition = call.this, call.expression.this
        argument = call.this if isinstance(call.this, exp.Column) else None
        argument_type = self.types[argument.name] if argument is not None else ""
        if isinstance(call, exp.Count) and not call.expressions and not isinstance(call.this, exp.Distinct):
            # COUNT(*) and COUNT(1) count all rows, COUNT(x) those where x is not NULL
            return Call(item.column, col(self._count(argument, condition)), "algebraic")
        if isinstance(call, exp.Sum) and (kept := _sum_types(argument_type)):
            return Call(item.column, self._sum(item, argument, condition, kept), "algebraic")
        if isinstance(call, exp.Sum) and argument is not None and _is_wide(argument_type):
            return Call(item.column, col(self._wide_sum(argument, condition, item.column.type)), "algebraic")
        if isinstance(call, exp.Avg) and (kept := _sum_types(argument_type)) and _divides_exactly(argument_type):
            return Call(item.column, self._average(item, argument, condition, argument_type, kept), "algebraic")
        if isinstance(call, exp.Min | exp.Max) and argument is not None and not _is_inexact(argument_type):
            name = self._extremum(argument, condition, argument_type, isinstance(call, exp.Max))
            return Call(item.column, col(name), "extremum with its multiplicity")
        name = self._add(Rescan(self._name("value"), None, None, item.column.type, item.expression))
        return Call(item.column, col(name), "touched groups read again")

    def _sum(
        self, item: Item, argument: exp.Expr | None, condition: exp.Expr | None, kept: tuple[str, str]
    ) -> exp.Expr:
        count = self._count(argument, condition)
        name = self._add(SumOf(self._name("sum"), argument, condition, *kept))
        return when(compare(exp.GT, col(count), ZERO), cast(col(name), item.column.type))

    def _wide_sum(self, argument: exp.Expr, condition: exp.Expr | None, type_: str) -> str:
        count = self._count(argument, condition)
        return self._add(WideSum(self._name("sum"), argument, condition, type_, count))

    def _average(
        self,
        item: Item,
        argument: exp.Expr | None,
        condition: exp.Expr | None,
        argument_type: str,
        kept: tuple[str, str],
    ) -> exp.Expr:
        """The quotient, with the operand types of Spark's own AVG, so that it is rounded alike."""
        count = self._count(argument, condition)
        name = self._add(SumOf(self._name("sum"), argument, condition, *kept))
        if argument_type.startswith("decimal"):
            quotient = exp.Div(this=col(name), expression=cast(col(count), "decimal(20,0)"))
        else:
            quotient = exp.Div(this=cast(col(name), "double"), expression=cast(col(count), "double"))
        return when(compare(exp.GT, col(count), ZERO), cast(quotient, item.column.type))

    def _extremum(self, argument: exp.Expr, condition: exp.Expr | None, type_: str, greatest: bool) -> str:
        count = self._count(argument, condition)
        kind = "max" if greatest else "min"
        return self._add(Extremum(self._name(kind), argument, condition, type_, greatest, count))

    def _count(self, argument: exp.Expr | None, condition: exp.Expr | None) -> str:
        return self._add(CountOf(self._name("count"), argument, condition))

    def _add(self, wanted: Accumulator) -> str:
        for known in self.accumulators:
            if type(known) is type(wanted) and _but_for_name(known) == _but_for_name(wanted):
                return known.name
        self.accumulators.append(wanted)
        return wanted.name

    def _name(self, what: str) -> str:
        return f"__ms_{what}_{len(self.accumulators) + 1}"


def _but_for_name(accumulator: Accumulator) -> dict[str, object]:
    return {k: v for k, v in vars(accumulator).items() if k != "name"}


def _sum_types(argument: str) -> tuple[str, str] | None:
    """The type in which a sum is stored, and the argument's type in a product with a weight; None if not exact."""
    if argument in _SMALL_INTEGRAL:
        return "bigint", "bigint"
    if argument == "bigint":
        return "decimal(38,0)", "decimal(19,0)"
    if argument.startswith("decimal("):
        precision, scale = _decimal(argument)
        if precision <= MAX_EXACT_PRECISION:
            return f"decimal({precision + 10},{scale})", argument
    return None


def _is_wide(argument: str) -> bool:
    """Whether the type of the result holds all digits of a sum, see `wide_sum`."""
    return argument.startswith("decimal(") and _decimal(argument)[1] <= MAX_SCALE


def _divides_exactly(argument: str) -> bool:
    """Whether the sum divided by the count has all digits that AVG has."""
    if not argument.startswith("decimal("):
        return True
    precision, scale = _decimal(argument)
    return precision <= MAX_EXACT_AVERAGE or scale + 4 <= LEAST_QUOTIENT_SCALE


def _is_inexact(type_: str) -> bool:
    """Whether values of a type contain floating-point numbers."""
    return "float" in type_ or "double" in type_


def _decimal(type_: str) -> tuple[int, int]:
    precision, scale = type_[len("decimal(") : -1].split(",")
    return int(precision), int(scale)
