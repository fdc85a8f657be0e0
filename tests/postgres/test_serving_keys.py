"""A served table follows the key of its result: a source may lose its primary key, or a query may be altered."""

from __future__ import annotations

from collections import Counter

import pytest
from serving_kit import KEYED, Table, served
from shops import Shop, new_shop

from millstream.errors import Code, MillstreamError
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["server", "old_server"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """A database of PostgreSQL 18, and of 15."""
    server: Server = request.getfixturevalue(request.param)
    return new_shop(server)


def constraints(table: Table) -> list[str]:
    found = table.run(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'public.totals'::regclass "
        "AND contype IN ('p', 'u')"
    )
    return [text for (text,) in found]


def identity(table: Table) -> str:
    [(kind,)] = table.run("SELECT relreplident::text FROM pg_class WHERE oid = 'public.totals'::regclass")
    return str(kind)


def test_a_key_is_lost_and_found(shop: Shop) -> None:
    table = served(shop, KEYED, ["k"], total=True)
    table.serve((1, 10), (2, 20))
    table.run("CREATE INDEX mine ON public.totals (v)", "CREATE PUBLICATION news FOR TABLE public.totals")
    assert (constraints(table), identity(table)) == (["PRIMARY KEY (k)"], "d")

    table.option(key=None, is_key_total=False)
    done = table.serve((1, 10), (1, 10), (None, 30))
    assert (done.mode, done.reason.partition(":")[0]) == ("FULL", "KEY_CHANGED")
    assert (constraints(table), identity(table)) == ([], "f")
    assert table.rows() == Counter([(1, 10), (1, 10), (None, 30)])
    assert table.serve((1, 10), (None, 31)).mode == "DIFFERENTIAL"
    assert table.rows() == Counter([(1, 10), (None, 31)])

    table.option(key=("k",))
    assert table.serve((1, 11), (None, 31)).reason.startswith("KEY_CHANGED")
    assert constraints(table) == ["UNIQUE NULLS NOT DISTINCT (k)"]

    table.option(is_key_total=True)
    table.serve((1, 11), (2, 31))
    assert (constraints(table), identity(table)) == (["PRIMARY KEY (k)"], "d")
    assert table.serve((1, 12)).mode == "DIFFERENTIAL"

    table.option(key=("k", "v"))
    table.serve((1, 12), (1, 13))
    assert constraints(table) == ["PRIMARY KEY (k, v)"]
    assert table.rows() == Counter([(1, 12), (1, 13)])
    assert table.run("SELECT count(*) FROM pg_indexes WHERE indexname = 'mine'") == [(1,)]


def test_one_row_becomes_many(shop: Shop) -> None:
    table = served(shop, KEYED, [])
    table.serve((1, 10))
    table.option(key=("k",), is_key_total=True)
    table.serve((1, 10), (2, 20))
    assert table.rows() == Counter([(1, 10), (2, 20)])
    assert table.run("SELECT count(*) FROM pg_indexes WHERE tablename = 'totals'") == [(1,)]


def test_a_key_changes_though_no_row_does(shop: Shop) -> None:
    table = served(shop, KEYED, ["k"], total=True)
    table.serve((1, 10))
    table.option(is_key_total=False)
    assert table.again().reason.startswith("KEY_CHANGED")
    assert constraints(table) == ["UNIQUE NULLS NOT DISTINCT (k)"]
    assert table.again().mode == "NONE"
    assert table.serve((1, 10), (None, 20)).mode == "DIFFERENTIAL"


def test_an_index_of_a_user_on_the_same_columns_stays(shop: Shop) -> None:
    table = served(shop, KEYED, ["k"])
    table.serve((1, 10))
    table.run("CREATE UNIQUE INDEX mine ON public.totals (k)")
    table.option(key=("k", "v"))
    table.serve((1, 10), (2, 10))
    assert constraints(table) == ["UNIQUE NULLS NOT DISTINCT (k, v)"]
    assert table.run("SELECT count(*) FROM pg_indexes WHERE indexname = 'mine'") == [(1,)]


def test_a_key_others_refer_to_is_not_taken_away(shop: Shop) -> None:
    table = served(shop, KEYED, ["k"], total=True)
    table.serve((1, 10))
    table.run("CREATE TABLE public.notes (k bigint REFERENCES public.totals (k))")
    table.option(key=None, is_key_total=False)
    with pytest.raises(MillstreamError, match="notes") as refused:
        table.serve((1, 10), (1, 10))
    assert refused.value.code is Code.SERVE_FAILED
    assert table.rows() == Counter([(1, 10)])
    table.run("DROP TABLE public.notes")
    table.again()
    assert table.rows() == Counter({(1, 10): 2})


def test_a_table_that_came_back_from_a_dump_follows_too(shop: Shop) -> None:
    """The bookkeeping knows another oid then, and the key by its columns."""
    table = served(shop, KEYED, ["k"], total=True)
    table.serve((1, 10))
    table.as_owner(
        "CREATE TABLE public.copy (LIKE public.totals INCLUDING ALL)",
        "INSERT INTO public.copy SELECT * FROM public.totals",
        "COMMENT ON TABLE public.copy IS 'kept up to date by millstream, which alone may write to it'",
        "DROP TABLE public.totals",
        "ALTER TABLE public.copy RENAME TO totals",
    )
    table.option(key=None, is_key_total=False)
    table.serve((1, 10), (1, 10))
    assert (constraints(table), table.rows()) == ([], Counter({(1, 10): 2}))


def test_row_triggers_do_not_fire_for_another_key(shop: Shop) -> None:
    table = served(shop, KEYED, ["k"], total=True)
    table.serve((1, 10))
    table.run(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$",
        "CREATE TRIGGER refuse AFTER INSERT OR UPDATE ON public.totals FOR EACH ROW EXECUTE FUNCTION public.refuse()",
    )
    table.option(key=("v",))
    table.serve((1, 10), (1, 20))
    assert constraints(table) == ["PRIMARY KEY (v)"]
    assert table.rows() == Counter([(1, 10), (1, 20)])
