"""A scalar subquery gives one value for a row; where a row asks for more than one it fails, and nowhere else."""

from __future__ import annotations

import duckdb
import pytest

from millstream.testing.duck import DuckStreamTable
from millstream.testing.strategies import TABLES

QUERY = "SELECT a, (SELECT c FROM u WHERE u.a = t.a) AS c FROM t"


def test_values_nobody_asks_for_may_be_several() -> None:
    table = DuckStreamTable(QUERY, TABLES)
    table.change({"t": [((1, 1, "x"), 1)], "u": [((1, 5, None), 1), ((2, 7, None), 1), ((2, 8, None), 1)]})
    table.load()
    assert dict(table.contents()) == {(1, 5): 1}
    table.change({"u": [((3, 1, None), 2)]})
    table.refresh()
    assert dict(table.contents()) == {(1, 5): 1}


def test_a_second_value_for_a_row_is_an_error() -> None:
    table = DuckStreamTable(QUERY, TABLES)
    table.change({"t": [((1, 1, "x"), 1)], "u": [((1, 5, None), 1)]})
    table.load()
    table.change({"u": [((1, 6, None), 1)]})
    with pytest.raises(duckdb.Error, match="more than one row"):
        table.refresh()


def test_values_of_another_type_that_are_equal_are_one() -> None:
    """As text 1 and 01 are two values, but both are equal to the number of the row around."""
    text = "CASE WHEN u.c = 5 THEN '1' ELSE '01' END"
    table = DuckStreamTable(f"SELECT a, (SELECT MAX(c) FROM u WHERE {text} = t.a) AS c FROM t", TABLES)
    table.change({"t": [((1, 1, "x"), 1)], "u": [((1, 5, None), 1), ((1, 7, None), 1)]})
    table.load()
    assert dict(table.contents()) == {(1, 7): 1}
    table.change({"u": [((1, 7, None), -1)]})
    table.refresh()
    assert dict(table.contents()) == {(1, 5): 1}
