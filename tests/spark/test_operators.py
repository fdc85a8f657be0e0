"""Every operator on real Spark and Delta: loaded, changed, refreshed by its delta, and compared with its query.

The tables are small and nasty: keys that are NULL, rows that occur three times, partners that are missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, open_lake
from kits.operator_queries import OPERATORS
from millstream import MillstreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

T = "a INT, b INT, s STRING"
U = "a INT, c INT, d DECIMAL(10,2)"
T_ROWS = ("1, 10, 'x'", "1, 10, 'x'", "1, 10, 'x'", "2, NULL, 'y'", "NULL, 5, 'x'", "3, 7, NULL", "4, 1, 'z'")
U_ROWS = ("1, 1, 1.50", "1, 2, 2.25", "2, 1, NULL", "NULL, 3, 4.00", "5, 9, -0.75", "4, 4, 0.00")

# Each batch is one refresh. One of three equal rows goes; a key is updated together with the deletion of its partner;
# a group dies and comes back; NULL keys come and go; something that changes nothing; everything at once.
BATCHES: tuple[tuple[str, ...], ...] = (
    (
        "MERGE INTO t USING (SELECT DISTINCT a, b, s FROM t WHERE a = 4) x ON t.a = x.a WHEN MATCHED THEN DELETE",
        "INSERT INTO t VALUES (1, 10, 'x'), (6, 6, 'w'), (NULL, NULL, NULL)",
        "UPDATE t SET a = 5 WHERE a = 2",
        "DELETE FROM u WHERE a = 2",
    ),
    (
        "DELETE FROM t WHERE a = 1",
        "UPDATE u SET a = 6, d = d + 1 WHERE a = 5",
        "INSERT INTO u VALUES (NULL, 3, 4.00), (3, 0, 7.77)",
    ),
    (
        "INSERT INTO t VALUES (1, 11, 'x'), (1, NULL, 'y'), (4, 1, 'z')",
        "DELETE FROM u WHERE a IS NULL",
        "UPDATE t SET s = 'changed', b = -b WHERE a IS NULL OR a = 3",
        "UPDATE u SET c = c WHERE a = 1",
    ),
)


@pytest.fixture
def tables(lake: Lake) -> Lake:
    create_tables(lake)
    return lake


def create_tables(lake: Lake) -> None:
    lake.table("t", T, *T_ROWS)
    lake.table("u", U, *U_ROWS)


@pytest.fixture(scope="module", params=["every other query", pytest.param("the rest", marks=pytest.mark.long)])
def wrong(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """What is wrong with the stream tables of each kind: all of them follow the same changes, which cost the most."""
    first = 0 if request.param == "every other query" else 1
    found: dict[str, list[str]] = {kind: [] for kind in OPERATORS}
    kinds: dict[str, str] = {}

    def note(name: str, step: Callable[[str], object]) -> None:
        try:
            step(name)
        except (AssertionError, MillstreamError) as e:
            found[kinds[name]].append(f"{lake.queries.get(name, name)}: {e}")

    with open_lake(tmp_path_factory.mktemp("operators") / "lake") as lake, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* has no fixed result")
        create_tables(lake)
        lake.is_compared_at_end = True
        for kind, queries in OPERATORS.items():
            for number, query in enumerate(queries[first::2]):
                kinds[name := f"{kind.replace(' ', '_')}_{number}"] = kind
                note(name, partial(lake.stream, query=query))
        for batch in BATCHES[:2]:
            lake.sql(*batch)
            for name in kinds:
                note(name, lake.refresh)
        for name in kinds:
            note(name, partial(agrees, lake))
    return found


def agrees(lake: Lake, name: str) -> None:
    """The second judge is content, and all but the first load was done by deltas."""
    assert not (difference := lake.difference(name)), difference
    actions = [str(r.action) for r in lake.ms.refresh_history(name)]
    assert set(actions) <= {"FULL", "DIFFERENTIAL", "APPEND_ONLY", "NO_DATA"}, actions
    assert actions.count("FULL") == 1, actions
    assert len(actions) == 3, actions


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", OPERATORS)
def test_stream_tables_equal_their_queries(kind: str, wrong: dict[str, list[str]]) -> None:
    assert not wrong[kind], "\n".join(wrong[kind])


def test_chains_and_diamonds_stand_at_one_frontier(tables: Lake) -> None:
    lake = tables
    lake.stream("joined", "SELECT t.a, t.s, u.d FROM t JOIN u ON t.a = u.a")
    lake.stream("left_side", "SELECT a, COUNT(*) AS n FROM joined GROUP BY a HAVING COUNT(*) > 1")
    lake.stream("right_side", "SELECT a, SUM(d) AS total FROM joined GROUP BY a")
    lake.stream("bottom", "SELECT r.a, r.total, l.n FROM right_side r LEFT JOIN left_side l ON r.a = l.a")
    assert lake.ms.dag().refresh_order(["bottom"])[-1] == "bottom"
    for batch in BATCHES:
        lake.sql(*batch)
        result = lake.refresh("bottom", "DIFFERENTIAL")
        for name in ("joined", "left_side", "right_side"):
            lake.assert_exact(name)
            record = lake.last(name)
            assert record.data_timestamp == lake.last("bottom").data_timestamp, name
        assert result.frontier == {
            name: lake.ms.sql(f"DESCRIBE HISTORY {name}").selectExpr("max(version)").head()[0] for name in ("t", "u")
        }


def test_one_of_three_equal_rows(lake: Lake) -> None:
    """SQL cannot delete one of three equal rows; but rows that differ in a column the query drops can go one by one."""
    lake.table("t", "id INT, a INT, s STRING", *(f"{i}, 1, 'x'" for i in range(3)))
    lake.stream("twins", "SELECT a, s FROM t")
    lake.stream("joined", "SELECT x.a, y.s FROM t x JOIN t y ON x.a = y.a")
    lake.stream("kinds", "SELECT DISTINCT a, s FROM t")
    for statement, twins in (
        ("DELETE FROM t WHERE id = 1", 2),
        ("UPDATE t SET a = NULL WHERE id = 0", 1),
        ("INSERT INTO t VALUES (7, 1, 'x'), (8, 1, 'x')", 3),
        ("DELETE FROM t WHERE id IN (2, 7, 8)", 0),
    ):
        lake.sql(statement)
        lake.refresh_all(expected=None)
        assert lake.rows("twins")[(1, "x")] == twins
        assert lake.rows("joined")[(1, "x")] == twins**2
        assert lake.rows("kinds")[(1, "x")] == min(twins, 1)


def test_a_group_dies_and_comes_back(lake: Lake) -> None:
    lake.table("t", "k STRING, v INT", "'a', 1", "'a', 2", "'b', 3")
    lake.stream("sums", "SELECT k, SUM(v) AS s, MIN(v) AS lo, MAX(v) AS hi, COUNT(*) AS n FROM t GROUP BY k")
    lake.stream("total", "SELECT SUM(v) AS s, MAX(v) AS hi, COUNT(*) AS n FROM t")
    lake.sql("DELETE FROM t WHERE k = 'a'")
    lake.refresh_all()
    assert lake.rows("sums") == {("b", 3, 3, 3, 1): 1}
    lake.insert("t", "'a', 9")
    lake.refresh_all()
    lake.sql("DELETE FROM t")
    lake.refresh_all()
    assert not lake.rows("sums")
    assert lake.rows("total") == {(None, None, 0): 1}
    lake.insert("t", "'a', 4", "NULL, NULL")
    lake.refresh_all()
    assert lake.rows("total") == {(4, 4, 2): 1}
