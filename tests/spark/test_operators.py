"""Every operator on real Spark and Delta: loaded, changed, refreshed by its delta, and compared with its query.

The tables are small and nasty: keys that are NULL, rows that occur three times, partners that are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lake_kit import Lake

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
    lake.table("t", T, *T_ROWS)
    lake.table("u", U, *U_ROWS)
    return lake


def follow(lake: Lake, queries: Sequence[str], batches: Sequence[Sequence[str]] = BATCHES[:2]) -> None:
    for number, query in enumerate(queries):
        lake.stream(f"st{number}", query)
    for batch in batches:
        lake.sql(*batch)
        lake.refresh_all(expected=None)
    for name in lake.queries:
        actions = {str(r.action) for r in lake.ms.refresh_history(name)}
        assert actions <= {"FULL", "DIFFERENTIAL", "APPEND_ONLY", "NO_DATA"}, f"{name}: {actions}"
        assert sum(r.action == "FULL" for r in lake.ms.refresh_history(name)) == 1, name


@pytest.mark.filterwarnings("ignore:.* has no fixed result")
def test_subqueries_as_values(tables: Lake) -> None:
    follow(
        tables,
        [
            "SELECT a, (SELECT MAX(c) FROM u) AS m, (SELECT COUNT(*) FROM u WHERE u.a = t.a) AS n FROM t",
            "SELECT a, b FROM t WHERE b > (SELECT AVG(c) FROM u WHERE u.a = t.a) OR s = 'z'",
            "SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING SUM(b) > (SELECT AVG(c) FROM u)",
            "SELECT a, a IN (SELECT c FROM u) AS x, EXISTS (SELECT 1 FROM u WHERE u.a = t.a) AS y FROM t",
            "SELECT a FROM t WHERE a NOT IN (SELECT c FROM u WHERE u.c > 2) OR b IN (SELECT c FROM u WHERE u.a > t.a)",
            "SELECT a, (SELECT c FROM u WHERE u.a = t.a ORDER BY c DESC LIMIT 1) AS m FROM t",
        ],
    )


@pytest.mark.filterwarnings("ignore:.* has no fixed result")
def test_windows_and_first_rows(tables: Lake) -> None:
    """The orders leave nothing open, so that Spark's answer to the text is the one to have."""
    follow(
        tables,
        [
            "SELECT a, b, s, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b, s) AS r FROM t",
            "SELECT a, RANK() OVER (ORDER BY b DESC) AS r, LAG(b) OVER (PARTITION BY s ORDER BY a, b) AS l FROM t",
            "SELECT t.a, u.c, FIRST_VALUE(u.c) OVER w AS f, LAST_VALUE(u.c) OVER w AS l FROM t JOIN u ON t.a = u.a "
            "WINDOW w AS (PARTITION BY t.a ORDER BY u.c)",
            "SELECT a, b, s FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY a ORDER BY b DESC, s) = 1",
            "SELECT a, SUM(b) AS x FROM t GROUP BY a ORDER BY x DESC, a LIMIT 2",
            "SELECT s, a FROM t ORDER BY a DESC, s LIMIT 3 OFFSET 1",
            "SELECT r, COUNT(*) AS n FROM (SELECT RANK() OVER (PARTITION BY s ORDER BY b) AS r FROM t) q GROUP BY r",
        ],
    )


@pytest.mark.filterwarnings("ignore:.* has no fixed result")
def test_lateral_and_repeated_rows(tables: Lake) -> None:
    follow(
        tables,
        [
            "SELECT s, p, x FROM t LATERAL VIEW OUTER posexplode(CASE WHEN b > 5 THEN array(a, b) END) e AS p, x",
            "SELECT s, k, v FROM t LATERAL VIEW explode(map('one', a, 'other', b)) e AS k, v",
            "SELECT t.s, e.x, e.y FROM t, LATERAL inline(array(struct(a AS i, b AS j))) AS e(x, y)",
            "SELECT t.a, l.c FROM t LEFT JOIN LATERAL (SELECT c FROM u WHERE u.a = t.a ORDER BY c DESC LIMIT 1) l",
            "SELECT t.a, l.n, l.m FROM t, LATERAL (SELECT COUNT(*) AS n, MAX(c) AS m FROM u WHERE u.a > t.a) l",
            "SELECT a FROM t EXCEPT ALL SELECT a FROM u",
        ],
    )


def test_filters_and_projections(tables: Lake) -> None:
    follow(
        tables,
        [
            "SELECT * FROM t WHERE a = 1 OR s IS NULL",
            "SELECT s, a * 2 + coalesce(b, 0) AS n FROM t WHERE NOT (b > 6)",
            "SELECT a, CASE WHEN b > 5 THEN 'big' WHEN b IS NULL THEN 'none' ELSE upper(s) || '!' END AS word FROM t",
            "SELECT 1 AS one FROM t WHERE b BETWEEN 1 AND 10 AND s IN ('x', 'y')",
            """SELECT concat_ws('-', s, cast(t.a AS STRING)) AS c, length(s) AS l, substring(s, 1, 1) AS f,
                 round(d * 3, 1) AS r, floor(d) AS fl, sqrt(abs(c)) AS q, greatest(c, 2) AS g, nullif(c, 1) AS n,
                 md5(cast(c AS STRING)) AS h, date_add(DATE '2024-02-28', c) AS da, if(c > 1, 'a', 'b') AS i,
                 array(c, c + 1)[0] AS ar, named_struct('x', c).x AS st, s RLIKE '^x' AS rl, s LIKE 'x%' AS li
               FROM t JOIN u ON t.a = u.a""",
        ],
    )


