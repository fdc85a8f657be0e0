"""Output columns under the names Spark gives them, also those Delta refuses, and two columns of one name."""

from __future__ import annotations

import pytest

from kits.lake import Lake, open_lake, refused
from millstream import Action, Code
from millstream.naming import TableName

pytestmark = pytest.mark.spark

# one query per line, each with items that have no alias
UNNAMED = (
    "SELECT k, sum(amount), COUNT(*), max(id) + 1, count(amount) FILTER (WHERE id > 1) FROM t GROUP BY k",
    "SELECT id + 1, -id, t.amount*(2 +ID), k || 'x', upper(K), ID, id IN (1,2), k LIKE 'a%' FROM t",
    "SELECT CAST(id AS STRING), nvl(amount, 0), id::bigint + 1, 'a,b;c{}()\n\t=', 1, st.f, st.g.h FROM t",
    "SELECT mean(amount), std(id), count(DISTINCT k), sum(DISTINCT amount) FROM t",
)
# names a query further out refers to
INNER = (
    "SELECT `sum(amount)` FROM (SELECT k, sum(amount) FROM t GROUP BY k)",
    "SELECT * FROM (SELECT k, sum(amount), count(*) FROM t GROUP BY k) WHERE `count(1)` > 0",
    """WITH c AS (SELECT mean(amount), nvl(k, 'z') FROM t GROUP BY nvl(k, 'z'))
       SELECT `mean(amount)`, `nvl(k, z)` FROM c""",
    "SELECT id, `(amount + 1)` + 1 FROM (SELECT CAST(id AS STRING), t.amount  + 1 FROM t)",
    """WITH c AS (SELECT k, id*2 FROM t), d AS (SELECT *, `(id * 2)`+1 FROM c)
       SELECT c.*, `((id * 2) + 1)` FROM c JOIN d USING (k)""",
    """SELECT v.`upper(k)`, `count(1)`
       FROM v JOIN (SELECT upper(k), count(*) FROM v2 GROUP BY upper(k)) q ON q.`upper(k)` = v.`upper(k)`""",
)


@pytest.fixture
def t(lake: Lake) -> Lake:
    lake.table(
        "t",
        "id INT, k STRING, amount DECIMAL(10,2), st STRUCT<f: INT, g: STRUCT<h: STRING>>",
        "1, 'a', 1.50, named_struct('f', 1, 'g', named_struct('h', 'x'))",
        "2, 'b', 2.50, NULL",
        "2, NULL, NULL, NULL",
    )
    lake.sql("CREATE VIEW v AS SELECT upper(k) AS `upper(k)`, id FROM t", "CREATE VIEW v2 AS SELECT * FROM t")
    return lake


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def assert_named(lake: Lake) -> None:
    """All stream tables show the names Spark shows, and store others."""
    for name, query in lake.queries.items():
        wanted = lake.ms.spark.sql(query).columns
        assert lake.ms.table(name).columns == wanted, name
        assert lake.ms.sql(f"SELECT * FROM {name}").columns == wanted
        assert [n for n, _ in lake.ms.explain(name).columns] == wanted
        assert [r[0] for r in lake.ms.sql(f"SHOW COLUMNS IN {name}").collect()] == wanted
        described = [r["col_name"] for r in lake.ms.sql(f"DESCRIBE STREAM TABLE {name}").collect()]
        assert described[: len(wanted)] == wanted
        stored = lake.ms._catalog.get(TableName.parse(name)).public_stage.path
        assert not any(set(c) & set(" ,;{}()\n\t=") for c in lake.ms.spark.read.format("delta").load(stored).columns)


def test_columns_keep_the_names_spark_gives_them(t: Lake) -> None:
    for number, query in enumerate(UNNAMED):
        t.stream(f"s{number}", query)
    for number in (0, 2):  # and are read by these names
        last = quoted(t.ms.spark.sql(UNNAMED[number]).columns[-1])
        t.stream(f"all{number}", f"SELECT * FROM s{number}")
        t.stream(f"by{number}", f"SELECT {last}, count(*) FROM s{number} WHERE {last} IS NOT NULL GROUP BY {last}")
    t.insert("t", "3, 'a', 5.00, NULL", "4, 'c', 1.00, named_struct('f', 9, 'g', NULL)")
    t.sql("DELETE FROM t WHERE id = 1")
    t.refresh_all(expected=Action.DIFFERENTIAL)
    assert_named(t)
    with open_lake(t.root) as other:  # a process that only reads what is recorded
        assert other.ms.table("s0").columns == t.ms.table("s0").columns
        other.queries = {"by0": t.queries["by0"]}
        other.insert("t", "5, 'c', 1.00, NULL")
        other.refresh("by0", Action.DIFFERENTIAL)


