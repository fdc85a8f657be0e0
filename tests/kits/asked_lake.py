"""A lake over tables of many types, to be verified against the database they are in."""

from __future__ import annotations

SCHEMA = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
    "CREATE TABLE customers (id int PRIMARY KEY, name text, mood mood, born date, tags text[], extra jsonb)",
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, amount numeric(10,2), weight double precision,"
    " placed timestamptz, local timestamp, free numeric, note text)",
    "CREATE TABLE nothing (a int, b text, n numeric(8,3))",
)
ROWS = (
    "INSERT INTO customers VALUES (1, 'ann', 'happy', '1990-02-28', '{a,b}', '{\"k\": 1}'),"
    " (2, 'Bob', 'sad', NULL, '{}', NULL), (3, 'Österreich', NULL, '2000-12-31', NULL, '[1, 2.50]'),"
    " (4, NULL, 'ok', '0001-01-01', ARRAY['x', NULL, 'q\"\\,'], '\"s\"'), (5, '', 'ok', '9999-12-31', '{a}', NULL)",
    "INSERT INTO orders SELECT g, 1 + g % 6, g * 7.25 - 100, g / 7.0, '2024-03-30 22:15:00+00'::timestamptz"
    " + g * interval '37 minutes', '2024-03-31 00:30:00'::timestamp + g * interval '37 minutes', g / 8.0,"
    " CASE WHEN g % 5 <> 0 THEN chr(96 + g % 7) END FROM generate_series(1, 40) g",
)
CHANGES = (
    "UPDATE orders SET amount = amount * 2, weight = weight * 3, note = upper(note) WHERE id % 4 = 0",
    "DELETE FROM orders WHERE id % 9 = 0",
    "INSERT INTO orders VALUES (100, 2, NULL, NULL, NULL, NULL, NULL, ''), (101, NULL, 0, 'NaN', now(), now(), 0, 'ü')",
    "INSERT INTO orders VALUES (102, 7, -3.10, '-0', '1999-12-31 23:59:59.999999+00', '1999-12-31', 123456.789, 'ß')",
    "UPDATE customers SET mood = 'happy', tags = array_append(tags, 'new') WHERE id IN (2, 4)",
    "DELETE FROM customers WHERE id = 5",
)
ORDERS, CUSTOMERS = "shop.public.orders", "shop.public.customers"
CORPUS = {
    "projection": "SELECT id, note, amount * 2 AS double FROM shop.public.orders WHERE amount > 0",
    "all_columns": "SELECT * FROM shop.public.orders",
    "qualified": "SELECT shop.public.orders.id, orders.amount FROM shop.public.orders WHERE shop.public.orders.amount "
    "IS NOT NULL",
    "duplicates": "SELECT customer, note IS NULL AS empty FROM shop.public.orders",
    "inner_join": "SELECT c.name, o.id, o.amount FROM shop.public.orders o JOIN shop.public.customers c ON c.id = "
    "o.customer",
    "outer_joins": "SELECT o.id, c.name FROM shop.public.orders o FULL JOIN shop.public.customers c ON c.id = "
    "o.customer AND o.amount > 0",
    "using": "SELECT id, a.note, b.weight FROM shop.public.orders a LEFT JOIN shop.public.orders b USING (id)",
    "aggregates": "SELECT customer, count(*) AS n, sum(amount) AS s, min(placed) AS a, max(note) AS z, bool_or(id > 9) "
    "AS y FROM shop.public.orders GROUP BY customer",
    "grand_total": "SELECT count(*) AS n, sum(amount) AS s, avg(weight) AS w FROM shop.public.orders WHERE weight < 3",
    "averages": "SELECT customer, avg(amount) AS m, sum(amount) / 7 AS q, stddev(amount) AS d FROM shop.public.orders"
    " GROUP BY 1",
    "having": "SELECT note, sum(id) AS s FROM shop.public.orders GROUP BY note HAVING count(*) > 2",
    "distinct": "SELECT DISTINCT customer, id % 2 AS odd FROM shop.public.orders",
    "count_distinct": "SELECT count(DISTINCT note) AS n, count(DISTINCT customer) FILTER (WHERE id > 9) AS m FROM "
    "shop.public.orders",
    "grouping_sets": "SELECT customer, note, sum(amount) AS s, grouping(note) AS g FROM shop.public.orders GROUP BY "
    "ROLLUP (customer, note)",
    "ranks": "SELECT id, rank() OVER (PARTITION BY customer ORDER BY amount DESC) AS r FROM shop.public.orders",
    "running": "SELECT id, sum(amount) OVER (PARTITION BY customer ORDER BY placed) AS s FROM shop.public.orders",
    "numbered": "SELECT id, row_number() OVER (ORDER BY amount, id) AS r, lag(id) OVER (ORDER BY id) AS p FROM "
    "shop.public.orders",
    "first_rows": "SELECT id, amount FROM shop.public.orders ORDER BY amount DESC NULLS LAST, id LIMIT 5",
    "distinct_on": "SELECT DISTINCT ON (customer) customer, id FROM shop.public.orders ORDER BY customer, id DESC",
    "union": "SELECT id, note FROM shop.public.orders UNION SELECT id, name FROM shop.public.customers",
    "except_all": "SELECT customer FROM shop.public.orders EXCEPT ALL SELECT id FROM shop.public.customers",
    "intersect": "SELECT customer FROM shop.public.orders INTERSECT SELECT id FROM shop.public.customers",
    "exists": "SELECT name FROM shop.public.customers c WHERE NOT EXISTS (SELECT 1 FROM shop.public.orders o WHERE "
    "o.customer = c.id AND o.amount > 50)",
    "in_subquery": "SELECT id FROM shop.public.orders WHERE customer NOT IN (SELECT id FROM shop.public.customers "
    "WHERE mood = 'sad')",
    "scalar_subquery": "SELECT id, (SELECT max(amount) FROM shop.public.orders i WHERE i.customer = o.customer) AS "
    "most FROM shop.public.orders o",
    "recursion": "WITH RECURSIVE up(n) AS (SELECT 1 UNION SELECT n + 1 FROM up WHERE n < 5) SELECT up.n, count(o.id) "
    "AS orders FROM up LEFT JOIN shop.public.orders o ON o.customer = up.n GROUP BY up.n",
    "common_table": "WITH big AS (SELECT * FROM shop.public.orders WHERE amount > 10) SELECT b.id, a.name FROM big b, "
    "shop.public.customers a WHERE a.id = b.customer",
    "enums": "SELECT mood, mood::text AS shown, count(*) AS n FROM shop.public.customers GROUP BY mood",
    "texts": "SELECT id, upper(name) AS u, name || '!' AS x, length(name) AS l, name LIKE 'A%' AS a, substr(name, "
    "2) AS s FROM shop.public.customers",
    "order_of_texts": "SELECT min(name) AS a, max(name) AS z, count(*) FILTER (WHERE name < 'a') AS n FROM "
    "shop.public.customers",
    "arrays": "SELECT id, tags, cardinality(tags) AS n, tags[1] AS f, 'a' = ANY (tags) AS has FROM "
    "shop.public.customers",
    "unnested": "SELECT c.id, t.tag FROM shop.public.customers c CROSS JOIN LATERAL unnest(c.tags) AS t(tag)",
    "lists": "SELECT customer, array_agg(note) AS a, string_agg(note, '|') AS s, array_agg(id ORDER BY note) AS o "
    "FROM shop.public.orders GROUP BY customer",
    "jsons": "SELECT id, extra ->> 'k' AS k, extra FROM shop.public.customers",
    "dates": "SELECT id, born, born + 30 AS later, extract(year FROM born) AS y FROM shop.public.customers WHERE "
    "born < '9000-01-01'",
    "moments": "SELECT id, placed, local, date_trunc('day', placed) AS d, placed::date AS e, placed AT TIME ZONE "
    "'UTC' AS u FROM shop.public.orders",
    "zones": "SELECT id, placed AT TIME ZONE 'Europe/Berlin' AS b, local AT TIME ZONE 'Europe/Berlin' AS m FROM "
    "shop.public.orders",
    "numbers": "SELECT id, free, free * 3 AS t, amount / 3 AS q, round(free, 1) AS r, weight FROM shop.public.orders",
    "recent": "SELECT id, now() AS at, current_date AS today FROM shop.public.orders WHERE placed < now() - "
    "interval '1 day'",
    "clock": "SELECT s.now > o.placed AS past, s.current_date AS d, count(*) AS n FROM shop.public.orders o CROSS "
    "JOIN (SELECT now(), current_date) s GROUP BY 1, 2",
    "values": "SELECT o.id, v.w FROM shop.public.orders o JOIN (VALUES (1, 'one'), (2, 'two')) AS v(k, w) ON v.k = "
    "o.customer",
    "empty_table": "SELECT a, b, n FROM shop.public.nothing",
    "empty_total": "SELECT count(*) AS c, sum(n) AS s, max(b) AS m FROM shop.public.nothing",
    "empty_groups": "SELECT a, sum(n) AS s FROM shop.public.nothing GROUP BY a",
    "empty_join": "SELECT o.id, n.b FROM shop.public.orders o LEFT JOIN shop.public.nothing n ON n.a = o.customer WHERE"
    " o.id < 5",
}
