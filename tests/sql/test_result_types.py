"""Types of aggregates, as Spark 4.2 says them (tests/spark asks it again)."""

from __future__ import annotations

import pytest

from millstream.sql.result_types import avg_type, sum_type


@pytest.mark.parametrize(
    ("argument", "total", "average"),
    [
        ("tinyint", "bigint", "double"),
        ("int", "bigint", "double"),
        ("bigint", "bigint", "double"),
        ("float", "double", "double"),
        ("double", "double", "double"),
        ("decimal(1,0)", "decimal(11,0)", "decimal(5,4)"),
        ("decimal(10,2)", "decimal(20,2)", "decimal(14,6)"),
        ("decimal(18,18)", "decimal(28,18)", "decimal(22,22)"),
        ("decimal(30,10)", "decimal(38,10)", "decimal(34,14)"),
        ("decimal(35,33)", "decimal(38,33)", "decimal(38,37)"),
        ("decimal(37,5)", "decimal(38,5)", "decimal(38,9)"),
        ("decimal(38,37)", "decimal(38,37)", "decimal(38,38)"),
        ("string", None, None),
    ],
)
def test_sums_and_averages(argument: str, total: str | None, average: str | None) -> None:
    assert sum_type(argument) == total
    assert avg_type(argument) == average
