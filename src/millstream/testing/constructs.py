"""One example of every construct of SQL, for the support matrix: what becomes of it is found out, not written down.

To have a construct in the matrix, add a line: its name, and the shortest query that has it. The tables are `TABLES`.
"""

from __future__ import annotations

from millstream.ops import Column

TABLES = {
    "t": (Column("a", "int"), Column("b", "int"), Column("s", "string")),
    "u": (Column("a", "int"), Column("c", "int"), Column("d", "decimal(10,2)")),
    "v": (Column("k", "int"), Column("e", "bigint"), Column("s", "string")),
    "w": (Column("a", "int"), Column("arr", "array<int>"), Column("x", "double"), Column("day", "date")),
}
VIEWS = {"a_view": "SELECT a, SUM(b) AS total FROM t GROUP BY a"}

Examples = tuple[tuple[str, str], ...]

CONSTRUCTS: dict[str, Examples] = {
    "Rows": (
        ("SELECT list", "SELECT a, a + 1, UPPER(s) FROM t"),
        ("WHERE", "SELECT a FROM t WHERE b > 1"),
        ("SELECT DISTINCT", "SELECT DISTINCT a FROM t"),
        ("DISTINCT ON", "SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b"),
        ("* EXCEPT", "SELECT * EXCEPT (s) FROM t"),
        ("* REPLACE", "SELECT * REPLACE (1 AS a) FROM t"),
        ("ORDER BY alone", "SELECT a FROM t ORDER BY a"),
        ("a view", "SELECT a, total FROM a_view WHERE total > 1"),
        ("SELECT without FROM", "SELECT 1 AS one"),
        ("VALUES", "SELECT t.b, q.x FROM t JOIN (VALUES (1), (2)) AS q(x) ON t.a = q.x"),
        ("PIVOT", "SELECT * FROM t PIVOT (SUM(b) FOR a IN (1, 2))"),
    ),
    "Joins": (
        ("inner join", "SELECT t.b, u.c FROM t JOIN u ON t.a = u.a"),
        ("join of several tables", "SELECT t.b, u.c, v.e FROM t, u, v WHERE t.a = u.a AND u.a = v.k"),
        ("self join", "SELECT x.b, y.b AS other FROM t x JOIN t y ON x.a = y.b"),
        ("cross join", "SELECT t.b, u.c FROM t CROSS JOIN u"),
        ("join on an inequality", "SELECT t.b, u.c FROM t JOIN u ON t.a < u.a"),
        ("LEFT JOIN", "SELECT t.b, u.c FROM t LEFT JOIN u ON t.a = u.a"),
        ("RIGHT JOIN", "SELECT t.b, u.c FROM t RIGHT JOIN u ON t.a = u.a"),
        ("FULL JOIN", "SELECT t.b, u.c FROM t FULL JOIN u ON t.a = u.a"),
        ("nested outer joins", "SELECT t.b FROM t LEFT JOIN (u LEFT JOIN v ON u.a = v.k) ON t.a = u.a"),
        ("USING", "SELECT a, b, c FROM t JOIN u USING (a)"),
        ("NATURAL JOIN", "SELECT a, b, c FROM t NATURAL JOIN u"),
        ("LEFT SEMI JOIN", "SELECT a FROM t LEFT SEMI JOIN u ON t.a = u.a"),
        ("LEFT ANTI JOIN", "SELECT a FROM t LEFT ANTI JOIN u ON t.a = u.a"),
    ),
    "Subqueries": (
        ("EXISTS", "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a)"),
        ("NOT EXISTS", "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)"),
        ("IN", "SELECT a FROM t WHERE a IN (SELECT a FROM u)"),
        ("IN with several columns", "SELECT a FROM t WHERE (a, b) IN (SELECT a, c FROM u)"),
        ("NOT IN", "SELECT a FROM t WHERE a NOT IN (SELECT a FROM u)"),
        ("ANY", "SELECT a FROM t WHERE a > ANY (SELECT a FROM u)"),
        ("ALL", "SELECT a FROM t WHERE a > ALL (SELECT a FROM u)"),
        ("a subquery under OR", "SELECT a FROM t WHERE b = 1 OR EXISTS (SELECT 1 FROM u WHERE u.a = t.a)"),
        ("a scalar subquery in SELECT", "SELECT a, (SELECT MAX(c) FROM u) AS m FROM t"),
        ("a scalar subquery in WHERE", "SELECT a FROM t WHERE b > (SELECT AVG(c) FROM u)"),
        ("a correlated scalar subquery", "SELECT a, (SELECT MAX(c) FROM u WHERE u.a = t.a) AS m FROM t"),
        ("a subquery in HAVING", "SELECT a FROM t GROUP BY a HAVING COUNT(*) > (SELECT MAX(c) FROM u)"),
    ),
    "Set operations": (
        ("UNION ALL", "SELECT a FROM t UNION ALL SELECT a FROM u"),
        ("UNION", "SELECT a FROM t UNION SELECT a FROM u"),
        ("INTERSECT", "SELECT a FROM t INTERSECT SELECT a FROM u"),
        ("INTERSECT ALL", "SELECT a FROM t INTERSECT ALL SELECT a FROM u"),
        ("EXCEPT", "SELECT a FROM t EXCEPT SELECT a FROM u"),
        ("EXCEPT ALL", "SELECT a FROM t EXCEPT ALL SELECT a FROM u"),
        ("a tree of them", "SELECT a FROM t UNION ALL (SELECT a FROM u EXCEPT SELECT k FROM v)"),
        ("BY NAME", "SELECT a FROM t UNION ALL BY NAME SELECT a FROM u"),
    ),
    "Aggregates": (
        ("COUNT(*)", "SELECT a, COUNT(*) AS n FROM t GROUP BY a"),
        ("COUNT(x)", "SELECT a, COUNT(b) AS n FROM t GROUP BY a"),
        ("COUNT(DISTINCT x)", "SELECT a, COUNT(DISTINCT b) AS n FROM t GROUP BY a"),
        ("SUM of an exact type", "SELECT a, SUM(d) AS n FROM u GROUP BY a"),
        ("SUM of a double", "SELECT a, SUM(x) AS n FROM w GROUP BY a"),
        ("SUM(DISTINCT x)", "SELECT a, SUM(DISTINCT b) AS n FROM t GROUP BY a"),
        ("AVG", "SELECT a, AVG(b) AS n FROM t GROUP BY a"),
        ("MIN, MAX", "SELECT a, MIN(b) AS low, MAX(b) AS high FROM t GROUP BY a"),
        ("STDDEV, VARIANCE", "SELECT a, STDDEV(b) AS sd, VARIANCE(b) AS var FROM t GROUP BY a"),
        ("CORR, COVAR", "SELECT a, CORR(a, c) AS r, COVAR_SAMP(a, c) AS cov FROM u GROUP BY a"),
        ("BOOL_AND, BOOL_OR", "SELECT a, BOOL_AND(b > 1) AS x, BOOL_OR(b > 1) AS y FROM t GROUP BY a"),
        ("BIT_AND, BIT_OR, BIT_XOR", "SELECT a, BIT_AND(b) AS x, BIT_OR(b) AS y, BIT_XOR(b) AS z FROM t GROUP BY a"),
        ("REGR_*", "SELECT a, REGR_SLOPE(a, c) AS slope, REGR_R2(a, c) AS fit FROM u GROUP BY a"),
        ("SKEWNESS, KURTOSIS", "SELECT a, SKEWNESS(b) AS x, KURTOSIS(b) AS y FROM t GROUP BY a"),
        ("ANY_VALUE", "SELECT a, ANY_VALUE(b) AS x FROM t GROUP BY a"),
        ("FIRST, LAST", "SELECT a, FIRST(b) AS x, LAST(b) AS y FROM t GROUP BY a"),
        ("MAX_BY, MIN_BY", "SELECT a, MAX_BY(s, b) AS x, MIN_BY(s, b) AS y FROM t GROUP BY a"),
        ("MODE", "SELECT a, MODE(b) AS x FROM t GROUP BY a"),
        ("COLLECT_LIST, ARRAY_AGG", "SELECT a, COLLECT_LIST(b) AS bs FROM t GROUP BY a"),
        ("COLLECT_SET", "SELECT a, COLLECT_SET(b) AS bs FROM t GROUP BY a"),
        ("LISTAGG", "SELECT a, LISTAGG(s, ',') WITHIN GROUP (ORDER BY s) AS x FROM t GROUP BY a"),
        ("PERCENTILE", "SELECT a, PERCENTILE(b, 0.5) AS x FROM t GROUP BY a"),
        ("PERCENTILE_CONT", "SELECT a, PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY b) AS x FROM t GROUP BY a"),
        ("approximate ones", "SELECT a, APPROX_COUNT_DISTINCT(b) AS n FROM t GROUP BY a"),
        ("sketches", "SELECT HISTOGRAM_NUMERIC(b, 3) AS h FROM t"),
        ("FILTER", "SELECT a, SUM(b) FILTER (WHERE b > 1) AS n FROM t GROUP BY a"),
        ("HAVING", "SELECT a, SUM(b) AS n FROM t GROUP BY a HAVING COUNT(*) > 1"),
        ("an expression over aggregates", "SELECT a, SUM(b) / COUNT(*) AS r FROM t GROUP BY a"),
        ("a global aggregate", "SELECT SUM(b) AS n FROM t"),
        (
            "an aggregate of an aggregate",
            "SELECT n, COUNT(*) AS c FROM (SELECT a, COUNT(*) AS n FROM t GROUP BY a) GROUP BY n",
        ),
        (
            "a join of aggregates",
            "SELECT x.a, n FROM u x JOIN (SELECT a, COUNT(*) AS n FROM t GROUP BY a) y ON x.a = y.a",
        ),
        ("ROLLUP", "SELECT a, s, COUNT(*) AS n FROM t GROUP BY ROLLUP (a, s)"),
        ("CUBE", "SELECT a, s, COUNT(*) AS n FROM t GROUP BY CUBE (a, s)"),
        ("GROUPING SETS", "SELECT a, s, COUNT(*) AS n FROM t GROUP BY GROUPING SETS ((a), (s))"),
        ("GROUPING()", "SELECT a, GROUPING(a) AS g, COUNT(*) AS n FROM t GROUP BY ROLLUP (a)"),
    ),
    "Windows": (
        ("ranking", "SELECT a, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b) AS n FROM t"),
        ("offset", "SELECT a, LAG(b) OVER (PARTITION BY a ORDER BY b) AS x FROM t"),
        ("aggregate", "SELECT a, SUM(b) OVER (PARTITION BY a) AS n FROM t"),
        ("a frame", "SELECT a, SUM(b) OVER (PARTITION BY a ORDER BY b ROWS 2 PRECEDING) AS n FROM t"),
        ("no PARTITION BY", "SELECT a, RANK() OVER (ORDER BY b) AS n FROM t"),
        ("a named window", "SELECT SUM(b) OVER w AS n FROM t WINDOW w AS (PARTITION BY a)"),
        ("several PARTITION BY", "SELECT SUM(b) OVER (PARTITION BY a) AS x, SUM(b) OVER (PARTITION BY s) AS y FROM t"),
        ("QUALIFY", "SELECT a, b FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY a ORDER BY b) = 1"),
    ),
    "First rows": (
        ("ORDER BY ... LIMIT", "SELECT a, b FROM t ORDER BY b DESC LIMIT 10"),
        ("ORDER BY ... LIMIT ... OFFSET", "SELECT a, b FROM t ORDER BY b LIMIT 10 OFFSET 5"),
        ("LIMIT without ORDER BY", "SELECT a FROM t LIMIT 10"),
        ("OFFSET without ORDER BY", "SELECT a FROM t OFFSET 10"),
    ),
    "Lateral": (
        ("LATERAL VIEW", "SELECT a, item FROM w LATERAL VIEW EXPLODE(arr) q AS item"),
        ("a generator in SELECT", "SELECT a, EXPLODE(arr) AS x FROM w"),
        ("a lateral subquery", "SELECT t.a, q.c FROM t, LATERAL (SELECT c FROM u WHERE u.a = t.a) q"),
        ("LEFT JOIN LATERAL", "SELECT t.a, q.c FROM t LEFT JOIN LATERAL (SELECT c FROM u WHERE u.a = t.a) q ON TRUE"),
        (
            "first rows per row",
            "SELECT t.a, q.c FROM t, LATERAL (SELECT c FROM u WHERE u.a = t.a ORDER BY c LIMIT 2) q",
        ),
        ("a table function", "SELECT id FROM RANGE(10)"),
    ),
    "Common table expressions": (
        ("WITH", "WITH q AS (SELECT a, SUM(b) AS n FROM t GROUP BY a) SELECT a FROM q WHERE n > 1"),
        (
            "one that is read twice",
            "WITH q AS (SELECT a, b FROM t WHERE b > 1) SELECT x.a FROM q x JOIN q y ON x.a = y.b",
        ),
        (
            "WITH RECURSIVE ... UNION",
            "WITH RECURSIVE q AS (SELECT a, b FROM t UNION SELECT q.a, t.b FROM q JOIN t ON q.b = t.a) SELECT a FROM q",
        ),
        (
            "WITH RECURSIVE ... UNION ALL",
            "WITH RECURSIVE q AS (SELECT a FROM t UNION ALL SELECT t.b FROM q JOIN t ON q.a = t.a) SELECT a FROM q",
        ),
    ),
    "What is not a function of the rows": (
        ("the current time", "SELECT a FROM w WHERE day > CURRENT_DATE"),
        ("a random number", "SELECT a, RAND() AS r FROM t"),
        ("the session's user", "SELECT a, CURRENT_USER() AS r FROM t"),
        ("TABLESAMPLE", "SELECT a FROM t TABLESAMPLE (10 PERCENT)"),
        ("a fixed version", "SELECT a FROM t VERSION AS OF 1"),
        ("FOR UPDATE", "SELECT a FROM t FOR UPDATE"),
        ("SORT BY", "SELECT a FROM t SORT BY a"),
    ),
}
