"""Queries with every operator, over the tables `t (a, b, s)` and `u (a, c, d)`, by kind."""

from __future__ import annotations

OPERATORS: dict[str, tuple[str, ...]] = {
    "subqueries as values": (
        "SELECT a, (SELECT MAX(c) FROM u) AS m, (SELECT COUNT(*) FROM u WHERE u.a = t.a) AS n FROM t",
        "SELECT a, b FROM t WHERE b > (SELECT AVG(c) FROM u WHERE u.a = t.a) OR s = 'z'",
        "SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING SUM(b) > (SELECT AVG(c) FROM u)",
        "SELECT a, a IN (SELECT c FROM u) AS x, EXISTS (SELECT 1 FROM u WHERE u.a = t.a) AS y FROM t",
        "SELECT a FROM t WHERE a NOT IN (SELECT c FROM u WHERE u.c > 2) OR b IN (SELECT c FROM u WHERE u.a > t.a)",
        "SELECT a, (SELECT c FROM u WHERE u.a = t.a ORDER BY c DESC LIMIT 1) AS m FROM t",
    ),
    # The orders leave nothing open, so that Spark's answer to the text is the one to have.
    "windows and first rows": (
        "SELECT a, b, s, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b, s) AS r FROM t",
        "SELECT a, RANK() OVER (ORDER BY b DESC) AS r, LAG(b) OVER (PARTITION BY s ORDER BY a, b) AS l FROM t",
        "SELECT t.a, u.c, FIRST_VALUE(u.c) OVER w AS f, LAST_VALUE(u.c) OVER w AS l FROM t JOIN u ON t.a = u.a "
        "WINDOW w AS (PARTITION BY t.a ORDER BY u.c)",
        "SELECT a, b, s FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY a ORDER BY b DESC, s) = 1",
        "SELECT a, SUM(b) AS x FROM t GROUP BY a ORDER BY x DESC, a LIMIT 2",
        "SELECT s, a FROM t ORDER BY a DESC, s LIMIT 3 OFFSET 1",
        "SELECT r, COUNT(*) AS n FROM (SELECT RANK() OVER (PARTITION BY s ORDER BY b) AS r FROM t) q GROUP BY r",
    ),
    "lateral and repeated rows": (
        "SELECT s, p, x FROM t LATERAL VIEW OUTER posexplode(CASE WHEN b > 5 THEN array(a, b) END) e AS p, x",
        "SELECT s, k, v FROM t LATERAL VIEW explode(map('one', a, 'other', b)) e AS k, v",
        "SELECT t.s, e.x, e.y FROM t, LATERAL inline(array(struct(a AS i, b AS j))) AS e(x, y)",
        "SELECT t.a, l.c FROM t LEFT JOIN LATERAL (SELECT c FROM u WHERE u.a = t.a ORDER BY c DESC LIMIT 1) l",
        "SELECT t.a, l.n, l.m FROM t, LATERAL (SELECT COUNT(*) AS n, MAX(c) AS m FROM u WHERE u.a > t.a) l",
        "SELECT a FROM t EXCEPT ALL SELECT a FROM u",
    ),
    "filters and projections": (
        "SELECT * FROM t WHERE a = 1 OR s IS NULL",
        "SELECT s, a * 2 + coalesce(b, 0) AS n FROM t WHERE NOT (b > 6)",
        "SELECT a, CASE WHEN b > 5 THEN 'big' WHEN b IS NULL THEN 'none' ELSE upper(s) || '!' END AS word FROM t",
        "SELECT 1 AS one FROM t WHERE b BETWEEN 1 AND 10 AND s IN ('x', 'y')",
        """SELECT concat_ws('-', s, cast(t.a AS STRING)) AS c, length(s) AS l, substring(s, 1, 1) AS f,
             round(d * 3, 1) AS r, floor(d) AS fl, sqrt(abs(c)) AS q, greatest(c, 2) AS g, nullif(c, 1) AS n,
             md5(cast(c AS STRING)) AS h, date_add(DATE '2024-02-28', c) AS da, if(c > 1, 'a', 'b') AS i,
             array(c, c + 1)[0] AS ar, named_struct('x', c).x AS st, s RLIKE '^x' AS rl, s LIKE 'x%' AS li
           FROM t JOIN u ON t.a = u.a""",
    ),
    "inner joins": (
        "SELECT t.a, t.s, u.d FROM t JOIN u ON t.a = u.a",
        "SELECT t.a, x.c, y.d FROM t JOIN u x ON t.a = x.a JOIN u y ON x.c = y.c AND y.d IS NOT NULL",
        "SELECT t.s, u.c FROM t CROSS JOIN u",
        "SELECT t.a, u.c FROM t, u WHERE t.b > u.c AND u.d < 5",
        "SELECT x.a, y.b FROM t x JOIN t y ON x.a <=> y.a",
    ),
    "outer joins": (
        "SELECT t.a, t.s, u.d FROM t LEFT JOIN u ON t.a = u.a",
        "SELECT t.b, u.a, u.c FROM t RIGHT JOIN u ON t.a = u.a AND u.c > 1",
        "SELECT t.a AS ta, u.a AS ua, s, d FROM t FULL OUTER JOIN u ON t.a = u.a",
        "SELECT t.a, x.c, y.s FROM t LEFT JOIN u x ON t.a = x.a LEFT JOIN t y ON x.c = y.a WHERE t.b IS NOT NULL",
        "SELECT t.a, u.c FROM t LEFT JOIN u ON t.b > u.c",
    ),
    "memberships": (
        "SELECT a, s FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.c > 1) AND b IS NOT NULL",
        "SELECT a, b FROM t WHERE NOT EXISTS (SELECT * FROM u WHERE u.a = t.a AND u.c <> t.b)",
        """SELECT t.s, u.d FROM t JOIN u ON t.a = u.a
           WHERE u.c IN (SELECT b FROM t) AND t.b NOT IN (SELECT c FROM u)""",
        "SELECT a FROM t WHERE (a, b) IN (SELECT a, c FROM u)",
        "SELECT s, COUNT(*) AS n FROM t LEFT ANTI JOIN u ON t.a = u.a GROUP BY s",
    ),
    "aggregates": (
        """SELECT a, COUNT(*) AS n, COUNT(b) AS nb, SUM(b) AS sb, AVG(b) AS ab, MIN(b) AS lo, MAX(s) AS hi
           FROM t GROUP BY a""",
        "SELECT COUNT(*) AS n, SUM(d) AS sd, AVG(d) AS ad, MIN(d) AS lo, MAX(c) AS hi FROM u",
        "SELECT a, SUM(d) FILTER (WHERE c > 1) AS f, COUNT(*) FILTER (WHERE d IS NULL) AS g FROM u GROUP BY a",
        "SELECT s, SUM(b) AS sb FROM t GROUP BY s HAVING SUM(b) > 5 AND COUNT(*) < 4",
        "SELECT COUNT(*) AS n FROM t HAVING COUNT(*) > 7",
        "SELECT a % 2 AS parity, COUNT(DISTINCT s) AS n, MAX(b) - MIN(b) AS span FROM t GROUP BY a % 2",
    ),
    "distinct and unions": (
        "SELECT DISTINCT a, s FROM t",
        "SELECT a FROM t UNION ALL SELECT a FROM u",
        "SELECT a, b FROM t UNION SELECT a, c FROM u",
        "SELECT a, b FROM t INTERSECT SELECT a, c FROM u",
        "SELECT a FROM t EXCEPT SELECT c FROM u",
        "SELECT a, CAST(b AS BIGINT) AS n FROM t UNION ALL SELECT a, d FROM u",
        "SELECT DISTINCT a FROM (SELECT a FROM t UNION ALL SELECT c FROM u) x WHERE a > 1",
    ),
    "compositions": (
        "SELECT x.a, x.n, u.d FROM (SELECT a, COUNT(*) AS n FROM t GROUP BY a) x JOIN u ON u.a = x.a",
        """WITH g AS (SELECT a, SUM(c) AS total FROM u GROUP BY a)
           SELECT p.a, p.total, q.total AS other FROM g p JOIN g q ON p.total = q.total + 2""",
        "SELECT n, COUNT(*) AS groups FROM (SELECT a, COUNT(*) AS n FROM t GROUP BY a) x GROUP BY n",
        "SELECT MAX(n) AS most FROM (SELECT a, COUNT(*) AS n FROM t GROUP BY a HAVING COUNT(*) > 1) x",
        """SELECT a, MAX(n) AS m FROM (SELECT a, s, COUNT(*) AS n FROM t GROUP BY a, s) x
           GROUP BY a HAVING MAX(n) < 3""",
        "SELECT t.s, COUNT(u.c) AS n, SUM(u.d) AS sd FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.s",
    ),
}