def test_names_of_inner_queries_are_those_spark_gives(t: Lake) -> None:
    for number, query in enumerate(INNER):
        t.stream(f"s{number}", query)
    t.insert("t", "3, 'a', 5.00, NULL")
    t.sql("DELETE FROM t WHERE id = 1")
    t.refresh_all(expected=Action.DIFFERENTIAL)
    assert_named(t)


def test_recomputed_tables_keep_the_names_too(t: Lake) -> None:
    t.stream("full_", UNNAMED[0], "FULL")
    t.insert("t", "3, 'a', 5.00, NULL")
    t.refresh("full_", Action.FULL)
    assert t.ms.table("full_").columns == t.ms.spark.sql(UNNAMED[0]).columns
    t.sql("ALTER STREAM TABLE full_ SET REFRESH MODE DIFFERENTIAL")
    assert t.last("full_").action is Action.REINITIALIZE
    t.assert_exact("full_")
    t.insert("t", "4, 'a', 5.00, NULL")
    t.refresh("full_", Action.DIFFERENTIAL)
    assert t.ms.table("full_").columns == t.ms.spark.sql(UNNAMED[0]).columns


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("SELECT id+1, id + 1 FROM t", (1, 14)),
        ("SELECT id AS Id,\n k AS iD FROM t", (2, 2)),
        ("SELECT count(*), COUNT(1) FROM t", (1, 18)),
        ("SELECT * FROM t JOIN t u ON t.id = u.id", (1, 8)),
        ("SELECT t.*, u.id FROM t JOIN t u USING (id)", (1, 8)),
        ("SELECT * FROM t JOIN t u USING (id)", (1, 8)),
        ("SELECT * FROM (SELECT id, k AS ID FROM t)", (1, 8)),
        ("WITH c(a, A) AS (SELECT id, k FROM t) SELECT * FROM c", (1, 46)),
        ("SELECT id, id FROM t UNION ALL SELECT id, id FROM t", (1, 12)),
    ],
)
def test_two_columns_of_one_name(t: Lake, query: str, place: tuple[int, int]) -> None:
    for mode in ("AUTO", "FULL", "DIFFERENTIAL"):
        with refused(Code.DUPLICATE_COLUMN, "alias") as caught:
            t.ms.create_stream_table("s", query, refresh_mode=mode)
        position = caught.value.position
        assert position is not None
        assert (position.line, position.column) == place
    assert not t.stored


def test_two_columns_of_one_name_that_nobody_sees(t: Lake) -> None:
    t.stream("s", "WITH c AS (SELECT id, k, upper(k) AS ID FROM t) SELECT c.k FROM c JOIN t u ON c.k = u.k")
    t.stream("r", "SELECT DISTINCT t.id FROM t JOIN (SELECT id, k AS x, id AS Id FROM t) q ON q.x = t.k")
    t.insert("t", "3, 'a', 5.00, NULL")
    t.refresh_all(expected=None)


def test_types_no_table_can_store(t: Lake) -> None:
    for query in ("SELECT id, INTERVAL '1' DAY AS i FROM t", "SELECT array(make_interval(id)) AS i FROM t"):
        for mode in ("AUTO", "FULL"):
            with refused(Code.UNSUPPORTED_TYPE, "interval", "cast"):
                t.ms.create_stream_table("s", query, refresh_mode=mode)
    with refused(Code.UNSUPPORTED_TYPE, "void"):
        t.ms.create_stream_table("s", "SELECT array() AS nothing FROM t")
    t.stream("ok", "SELECT named_struct('interval', id, 'void', k) AS st FROM t", "FULL")
    assert len(t.stored) == 1