def test_inner_joins(tables: Lake) -> None:
    follow(
        tables,
        [
            "SELECT t.a, t.s, u.d FROM t JOIN u ON t.a = u.a",
            "SELECT t.a, x.c, y.d FROM t JOIN u x ON t.a = x.a JOIN u y ON x.c = y.c AND y.d IS NOT NULL",
            "SELECT t.s, u.c FROM t CROSS JOIN u",
            "SELECT t.a, u.c FROM t, u WHERE t.b > u.c AND u.d < 5",
            "SELECT x.a, y.b FROM t x JOIN t y ON x.a <=> y.a",
        ],
    )


def test_outer_joins(tables: Lake) -> None:
    follow(
        tables,
        [
            "SELECT t.a, t.s, u.d FROM t LEFT JOIN u ON t.a = u.a",
            "SELECT t.b, u.a, u.c FROM t RIGHT JOIN u ON t.a = u.a AND u.c > 1",
            "SELECT t.a AS ta, u.a AS ua, s, d FROM t FULL OUTER JOIN u ON t.a = u.a",
            "SELECT t.a, x.c, y.s FROM t LEFT JOIN u x ON t.a = x.a LEFT JOIN t y ON x.c = y.a WHERE t.b IS NOT NULL",
            "SELECT t.a, u.c FROM t LEFT JOIN u ON t.b > u.c",
        ],
    )


def test_memberships(tables: Lake) -> None:
    follow(
        tables,
        [
            "SELECT a, s FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.c > 1) AND b IS NOT NULL",
            "SELECT a, b FROM t WHERE NOT EXISTS (SELECT * FROM u WHERE u.a = t.a AND u.c <> t.b)",
            """SELECT t.s, u.d FROM t JOIN u ON t.a = u.a
               WHERE u.c IN (SELECT b FROM t) AND t.b NOT IN (SELECT c FROM u)""",
            "SELECT a FROM t WHERE (a, b) IN (SELECT a, c FROM u)",
            "SELECT s, COUNT(*) AS n FROM t LEFT ANTI JOIN u ON t.a = u.a GROUP BY s",
        ],
    )


def test_aggregates(tables: Lake) -> None:
    follow(
        tables,
        [
            """SELECT a, COUNT(*) AS n, COUNT(b) AS nb, SUM(b) AS sb, AVG(b) AS ab, MIN(b) AS lo, MAX(s) AS hi
               FROM t GROUP BY a""",
            "SELECT COUNT(*) AS n, SUM(d) AS sd, AVG(d) AS ad, MIN(d) AS lo, MAX(c) AS hi FROM u",
            "SELECT a, SUM(d) FILTER (WHERE c > 1) AS f, COUNT(*) FILTER (WHERE d IS NULL) AS g FROM u GROUP BY a",
            "SELECT s, SUM(b) AS sb FROM t GROUP BY s HAVING SUM(b) > 5 AND COUNT(*) < 4",
            "SELECT COUNT(*) AS n FROM t HAVING COUNT(*) > 7",
            "SELECT a % 2 AS parity, COUNT(DISTINCT s) AS n, MAX(b) - MIN(b) AS span FROM t GROUP BY a % 2",
        ],
    )


def test_distinct_and_unions(tables: Lake) -> None:
    follow(
        tables,
        [
            "SELECT DISTINCT a, s FROM t",
            "SELECT a FROM t UNION ALL SELECT a FROM u",
            "SELECT a, b FROM t UNION SELECT a, c FROM u",
            "SELECT a, b FROM t INTERSECT SELECT a, c FROM u",
            "SELECT a FROM t EXCEPT SELECT c FROM u",
            "SELECT a, CAST(b AS BIGINT) AS n FROM t UNION ALL SELECT a, d FROM u",
            "SELECT DISTINCT a FROM (SELECT a FROM t UNION ALL SELECT c FROM u) x WHERE a > 1",
        ],
    )


def test_compositions(tables: Lake) -> None:
    follow(
        tables,
        [
            "SELECT x.a, x.n, u.d FROM (SELECT a, COUNT(*) AS n FROM t GROUP BY a) x JOIN u ON u.a = x.a",
            """WITH g AS (SELECT a, SUM(c) AS total FROM u GROUP BY a)
               SELECT p.a, p.total, q.total AS other FROM g p JOIN g q ON p.total = q.total + 2""",
            "SELECT n, COUNT(*) AS groups FROM (SELECT a, COUNT(*) AS n FROM t GROUP BY a) x GROUP BY n",
            "SELECT MAX(n) AS most FROM (SELECT a, COUNT(*) AS n FROM t GROUP BY a HAVING COUNT(*) > 1) x",
            """SELECT a, MAX(n) AS m FROM (SELECT a, s, COUNT(*) AS n FROM t GROUP BY a, s) x
               GROUP BY a HAVING MAX(n) < 3""",
            "SELECT t.s, COUNT(u.c) AS n, SUM(u.d) AS sd FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.s",
        ],
    )


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
