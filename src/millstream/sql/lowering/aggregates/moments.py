"""Variances, covariances, correlations and regressions, from sums that are kept exactly.

Over integers and small decimals `n`, `Σx`, `Σx²` and `Σxy` are whole numbers, once decimals are scaled up. So is the
sum of squares around a whole number `q` near the mean: with `r = Σx - n·q`

    Σ(x - q)² = Σx² - q·(Σx + r)            Σ(x - q)(y - q') = Σxy - q·Σy - q'·r
    Σ(x - mean)² = Σ(x - q)² - r²/n         Σ(x - mean)(y - mean') = Σ(x - q)(y - q') - r·r'/n

Only the last line is computed in floating point, where little cancels: |r| is at most n/2, so that r²/n is at most half
of Σ(x - q)², whose terms are whole numbers. Computed from Σx² and (Σx)² directly, most digits would be lost.

The last digits of the engine's own sums around a running mean depend on the order of rows. Where the terms may cancel
(covariances and functions of them) all digits may depend on it: there the result counts as open, and is fixed this way.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from millstream.ops.expressions import ONE, ZERO, add, cases, cast, compare, multiply, subtract, when
from millstream.sql.lowering.aggregates.aggregation import Aggregation
from millstream.sql.lowering.aggregates.calls import Calls, present
from millstream.sql.result_types import decimal_parts

OF_ONE = {"VAR_POP", "VAR_SAMP", "STDDEV_POP", "STDDEV_SAMP"}
OF_PAIRS = {
    "CORR",
    "COVAR_POP",
    "COVAR_SAMP",
    "REGR_AVGX",
    "REGR_AVGY",
    "REGR_COUNT",
    "REGR_INTERCEPT",
    "REGR_R2",
    "REGR_SLOPE",
    "REGR_SXX",
    "REGR_SXY",
    "REGR_SYY",
}
_MAY_CANCEL = {"CORR", "COVAR_POP", "COVAR_SAMP", "REGR_INTERCEPT", "REGR_R2", "REGR_SLOPE", "REGR_SXY"}
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10}
# the sum of squares of this many digits is exact, see MAX_EXACT_PRECISION of the delta rules
_MOST_DIGITS = 13


@dataclass(frozen=True)
class _Whole:
    """An argument as a whole number of `digits` digits, `scale` of which come after the decimal point."""

    value: exp.Expr
    digits: int
    scale: int


def moment(aggregation: Aggregation, calls: Calls) -> exp.Expr | None:
    """The aggregate as an expression over sums; None if these would not be exact."""
    name, arguments = aggregation.name, aggregation.arguments
    if aggregation.is_distinct:
        return None
    if name in {"REGR_COUNT", "REGR_AVGX", "REGR_AVGY"}:
        return _mean_of_pairs(aggregation, calls)
    wholes = [_whole(a, calls.type_of(a)) for a in arguments]
    known = [w for w in wholes if w is not None]
    if len(known) != len(arguments):
        return None
    if name in _MAY_CANCEL:
        how = "its digits depend on the order of rows, so that it is computed from exact sums"
        calls.context.close_result(name, how)
    if name in OF_ONE:
        return _Sums(calls, aggregation.condition, known[0], known[0]).of_one(name)
    y, x = known
    if name in {"REGR_SXX", "REGR_SYY"}:
        name, y, x = "REGR_SXX", *((y, x) if name == "REGR_SXX" else (x, y))
    elif name in {"CORR", "COVAR_POP", "COVAR_SAMP"}:
        y, x = x, y
    x, y = _beside(x, y), _beside(y, x)
    return _Sums(calls, aggregation.condition, x, y).of_pairs(name)


def _mean_of_pairs(aggregation: Aggregation, calls: Calls) -> exp.Expr:
    y, x = aggregation.arguments
    if aggregation.name == "REGR_COUNT":
        return calls.call("COUNT", when(present(y, x), ONE), condition=aggregation.condition)
    wanted = x if aggregation.name == "REGR_AVGX" else y
    return calls.call("AVG", when(present(y, x), wanted), condition=aggregation.condition)


def _whole(argument: exp.Expr, type_: str) -> _Whole | None:
    argument = exp.paren(argument, copy=False)
    if type_ in _DIGITS:
        return _Whole(cast(argument, f"decimal({_DIGITS[type_]},0)"), _DIGITS[type_], 0)
    precision, scale = decimal_parts(type_) or (_MOST_DIGITS + 1, 0)
    if precision > _MOST_DIGITS:
        return None
    power = cast(exp.Literal.number(10**scale), f"decimal({scale + 1},0)")
    return _Whole(cast(multiply(argument, power), f"decimal({precision},0)"), precision, scale)


def _beside(x: _Whole, y: _Whole) -> _Whole:
    """`x` in rows where `y` is not NULL."""
    return _Whole(when(present(y.value), x.value), x.digits, x.scale)


@dataclass(frozen=True)
class _Sums:
    calls: Calls
    condition: exp.Expr | None
    x: _Whole
    y: _Whole

    def of_one(self, name: str) -> exp.Expr:
        squares = self._squares(self.x)
        variance = self._per_row(squares, is_sample=name.endswith("SAMP"))
        return exp.Sqrt(this=variance) if name.startswith("STDDEV") else variance

    def of_pairs(self, name: str) -> exp.Expr:
        products = self._products()
        if name.startswith("COVAR"):
            return self._per_row(products, is_sample=name == "COVAR_SAMP")
        if name == "REGR_SXY":
            return self._if_any(products)
        xs = self._squares(self.x)
        if name == "REGR_SXX":
            return self._if_any(xs)
        ys = self._squares(self.y)
        if name == "CORR":
            # as in Spark, one row has no correlation, and rows that do not vary are a division by zero
            return when(compare(exp.GT, self._n, ONE), _divide(products, exp.Sqrt(this=multiply(xs, ys))))
        varies = compare(exp.GT, xs, ZERO)
        if name == "REGR_R2":
            explained = _divide(multiply(products, products), multiply(xs, ys))
            none_to_explain = compare(exp.EQ, ys, ZERO)
            return when(varies, cases((none_to_explain, _double(ONE)), otherwise=explained))
        slope = _divide(products, xs)
        if name == "REGR_SLOPE":
            return when(varies, slope)
        mean_x, mean_y = self._mean(self.x), self._mean(self.y)
        return when(varies, subtract(mean_y, multiply(slope, mean_x)))

    def _per_row(self, sum_: exp.Expr, *, is_sample: bool) -> exp.Expr:
        least, rows = (ONE, subtract(self._n, ONE)) if is_sample else (ZERO, self._n)
        return when(compare(exp.GT, self._n, least), _divide(sum_, _double(rows)))

    def _if_any(self, sum_: exp.Expr) -> exp.Expr:
        return when(compare(exp.GT, self._n, ZERO), sum_)

    # Sums around the mean, in floating point

    def _squares(self, x: _Whole) -> exp.Expr:
        """`Σ(x - mean)²`."""
        around = subtract(self._sum_of_products(x, x), multiply(self._near(x), add(self._sum(x), self._rest(x))))
        return self._around_mean(around, x, x)

    def _products(self) -> exp.Expr:
        """`Σ(x - mean)(y - mean')`."""
        x, y = self.x, self.y
        around = subtract(
            subtract(self._sum_of_products(x, y), multiply(self._near(x), self._sum(y))),
            multiply(self._near(y), self._rest(x)),
        )
        return self._around_mean(around, x, y)

    def _around_mean(self, around: exp.Expr, x: _Whole, y: _Whole) -> exp.Expr:
        rest = _divide(multiply(_double(self._rest(x)), _double(self._rest(y))), _double(self._n))
        return _unscaled(subtract(_double(around), rest), x.scale + y.scale)

    def _mean(self, x: _Whole) -> exp.Expr:
        return _unscaled(_divide(_double(self._sum(x)), _double(self._n)), x.scale)

    # Whole numbers

    @property
    def _n(self) -> exp.Expr:
        return self.calls.call("COUNT", self.x.value, condition=self.condition)

    def _sum(self, x: _Whole) -> exp.Expr:
        return self.calls.call("SUM", x.value, condition=self.condition)

    def _sum_of_products(self, x: _Whole, y: _Whole) -> exp.Expr:
        type_ = f"decimal({x.digits + y.digits + 1},0)"
        product = cast(multiply(cast(x.value, type_), y.value), type_)
        return self.calls.call("SUM", product, condition=self.condition)

    def _near(self, x: _Whole) -> exp.Expr:
        """`q`, a whole number near the mean; which one does not matter."""
        return cast(_divide(self._sum(x), cast(self._n, "decimal(20,0)")), f"decimal({x.digits + 1},0)")

    def _rest(self, x: _Whole) -> exp.Expr:
        """`r`."""
        return subtract(self._sum(x), multiply(cast(self._n, "decimal(20,0)"), self._near(x)))


def _double(value: exp.Expr) -> exp.Expr:
    return cast(value, "double")


def _divide(dividend: exp.Expr, divisor: exp.Expr) -> exp.Expr:
    return exp.paren(
        exp.Div(this=exp.paren(dividend, copy=False), expression=exp.paren(divisor, copy=False)), copy=False
    )


def _unscaled(value: exp.Expr, scale: int) -> exp.Expr:
    return _divide(value, _double(exp.Literal.number(10**scale))) if scale else value
