"""Variances, correlations and regressions from exact sums: as the engine's own, and better where that loses digits."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import pytest

from millstream.ops import Column
from millstream.testing.duck import DuckStreamTable

TABLES = {"p": (Column("y", "int"), Column("x", "decimal(10,2)"))}
FUNCTIONS = (
    "VAR_POP(x)",
    "VAR_SAMP(x)",
    "STDDEV_POP(y)",
    "STDDEV_SAMP(y)",
    "COVAR_POP(y, x)",
    "COVAR_SAMP(y, x)",
    "CORR(y, x)",
    "REGR_COUNT(y, x)",
    "REGR_AVGX(y, x)",
    "REGR_AVGY(y, x)",
    "REGR_SXX(y, x)",
    "REGR_SYY(y, x)",
    "REGR_SXY(y, x)",
    "REGR_SLOPE(y, x)",
    "REGR_INTERCEPT(y, x)",
    "REGR_R2(y, x)",
)
QUERY = f"SELECT {', '.join(f'{f} AS c{n}' for n, f in enumerate(FUNCTIONS))} FROM p"


def computed(rows: list[tuple[int | None, Decimal | None]]) -> tuple[object, ...]:
    """What the lowered query gives."""
    table = DuckStreamTable(QUERY, TABLES)
    table.change({"p": [(row, 1) for row in rows]})
    table.load()
    ((_, row),) = table.keyed_contents()
    return row


def by_definition(rows: list[tuple[int | None, Decimal | None]]) -> tuple[object, ...]:
    """The same in exact arithmetic, from the deviations from the mean; for rows that vary."""
    pairs = [(Decimal(y), x) for y, x in rows if y is not None and x is not None]
    xs, ys = [x for _, x in rows if x is not None], [Decimal(y) for y, _ in rows if y is not None]
    n = len(pairs)
    mean_y, mean_x = sum(y for y, _ in pairs) / n, sum(x for _, x in pairs) / n
    sxx = sum((x - mean_x) ** 2 for _, x in pairs)
    syy = sum((y - mean_y) ** 2 for y, _ in pairs)
    sxy = sum((x - mean_x) * (y - mean_y) for y, x in pairs)

    def squares(values: list[Decimal]) -> Decimal:
        return Decimal(sum((v - sum(values) / len(values)) ** 2 for v in values))

    return (
        squares(xs) / len(xs),
        squares(xs) / (len(xs) - 1),
        (squares(ys) / len(ys)).sqrt(),
        (squares(ys) / (len(ys) - 1)).sqrt(),
        sxy / n,
        sxy / (n - 1),
        sxy / (sxx * syy).sqrt(),
        n,
        mean_x,
        mean_y,
        sxx,
        syy,
        sxy,
        sxy / sxx,
        mean_y - sxy / sxx * mean_x,
        sxy * sxy / (sxx * syy),
    )


@pytest.mark.parametrize("offset", [0, 1_000_000, -2_000_000_000])
@pytest.mark.parametrize("seed", range(5))
def test_digits_survive_a_distant_mean(offset: int, seed: int) -> None:
    choose = random.Random(seed)
    rows: list[tuple[int | None, Decimal | None]] = [
        (choose.randrange(offset, offset + 1000), Decimal(choose.randrange(offset, offset + 500)) / 100)
        for _ in range(choose.randrange(5, 60))
    ]
    rows += [(None, Decimal("3.00")), (offset, None), (None, None)]
    for function, found, wanted in zip(FUNCTIONS, computed(rows), by_definition(rows), strict=True):
        assert isinstance(found, int | float | Decimal), function
        digits = 5e-7 if function == "REGR_AVGX(y, x)" else 0  # the average of a decimal is one, of six digits
        assert math.isclose(found, wanted, rel_tol=1e-11, abs_tol=digits), f"{function}: {found} is not {wanted}"


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(1, Decimal(1))],
        [(None, Decimal(1)), (1, None)],
        [(1, Decimal(1)), (1, Decimal(2))],
        [(1, Decimal(1)), (2, Decimal(1))],
        [(3, Decimal("1.25"))] * 3,
    ],
    ids=["nothing", "one row", "no pair", "y does not vary", "x does not vary", "nothing varies"],
)
def test_rows_that_do_not_vary(rows: list[tuple[int | None, Decimal | None]]) -> None:
    """The cases of Spark, as it answers them (but for CORR of rows that do not vary, which it divides by zero)."""
    found = dict(zip(FUNCTIONS, computed(rows), strict=True))
    xs, ys = [x for _, x in rows if x is not None], [y for y, _ in rows if y is not None]
    pairs = [(y, x) for y, x in rows if y is not None and x is not None]
    varied_x, varied_y = len({x for _, x in pairs}) > 1, len({y for y, _ in pairs}) > 1
    assert (found["VAR_POP(x)"] is None) == (not xs)
    assert (found["VAR_SAMP(x)"] is None) == (len(xs) < 2)
    assert (found["STDDEV_SAMP(y)"] is None) == (len(ys) < 2)
    assert found["REGR_COUNT(y, x)"] == len(pairs)
    assert (found["COVAR_POP(y, x)"] is None) == (not pairs)
    assert (found["COVAR_SAMP(y, x)"] is None) == (len(pairs) < 2)
    assert (found["REGR_SXX(y, x)"] is None) == (not pairs)
    for name in ("REGR_SLOPE(y, x)", "REGR_INTERCEPT(y, x)", "REGR_R2(y, x)"):
        assert (found[name] is None) == (not varied_x), name
    if varied_x and not varied_y:
        assert found["REGR_R2(y, x)"] == 1.0
        assert found["REGR_SLOPE(y, x)"] == 0.0
