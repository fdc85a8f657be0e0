"""A stream table over Delta tables, served into PostgreSQL, from declaration to drop."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kits.lake import Lake, open_lake, refused
from kits.shops import Shop, new_shop
from millstream.catalog.models import SourceKind
from millstream.errors import Code
from millstream.notices import NoticeWarning, ServingWarning
from millstream.results import RefreshStatus
from millstream.testing.postgres_server import FAST, Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark]
TOTALS = "SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer"


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, shop: Shop) -> Iterator[Lake]:
    """A lake with a table, and a database that is attached to it."""
    with shop.owner() as owner:
        owner.execute("GRANT CREATE ON SCHEMA public TO millstream")
    with open_lake(tmp_path / "lake") as opened:
        opened.ms.attach("shop", str(shop.address))
        rows = ("1, 'ann', 10.00", "2, 'ann', 5.50", "3, 'bob', 1.00", "4, NULL, 2.00")
        opened.table("orders", "id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2)", *rows)
        yield opened


def query(shop: Shop, text: str) -> list[tuple[Any, ...]]:
    with shop.server.superuser(shop.name) as connection:
        done = connection.execute(text)
        return [tuple(r) for r in done.fetchall()] if done.description else []


def rows(shop: Shop, table: str = "public.totals") -> Counter[Any]:
    return Counter(query(shop, f"SELECT * FROM {table}"))


def test_from_declaration_to_drop(lake: Lake, shop: Shop) -> None:
    lake.sql(f"CREATE STREAM TABLE totals REFRESH MODE DIFFERENTIAL SERVE TO shop.public.totals AS {TOTALS}")
    first = [("ann", Decimal("15.50"), 2), ("bob", Decimal("1.00"), 1), (None, Decimal("2.00"), 1)]
    assert rows(shop) == Counter(first)
    types = query(
        shop,
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'public.totals'::regclass AND attnum > 0",
    )
    assert types == [("customer", "text"), ("total", "numeric(20,2)"), ("n", "bigint")]
    assert dict(lake.ms.sql("DESCRIBE STREAM TABLE totals").collect())["# Served as"] == "shop.public.totals"

    query(
        shop,
        "CREATE TABLE public.audit (op text, old numeric, new numeric); GRANT ALL ON public.audit TO millstream; "
        "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO audit VALUES (TG_OP, OLD.total, NEW.total); RETURN NULL; END $$; "
        "CREATE TRIGGER f AFTER INSERT OR UPDATE OR DELETE ON public.totals FOR EACH ROW EXECUTE FUNCTION public.f()",
    )
    lake.sql("DELETE FROM orders WHERE id IN (2, 3)", "INSERT INTO orders VALUES (5, 'eve', 7.00), (6, NULL, 1.00)")
    with pytest.warns(ServingWarning, match="trigger f"):
        lake.ms.refresh_stream_table("totals")
    second = [("ann", Decimal("10.00"), 1), ("eve", Decimal("7.00"), 1), (None, Decimal("3.00"), 2)]
    assert rows(shop) == Counter(second)
    assert Counter(query(shop, "SELECT op, count(*) FROM public.audit GROUP BY op")) == Counter(
        [("DELETE", 1), ("UPDATE", 2), ("INSERT", 1)]
    )
    moved = query(shop, "SELECT data_timestamp FROM millstream.serving")
    assert lake.ms.refresh_stream_table("totals").action == "NO_DATA"
    assert query(shop, "SELECT data_timestamp FROM millstream.serving") > moved

    lake.ms.refresh_stream_table("totals", mode="FULL")
    assert query(shop, "SELECT mode FROM millstream.served_tables") == [("FULL",)]
    assert query(shop, "SELECT count(*) FROM public.audit") == [(4,)]
    assert rows(shop) == Counter(second)

    query(shop, "CREATE VIEW public.mine AS SELECT * FROM public.totals")
    with refused(Code.DEPENDENTS_EXIST, "mine"):
        lake.sql("DROP STREAM TABLE totals")
    assert lake.rows("totals") == Counter(second)
    lake.sql("DROP STREAM TABLE totals CASCADE")
    assert query(shop, "SELECT to_regclass('public.totals'), to_regnamespace('millstream')") == [(None, None)]


def test_its_name_in_a_query_is_the_stream_table_itself(lake: Lake, shop: Shop) -> None:
    lake.ms.create_stream_table("totals", TOTALS, serve_to="shop.public.totals", dialect="spark")
    lake.ms.create_stream_table("big", "SELECT customer, n FROM shop.public.totals WHERE total > 3", dialect="spark")
    assert [d.name for d in lake.ms._catalog.list()[0].definition.dependencies] == ["totals"]
    assert lake.ms._catalog.captures() == ()
    lake.sql("INSERT INTO orders VALUES (5, 'eve', 7.00)")
    lake.ms.refresh_stream_table("big")  # brings the other up to date, and serves it
    assert lake.rows("big") == Counter([("ann", 2), ("eve", 1)])
    assert rows(shop) == lake.rows("totals")
    with refused(Code.CYCLE):
        lake.ms.alter_stream_table(
            "totals",
            query="SELECT customer, MAX(total) AS total, COUNT(*) AS n FROM shop.public.totals GROUP BY customer",
        )
    with refused(Code.DEPENDENTS_EXIST, "served as shop.public.totals"):
        lake.sql("DETACH shop")
    lake.sql("DETACH shop CASCADE")
    assert lake.ms.status() == []
    assert query(shop, "SELECT to_regclass('public.totals'), to_regnamespace('millstream')") == [(None, None)]


def test_a_view_of_the_database_over_it_reads_the_stream_table(lake: Lake, shop: Shop) -> None:
    """Nothing of the database is captured, also through a view on the view, and a cycle is found."""
    lake.ms.create_stream_table("totals", TOTALS, serve_to="shop.public.totals")
    query(
        shop,
        "CREATE VIEW public.large AS SELECT customer, total, n FROM public.totals WHERE total > 3; "
        "CREATE VIEW public.named AS SELECT upper(customer) AS who, total FROM public.large; "
        "GRANT SELECT ON public.large, public.named TO millstream",
    )
    lake.ms.create_stream_table("best", "SELECT who, total FROM shop.public.named", refresh_mode="DIFFERENTIAL")
    best = next(t for t in lake.ms._catalog.list() if str(t.name) == "best")
    assert [d.name for d in best.definition.dependencies if d.kind is not SourceKind.VIEW] == ["totals"]
    assert lake.ms._catalog.captures() == ()
    assert query(shop, "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == [(0,)]
    assert lake.rows("best") == rows(shop, "public.named") == Counter([("ANN", Decimal("15.50"))])
    lake.sql("INSERT INTO orders VALUES (5, 'eve', 7.00)", "DELETE FROM orders WHERE id = 1")
    assert lake.ms.refresh_stream_table("best").action == "DIFFERENTIAL"  # brings the other up to date, and serves it
    assert lake.rows("best") == rows(shop, "public.named")
    assert lake.rows("best") == Counter([("ANN", Decimal("5.50")), ("EVE", Decimal("7.00"))])
    assert lake.ms.verify("best").ok
    looped = "SELECT customer, MAX(total) AS total, COUNT(*) AS n FROM shop.public.large GROUP BY customer"
    with refused(Code.CYCLE):
        lake.ms.alter_stream_table("totals", query=looped)
    assert rows(shop) == lake.rows("totals")


def test_a_failure_to_serve_is_loud_and_made_good(lake: Lake, shop: Shop) -> None:
    lake.ms.create_stream_table("totals", TOTALS, serve_to="shop.public.totals")
    lake.ms.create_stream_table("big", "SELECT * FROM totals WHERE total > 3")
    query(shop, "ALTER TABLE public.totals RENAME TO hidden")
    lake.sql("INSERT INTO orders VALUES (5, 'eve', 7.00)")
    with refused(Code.SERVE_FAILED, "hidden"):
        lake.ms.refresh_stream_table("totals")
    lake.sql("INSERT INTO orders VALUES (6, 'eve', 0.00)")
    lake.ms.refresh_stream_table("big")  # what reads it does not fail with it
    assert lake.rows("big")[("eve", Decimal("7.00"), 2)] == 1
    assert (lake.last("totals").status, "hidden" in str(lake.last("totals").error_message)) == (
        RefreshStatus.FAILED,
        True,
    )
    query(shop, "ALTER TABLE public.hidden RENAME TO totals")
    assert lake.ms.refresh_stream_table("totals").action == "NO_DATA"
    assert rows(shop) == lake.rows("totals")
    assert lake.ms.status()[0].consecutive_errors == 0


def test_a_stream_table_that_exists_is_served_and_no_more(lake: Lake, shop: Shop) -> None:
    lake.ms.create_stream_table("wide", "SELECT id, customer, amount, array(1, id) AS a FROM orders WHERE amount > 1")
    lake.sql('ALTER STREAM TABLE wide SERVE TO shop.public."Wide"')
    assert query(shop, 'SELECT count(*) FROM public."Wide"') == [(3,)]
    lake.sql("INSERT INTO orders VALUES (9, 'eve', 9.00), (9, 'eve', 9.00)", "DELETE FROM orders WHERE id = 1")
    lake.ms.refresh_stream_table("wide")
    assert Counter(query(shop, 'SELECT id, a::text FROM public."Wide"')) == Counter(
        {(2, "{1,2}"): 1, (4, "{1,4}"): 1, (9, "{1,9}"): 2}
    )
    with refused(Code.SERVE_FAILED, "STOP SERVING"):
        lake.sql("ALTER STREAM TABLE wide SERVE TO shop.public.other")
    with refused(Code.INCOMPATIBLE_CHANGE, "STOP SERVING"):
        lake.sql("ALTER STREAM TABLE wide AS SELECT id FROM orders")
    lake.sql("ALTER STREAM TABLE wide AS SELECT id, customer, amount, array(1, id) AS a FROM orders WHERE amount > 6")
    lake.ms.refresh_stream_table("wide")
    assert query(shop, 'SELECT id FROM public."Wide"') == [(9,), (9,)]
    lake.sql("ALTER STREAM TABLE wide STOP SERVING KEEP TABLE")
    assert query(shop, 'SELECT count(*) FROM public."Wide"') == [(2,)]
    with refused(Code.NAME_TAKEN):
        lake.sql('ALTER STREAM TABLE wide SERVE TO shop.public."Wide"')
    lake.sql("ALTER STREAM TABLE wide SERVE TO shop.wide", "ALTER STREAM TABLE wide STOP SERVING")
    assert query(shop, "SELECT to_regclass('public.wide')") == [(None,)]


def test_replaced_under_another_name_the_old_table_goes(lake: Lake, shop: Shop) -> None:
    lake.sql(f"CREATE STREAM TABLE totals SERVE TO shop.public.totals WITH (grants = 'stranger') AS {TOTALS}")
    granted = "SELECT has_table_privilege('stranger', 'public.{}', 'SELECT')"
    assert query(shop, granted.format("totals")) == [(True,)]
    with refused(Code.UNKNOWN_TABLE):
        lake.sql("CREATE OR REPLACE STREAM TABLE totals SERVE TO shop.public.ids AS SELECT id FROM nowhere")
    assert rows(shop).total() == 3
    lake.sql("CREATE OR REPLACE STREAM TABLE totals SERVE TO shop.public.ids AS SELECT id FROM orders")
    assert rows(shop, "public.ids") == Counter([(1,), (2,), (3,), (4,)])
    assert query(shop, "SELECT to_regclass('public.totals')") == [(None,)]
    lake.sql(
        "CREATE OR REPLACE STREAM TABLE totals SERVE TO shop.ids WITH (grants = 'stranger', user_triggers = off) "
        "AS SELECT id FROM orders WHERE id > 2"
    )
    assert rows(shop, "public.ids") == Counter([(3,), (4,)])
    assert query(shop, granted.format("ids")) == [(True,)]


def test_where_a_replacement_cannot_be_served_everything_stays(lake: Lake, shop: Shop) -> None:
    lake.sql(f"CREATE STREAM TABLE totals SERVE TO shop.public.totals AS {TOTALS}")
    with shop.owner() as owner:
        owner.execute("CREATE TABLE taken (id int)")
    replacing = "CREATE OR REPLACE STREAM TABLE totals SERVE TO {} AS SELECT {} FROM orders"
    for to, column, code in (
        ("shop.public.taken", "id", Code.NAME_TAKEN),
        ("shop.none.ids", "id", Code.UNKNOWN_TABLE),
        ("shop.ids WITH (owner = 'nobody_at_all')", "id", Code.SERVE_FAILED),
        ("shop.ids", "id AS ctid", Code.NAME_INVALID),
    ):
        with refused(code):
            lake.sql(replacing.format(to, column))
    query(shop, "CREATE VIEW public.theirs AS SELECT * FROM public.totals")
    with refused(Code.DEPENDENTS_EXIST):
        lake.sql(replacing.format("shop.public.ids", "id"))
    lake.sql("INSERT INTO orders VALUES (8, 'ann', 1.00)")
    lake.ms.refresh_stream_table("totals")
    assert rows(shop) == Counter(tuple(r) for r in lake.ms.sql(TOTALS).collect())
    assert query(shop, "SELECT to_regclass('public.ids')") == [(None,)]


def test_what_cannot_be_served_leaves_nothing_behind(lake: Lake, shop: Shop) -> None:
    for to, code in (
        ("nowhere.public.t", Code.NOT_ATTACHED),
        ("shop.none.t", Code.UNKNOWN_TABLE),
        ("t", Code.NAME_INVALID),
    ):
        with refused(code):
            lake.ms.create_stream_table("totals", TOTALS, serve_to=to)
    with refused(Code.SERVE_FAILED, "NUL", "customer"):
        lake.ms.create_stream_table(
            "totals", "SELECT id, concat(customer, char(0)) AS customer FROM orders", serve_to="shop.public.totals"
        )
    assert lake.ms.status() == []
    assert query(shop, "SELECT to_regclass('public.totals')") == [(None,)]
    assert lake.ms._catalog.servings() == ()
    with pytest.warns(NoticeWarning, match="old name"):
        lake.ms.create_stream_table(
            "totals", TOTALS, initialize=False, serve_to="shop.public.totals", user_triggers="on", grants=["stranger"]
        )
    assert rows(shop).total() == 0
    lake.ms.refresh_stream_table("totals")
    assert rows(shop) == lake.rows("totals")


def test_a_key_that_is_never_null_is_a_primary_key(lake: Lake, shop: Shop) -> None:
    key = "SELECT contype FROM pg_constraint WHERE conrelid = 'public.{}'::regclass AND contype IN ('p', 'u')"
    lake.ms.create_stream_table(
        "ids", "SELECT id, MAX(amount) AS m FROM orders GROUP BY id", serve_to="shop.public.ids"
    )
    lake.ms.create_stream_table("over", "SELECT id AS k FROM ids WHERE m > 1", serve_to="shop.public.over")
    lake.ms.create_stream_table("one", "SELECT COUNT(*) AS n FROM orders", serve_to="shop.public.one")
    lake.ms.create_stream_table("full", TOTALS, refresh_mode="FULL", serve_to="shop.public.full")
    assert query(shop, key.format("ids")) == [("p",)]
    assert query(shop, key.format("over")) == [("p",)]
    assert query(shop, key.format("one")) == []
    lake.sql("DELETE FROM orders WHERE id = 1")
    for name in ("over", "one", "full"):
        lake.ms.refresh_stream_table(name)
        assert rows(shop, f"public.{name}") == lake.rows(name)


def test_groups_of_a_captured_column_that_is_never_null_have_a_primary_key(lake: Lake, shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE items (id bigint PRIMARY KEY, kind text NOT NULL, maybe text)")
        owner.execute("INSERT INTO items VALUES (1, 'a', NULL), (2, 'a', 'x')")
        owner.execute("GRANT SELECT, TRIGGER ON items TO millstream")
    for column, kind in (("kind", "p"), ("maybe", "u")):
        text = f"SELECT {column}, COUNT(*) AS n FROM shop.public.items GROUP BY {column}"
        lake.ms.create_stream_table(f"by_{column}", text, serve_to=f"shop.public.by_{column}")
        made = f"SELECT contype::text FROM pg_constraint WHERE conrelid = 'public.by_{column}'::regclass"
        assert [t for (t,) in query(shop, made) if t in "pu"] == [kind]


def test_the_key_follows_the_source_and_the_query(lake: Lake, shop: Shop) -> None:
    key = (
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'public.copy'::regclass AND contype = 'p'"
    )
    with shop.owner() as owner:
        owner.execute("CREATE TABLE items (id bigint PRIMARY KEY, v bigint NOT NULL)")
        owner.execute("INSERT INTO items VALUES (1, 10), (2, 20)")
        owner.execute("GRANT SELECT, TRIGGER ON items TO millstream")
    lake.ms.create_stream_table("copy", "SELECT id, v FROM shop.public.items", serve_to="shop.public.copy")
    assert query(shop, key) == [("PRIMARY KEY (id)",)]
    query(shop, "ALTER TABLE public.items DROP CONSTRAINT items_pkey; INSERT INTO public.items VALUES (1, 10)")
    lake.ms.refresh_stream_table("copy")
    assert rows(shop, "public.copy") == Counter({(1, 10): 2, (2, 20): 1})
    assert query(shop, key) == []
    lake.ms.alter_stream_table("copy", query="SELECT id, SUM(v)::bigint AS v FROM shop.public.items GROUP BY id")
    lake.ms.refresh_stream_table("copy")
    assert rows(shop, "public.copy") == Counter([(1, 20), (2, 20)])
    unique = (
        "SELECT contype::text FROM pg_constraint WHERE conrelid = 'public.copy'::regclass AND contype IN ('p', 'u')"
    )
    assert len(query(shop, unique)) == 1


def test_a_source_column_that_is_widened_widens_the_served_one(lake: Lake, shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE items (id int PRIMARY KEY, v int, name varchar(10))")
        owner.execute("INSERT INTO items VALUES (1, 10, 'a'), (2, 20, 'b')")
        owner.execute("GRANT SELECT, TRIGGER ON items TO millstream")
    lake.ms.create_stream_table("copy", "SELECT id, v, name FROM shop.public.items", serve_to="shop.public.copy")
    lake.ms.create_stream_table(
        "sums", "SELECT name, SUM(v) AS v FROM shop.public.items GROUP BY name", serve_to="shop.public.sums"
    )
    query(shop, "CREATE INDEX mine ON public.copy (v); GRANT SELECT ON public.copy TO stranger")
    with shop.owner() as owner:
        owner.execute("ALTER TABLE items ALTER id TYPE bigint, ALTER v TYPE bigint, ALTER name TYPE text")
        owner.execute(f"INSERT INTO items VALUES ({2**40}, {2**41}, 'a longer name than ten')")
    for mode in ("REINITIALIZE", "DIFFERENTIAL"):
        done = [lake.ms.refresh_stream_table(name).action for name in ("copy", "sums")]
        assert done == [mode, mode]
        assert rows(shop, "public.copy") == rows(shop, "public.items")
        assert rows(shop, "public.sums") == Counter(query(shop, "SELECT name, sum(v) FROM public.items GROUP BY name"))
        query(shop, "DELETE FROM public.items WHERE id = 1")
    types = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{}'::regclass AND attnum > 0"
    assert query(shop, types.format("public.copy")) == [("bigint",), ("bigint",), ("text",)]
    assert query(shop, "SELECT count(*) FROM pg_indexes WHERE indexname = 'mine'") == [(1,)]


def test_large_results_go_through_files(lake: Lake, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.serving.table_server._MAX_COLLECTED_ROWS", 0)
    lake.ms.create_stream_table(
        "wide",
        "SELECT id, amount, TIMESTAMP'2999-01-01 01:02:03.123456' + make_dt_interval(id) AS t, "
        "TIMESTAMP_NTZ'1900-01-01 00:00:00.000001' AS n, named_struct('a', amount) AS s FROM orders",
        serve_to="shop.public.wide",
    )
    assert query(shop, "SELECT id, t AT TIME ZONE 'UTC', n::text, s FROM public.wide WHERE id = 1")[0][2:] == (
        "1900-01-01 00:00:00.000001",
        {"a": 10.0},
    )
    assert query(shop, "SELECT (t AT TIME ZONE 'UTC')::text FROM public.wide WHERE id = 1") == [
        ("2999-01-02 01:02:03.123456",)
    ]
    lake.sql("INSERT INTO orders VALUES (5, 'eve', 7.00)")
    lake.ms.refresh_stream_table("wide")
    assert query(shop, "SELECT mode FROM millstream.served_tables") == [("DIFFERENTIAL",)]
    assert query(shop, "SELECT count(*) FROM public.wide") == [(5,)]
    assert not list((lake.root / "serving").glob("*"))


def test_a_database_that_is_no_more_can_be_let_go(lake: Lake, shop: Shop) -> None:
    lake.ms.create_stream_table("totals", TOTALS, serve_to="shop.public.totals", dialect="spark")
    with shop.server.superuser() as connection:
        connection.execute(f'DROP DATABASE "{shop.name}" WITH (FORCE)')
    lake.sql("INSERT INTO orders VALUES (5, 'eve', 7.00)")
    with refused(Code.DATABASE_UNREACHABLE):
        lake.ms.refresh_stream_table("totals")
    assert lake.rows("totals")[("eve", Decimal("7.00"), 1)] == 1
    for statement in ("DROP STREAM TABLE totals", "ALTER STREAM TABLE totals STOP SERVING"):
        with refused(Code.DATABASE_UNREACHABLE):
            lake.sql(statement)
    with pytest.warns(ServingWarning, match="were not removed"):
        lake.sql("ALTER STREAM TABLE totals STOP SERVING KEEP TABLE")
    lake.sql("DROP STREAM TABLE totals")
    assert lake.ms.status() == []


def test_a_dead_database_is_forgotten_with_all_that_needs_it(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing may wait for it or fail because of it; what others need stays."""
    with Server(FAST) as server, open_lake(tmp_path / "lake") as lake:
        dying = new_shop(server)
        with dying.owner() as owner:
            owner.execute("GRANT CREATE ON SCHEMA public TO millstream")
            owner.execute("CREATE TABLE items (id bigint PRIMARY KEY, v bigint)")
            owner.execute("INSERT INTO items VALUES (1, 10)")
        lake.ms.attach("shop", str(dying.address))
        lake.table("orders", "id BIGINT, amount BIGINT", "1, 10")
        lake.ms.create_stream_table("copy", "SELECT id, v FROM shop.public.items", serve_to="shop.public.copy")
        lake.ms.create_stream_table("over", "SELECT id FROM copy")
        lake.ms.create_stream_table("own", "SELECT id FROM orders", serve_to="shop.public.own")
        lake.ms.create_stream_table("other", "SELECT id FROM orders")
        server.stop("immediate")
        with refused(Code.DATABASE_UNREACHABLE):
            lake.ms.detach("shop", cascade=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lake.ms.detach("shop", cascade=True, forget=True)
        assert [str(s.name) for s in lake.ms.status()] == ["other"]
        assert (lake.ms._catalog.databases(), lake.ms._catalog.captures(), lake.ms._catalog.servings()) == ((), (), ())
        assert not list((lake.root / "mirrors").glob("*"))
