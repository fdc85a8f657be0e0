"""Results that SQL leaves open: fixed once, and the same by load, by delta, by FULL and for `verify`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kits.lake import Lake

pytestmark = pytest.mark.spark

# Spark itself reads the rows in the order they were written, and so would give 3, 2 and 7, not the least of each.
ROWS = ("1, 3", "1, 1", "2, 2", "2, 5", "3, 7", "3, NULL", "3, 4")
QUERY = "SELECT a, ANY_VALUE(b) AS some, FIRST(b) + 1 AS first, LAST(b) AS last FROM t GROUP BY a"
ORACLE = "SELECT a, MIN(b), MIN(b) + 1, MAX(b) FROM t GROUP BY a"


def test_a_fixed_result_is_the_same_in_all_modes(lake: Lake) -> None:
    lake.table("t", "a INT, b INT", *ROWS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lake.stream("st", QUERY, oracle=ORACLE)
    warned = " ".join(str(w.message) for w in caught)
    assert "ANY_VALUE has no fixed result: the least value is taken" in warned
    assert "LAST has no fixed result: the greatest value is taken" in warned
    assert lake.rows("st") == {(1, 1, 2, 3): 1, (2, 2, 3, 5): 1, (3, 4, 5, 7): 1}
    lake.sql("INSERT INTO t VALUES (1, 0)", "DELETE FROM t WHERE a = 3 AND b = 4")
    lake.refresh("st", "DIFFERENTIAL")
    by_delta = lake.rows("st")
    assert by_delta == {(1, 0, 1, 3): 1, (2, 2, 3, 5): 1, (3, 7, 8, 7): 1}
    lake.refresh("st", "FULL", mode="FULL")
    assert lake.rows("st") == by_delta
