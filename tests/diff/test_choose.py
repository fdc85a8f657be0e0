"""Which aggregates have an exact algebra, and which groups are read again."""

from __future__ import annotations

import pytest
from sqlglot import exp, parse_one

from millstream.diff.aggregate import accumulate
from millstream.ops import Column, Item
from millstream.ops.expressions import col

ALGEBRAIC, EXTREMUM, RESCAN = "algebraic", "extremum with its multiplicity", "touched groups read again"


def strategy(call: str, type_: str) -> str:
    tree = parse_one(call, dialect="spark").transform(lambda n: col(n.name) if isinstance(n, exp.Column) else n)
    _, (found,) = accumulate([Item(tree, Column("out", "double"))], {"x": type_})
    return found.strategy


@pytest.mark.parametrize(
    ("call", "type_", "expected"),
    [
        ("COUNT(*)", "string", ALGEBRAIC),
        ("COUNT(1)", "string", ALGEBRAIC),
        ("COUNT(x)", "double", ALGEBRAIC),
        ("SUM(x)", "int", ALGEBRAIC),
        ("SUM(x)", "bigint", ALGEBRAIC),
        ("SUM(x)", "decimal(27,3)", ALGEBRAIC),
        ("SUM(x)", "decimal(28,6)", ALGEBRAIC),
        ("SUM(x)", "decimal(38,6)", ALGEBRAIC),
        # beyond six digits behind the point a product with a weight may round
        ("SUM(x)", "decimal(28,7)", RESCAN),
        ("SUM(x)", "double", RESCAN),
        ("AVG(x)", "int", ALGEBRAIC),
        ("AVG(x)", "decimal(24,10)", ALGEBRAIC),
        # the quotient of decimals this wide has fewer digits than AVG
        ("AVG(x)", "decimal(25,3)", RESCAN),
        ("AVG(x)", "decimal(27,2)", ALGEBRAIC),
        ("AVG(x)", "float", RESCAN),
        ("MIN(x)", "string", EXTREMUM),
        ("MAX(x)", "decimal(38,10)", EXTREMUM),
        # NaN is neither less nor greater
        ("MAX(x)", "double", RESCAN),
        ("COUNT(DISTINCT x)", "int", RESCAN),
        ("SUM(DISTINCT x)", "int", RESCAN),
        ("STDDEV(x)", "int", RESCAN),
        ("SUM(x) FILTER (WHERE x > 1)", "int", ALGEBRAIC),
    ],
)
def test_the_strategy_depends_on_function_and_type(call: str, type_: str, expected: str) -> None:
    assert strategy(call, type_) == expected


def test_calls_that_agree_share_what_is_stored() -> None:
    calls = [exp.Sum(this=col("x")), exp.Avg(this=col("x")), exp.Count(this=col("x")), exp.Count(this=exp.Star())]
    items = [Item(call, Column(f"c{i}", "bigint")) for i, call in enumerate(calls)]
    accumulators, _ = accumulate(items, {"x": "int"})
    assert [a.name for a in accumulators] == ["__ms_rows", "__ms_count_2", "__ms_sum_3"]


def test_a_filter_makes_a_difference() -> None:
    plain, filtered = exp.Count(this=col("x")), parse_one("COUNT(x) FILTER (WHERE p)")
    items = [Item(call, Column(f"c{i}", "bigint")) for i, call in enumerate((plain, filtered))]
    accumulators, _ = accumulate(items, {"x": "int", "p": "boolean"})
    assert len(accumulators) == 3
