"""Every aggregate function, and every way to group by several sets of keys, on real Spark.

Where SQL leaves a result open there is a second query, which says what is to come out.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from kits.lake import refused
from millstream import Action, Code

if TYPE_CHECKING:
    from kits.lake import Lake

pytestmark = pytest.mark.spark

T = "a INT, b INT, s STRING, d DECIMAL(10,2), e BIGINT, f DOUBLE"
ROWS = (
    "1, 10, 'x', 1.50, 7, 0.5",
    "1, 10, 'x', 1.50, 7, 0.5",
    "1, 12, 'y', 2.25, 9, 1.25",
    "1, 9, NULL, -0.75, -4, 8.0",
    "2, NULL, 'y', 4.00, NULL, 2.0",
    "2, 3, 'w', 9.10, 2, NULL",
    "NULL, 5, 'x', 0.00, 1, 3.0",
    "NULL, 6, 'z', 7.30, 5, 4.5",
    "3, 7, NULL, NULL, 3, 1.0",
)
BATCHES = (
    (
        "INSERT INTO t VALUES (1, 11, 'x', 3.33, 8, 2.5), (4, 1, 'q', 1.00, 1, 1.0), (3, NULL, NULL, NULL, NULL, NULL)",
        "DELETE FROM t WHERE s = 'w'",
        "UPDATE t SET a = 2, d = d + 0.07 WHERE b = 10",
    ),
    ("DELETE FROM t",),
    ("INSERT INTO t VALUES (1, 1, 'x', 1.00, 1, 1.0), (1, 2, 'y', 3.00, 2, 2.0)",),
)

EXACT = {
    "counts and bits": """SELECT a, bool_and(b > 5) AS x1, every(b > 5) AS x2, bool_or(b > 9) AS x3, some(b > 9) AS x4,
        any(b > 9) AS x5, count_if(b > 9) AS x6, count(b, s) AS x7, bool_and(b > 5) FILTER (WHERE s = 'x') AS x8,
        bit_and(b) AS x9, bit_or(e) AS x10, bit_xor(b) AS x11, bit_or(DISTINCT b) AS x12, try_sum(b) AS x13,
        try_sum(e) AS x14, try_avg(d) AS x15, try_avg(e) AS x16, mean(b) AS x17,
        hex(bitmap_construct_agg(b)) AS x18 FROM t GROUP BY a""",
    "moments": """SELECT a, var_samp(b) AS x1, variance(d) AS x2, var_pop(e) AS x3, var_pop(f) AS x4, stddev(b) AS x5,
        std(d) AS x6, stddev_samp(b) AS x7, stddev_pop(d) AS x8, var_pop(b) FILTER (WHERE s = 'x') AS x9,
        stddev(DISTINCT b) AS x10, round(skewness(b), 9) AS x11, round(kurtosis(d), 9) AS x12, median(b) AS x13,
        percentile(b, 0.3) AS x14, percentile(d, array(0.25, 0.75)) AS x15, percentile(b, 0.5, 2) AS x16
        FROM t GROUP BY a""",
    "ordered sets": """SELECT a, percentile_cont(0.3) WITHIN GROUP (ORDER BY b) AS x1,
        percentile_cont(0.3) WITHIN GROUP (ORDER BY d DESC) AS x2, percentile_disc(0.5) WITHIN GROUP (ORDER BY b) AS x3,
        mode() WITHIN GROUP (ORDER BY s) AS x4, mode() WITHIN GROUP (ORDER BY b DESC) AS x5, mode(s, true) AS x6,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY b) FILTER (WHERE s = 'x') AS x7,
        listagg(s, ',') WITHIN GROUP (ORDER BY s DESC) AS x8, listagg(DISTINCT s, '-') WITHIN GROUP (ORDER BY s) AS x9
        FROM t GROUP BY a HAVING percentile_cont(0.5) WITHIN GROUP (ORDER BY b) > 1 OR count(*) = 1""",
    "distinct": """SELECT a, count(DISTINCT s) AS x1, count(s) AS x2, sum(b) AS x3, max(d) AS x4, sum(d) AS x5,
        count(DISTINCT s) FILTER (WHERE b > 5) AS x6 FROM t GROUP BY a""",
    "distinct sums": """SELECT a, sum(DISTINCT d) AS x1, avg(DISTINCT d) AS x2, count(DISTINCT d) AS x3
        FROM t GROUP BY a""",
    "distinct pairs": "SELECT count(DISTINCT a, s) AS x1, count(*) AS x2 FROM t",
    "distinct of several": "SELECT a, count(DISTINCT s) AS x1, sum(DISTINCT b) AS x2, avg(b) AS x3 FROM t GROUP BY a",
    "sets behind keys": """
        SELECT a, CAST(NULL AS INT) AS b, s, count(*) AS n, grouping_id() AS g FROM t GROUP BY a, s WITH ROLLUP
        UNION ALL SELECT a, NULL, s, max(b), grouping(a) + 1 FROM t GROUP BY a, s WITH CUBE
        UNION ALL SELECT a, b, s, count(*), 0 FROM t GROUP BY a, b, s GROUPING SETS ((a, b), (s), (a, b), ())
        UNION ALL SELECT 0, 0, '', count(*), sum(b) FROM t GROUP BY GROUPING SETS (())
        UNION ALL SELECT 1, 1, '', count(*), sum(b) FROM t GROUP BY GROUPING SETS ((), ())""",
    "sets": """
        SELECT a, CAST(NULL AS INT) AS b, s, sum(a) AS n, grouping(s) AS g FROM t GROUP BY ROLLUP (a, s)
          HAVING grouping(s) = 1 OR count(*) > 1
        UNION ALL SELECT a, NULL, s, count(*), grouping_id(a, s) FROM t GROUP BY GROUPING SETS (a, (a, s), ())
        UNION ALL SELECT a, b, s, count(*), grouping_id() FROM t GROUP BY a, ROLLUP (b), CUBE (s)
        UNION ALL SELECT a, b, NULL, count(*), grouping_id() FROM t GROUP BY a, a, ROLLUP (a, b)""",
    "more sets": """
        SELECT a, b, CAST(NULL AS STRING) AS s, count(*) AS n, 0 AS g FROM t
          GROUP BY GROUPING SETS (ROLLUP (a, b), CUBE (a, b))
        UNION ALL SELECT a, NULL, upper(s) AS u, count(*), 1 FROM t GROUP BY CUBE (1, u)
        UNION ALL SELECT a, b, s, count(*), grouping_id() FROM t GROUP BY ROLLUP ((a, b), s)
        UNION ALL SELECT a + 1, NULL, s, count(DISTINCT b), grouping(a + 1) FROM t GROUP BY CUBE (a + 1, s)""",
}
ROUNDED = """SELECT a, round(covar_pop(b, d), 9) AS x1, round(covar_samp(b, d), 9) AS x2, regr_count(b, d) AS x3,
    regr_avgx(b, d) AS x4, regr_avgy(b, d) AS x5, round(regr_sxx(b, d), 9) AS x6, round(regr_syy(b, d), 9) AS x7,
    round(regr_sxy(b, d), 9) AS x8, round(regr_slope(b, d), 9) AS x9, round(regr_intercept(b, d), 9) AS x10,
    round(regr_r2(b, d), 9) AS x11, round(covar_pop(b, f), 9) AS x12 FROM t GROUP BY a"""
OPEN = {
    "pairs": (ROUNDED, ROUNDED),
    "correlation": ("SELECT round(corr(b, d), 9) AS x, round(corr(e, f), 9) AS y FROM t",) * 2,
    "any value": (
        """SELECT a, any_value(s) AS x, first(b) AS y, last(d, true) AS z, first_value(s) IGNORE NULLS AS w,
             max_by(s, b) AS m1, min_by(b, s) AS m2, max_by(b, f) AS m3 FROM t GROUP BY a""",
        """SELECT a, min(s), min(b), max(d), min(s), max(CASE WHEN b IS NOT NULL THEN struct(b, s) END).s,
             min(CASE WHEN s IS NOT NULL THEN struct(s, b) END).b,
             max(CASE WHEN f IS NOT NULL THEN struct(f, b) END).b FROM t GROUP BY a""",
    ),
    "arrays": (
        """SELECT a, collect_list(b) AS x, array_agg(s) AS y, collect_set(s) AS z, collect_list(DISTINCT d) AS w,
             collect_list(s) FILTER (WHERE b > 5) AS v, collect_list(b) RESPECT NULLS AS u,
             collect_list(struct(s, b)) AS r FROM t GROUP BY a""",
        """SELECT a, sort_array(collect_list(b)), sort_array(collect_list(s)), sort_array(collect_set(s)),
             sort_array(collect_set(d)), sort_array(collect_list(s) FILTER (WHERE b > 5)),
             sort_array(collect_list(b) RESPECT NULLS), sort_array(collect_list(struct(s, b)))
           FROM t GROUP BY a""",
    ),
    "texts": (
        """SELECT a, listagg(s) AS x, string_agg(s, '+') AS y, listagg(DISTINCT s, ',') AS z, listagg(b, ';') AS w,
             listagg(s, ',') WITHIN GROUP (ORDER BY b % 3 DESC NULLS LAST) AS v FROM t GROUP BY a""",
        """SELECT a, listagg(s) WITHIN GROUP (ORDER BY s), listagg(s, '+') WITHIN GROUP (ORDER BY s),
             listagg(DISTINCT s, ',') WITHIN GROUP (ORDER BY s), listagg(b, ';') WITHIN GROUP (ORDER BY b),
             listagg(s, ',') WITHIN GROUP (ORDER BY b % 3 DESC NULLS LAST, s) FROM t GROUP BY a""",
    ),
    "mode": (
        "SELECT a, mode(s) AS x, mode(b) AS y FROM t GROUP BY a",
        "SELECT a, mode(s, true), mode(b, true) FROM t GROUP BY a",
    ),
}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_aggregates_follow_their_queries(lake: Lake) -> None:
    lake.table("t", T, *ROWS)
    names: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for title, (query, oracle) in {**{title: (q, None) for title, q in EXACT.items()}, **OPEN}.items():
            lake.stream(names.setdefault(title, f"st{len(names)}"), query, oracle=oracle)
    for batch in BATCHES:
        lake.sql(*batch)
        wrong = {title: found for title, name in names.items() if (found := _refreshed(lake, name))}
        assert not wrong, "\n".join(f"{title}: {found}" for title, found in wrong.items())


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT a, collect_list(map(a, s)) AS x FROM t GROUP BY a", ["COLLECT_LIST", "map<int,string>"]),
        ("SELECT any_value(map(a, s)) AS x FROM t", ["ANY_VALUE", "map<int,string>"]),
        ("SELECT approx_count_distinct(a) AS x FROM t", ["approx_count_distinct", "COUNT(DISTINCT x)"]),
        ("SELECT a FROM t GROUP BY CUBE (a, b, s, d, e, f, a + 1)", ["128 sets", "up to 64"]),
    ],
)
def test_what_has_no_fixed_result_is_refused(lake: Lake, query: str, words: list[str]) -> None:
    lake.table("t", T)
    with refused(Code.UNSUPPORTED_SQL, *words):
        lake.stream("st", query)


def _refreshed(lake: Lake, name: str) -> str:
    result = lake.ms.refresh_stream_table(name)
    if result.action is not Action.DIFFERENTIAL:
        return f"{result.action}: {result.reason}"
    return lake.difference(name) or ("" if lake.ms.verify(name).ok else "verify disagrees")
