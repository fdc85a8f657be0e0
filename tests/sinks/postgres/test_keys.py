"""A served table follows the key of its result: a source may lose its primary key, or a query may be altered."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from kits.serving import KEYED, Table, served, shop
from kits.shops import Shop
from millstream.errors import Code, MillstreamError

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


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


def test_a_key_may_be_null_from_now_on(shop: Shop) -> None:
    table = served(shop, KEYED, ["k", "v"], total=True)
    table.serve((1, 10), (1, 11))
    table.option(key=("k",))  # v is no part of it any more, and may be NULL
    table.serve((1, None), (2, None))
    assert (constraints(table), table.rows()) == (["PRIMARY KEY (k)"], Counter([(1, None), (2, None)]))
    table.option(is_key_total=False)
    table.serve((1, None), (None, None))
    assert constraints(table) == ["UNIQUE NULLS NOT DISTINCT (k)"]
    assert table.rows() == Counter([(1, None), (None, None)])


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


CHANGES = [
    pytest.param({"key": ("k", "v")}, ["PRIMARY KEY (k, v)"], id="which new rows may break"),
    pytest.param({"key": None, "is_key_total": False}, [], id="which is lost"),
    pytest.param({"key": ("k",), "is_key_total": True}, ["PRIMARY KEY (k)"], id="which holds on"),
]


def changing(shop: Shop, change: dict[str, object]) -> Table:
    """A table whose key is to change."""
    is_kept = change["key"] == ("k",)
    table = served(shop, KEYED, ["k"], total=not is_kept)
    table.serve((1, 10), (2, 20))
    table.option(**change)
    table.put((1, 11), (3, 30))
    return table


@contextmanager
def being_served(table: Table) -> Iterator[None]:
    """Serve it beside what the block does, which must end it."""
    failures: list[Exception] = []

    def serve() -> None:
        try:
            table.again()
        except MillstreamError as e:
            failures.append(e)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()
    assert failures == []


def read(table: Table, patience: str = "1s") -> None:
    """Read it, waiting for no lock for long."""
    table.run(f"SET lock_timeout = '{patience}'", "SELECT * FROM public.totals")


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_who_reads_for_long_keeps_no_other_reader_waiting(
    shop: Shop, change: dict[str, object], expected: list[str]
) -> None:
    table = changing(shop, change)
    with psycopg.connect(shop.server.url(shop.name)) as report:
        report.execute("SELECT * FROM public.totals")
        with being_served(table):
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                read(table)
            assert table.rows() == Counter([(1, 10), (2, 20)])
            report.rollback()
    assert (table.rows(), constraints(table)) == (Counter([(1, 11), (3, 30)]), expected)


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_readers_go_on_while_rows_are_moved(shop: Shop, change: dict[str, object], expected: list[str]) -> None:
    table = changing(shop, change)
    table.run(
        "CREATE FUNCTION public.rest() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$",
        "CREATE TRIGGER rest AFTER DELETE ON public.totals EXECUTE FUNCTION public.rest()",
    )
    sleeping = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = '{shop.name}'"
    with being_served(table):
        until = time.monotonic() + 20
        while table.run(sleeping) == [(0,)] and time.monotonic() < until:
            time.sleep(0.05)
        read(table, "100ms")
        assert table.run(sleeping) == [(1,)]
    assert (table.rows(), constraints(table)) == (Counter([(1, 11), (3, 30)]), expected)


def test_a_lock_that_is_not_to_be_had_is_told_and_nothing_has_changed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.sinks.postgres.locks._PATIENCE_SECONDS", 1.0)
    table = changing(shop, {"key": None, "is_key_total": False})
    with psycopg.connect(shop.server.url(shop.name)) as report:
        report.execute("SELECT * FROM public.totals")
        with pytest.raises(MillstreamError, match="another session holds a lock") as refused:
            table.again()
    assert refused.value.code is Code.SERVE_FAILED
    assert (table.rows(), constraints(table)) == (Counter([(1, 10), (2, 20)]), ["PRIMARY KEY (k)"])
    assert table.again().reason.startswith("KEY_CHANGED")


@pytest.mark.parametrize("then", [("v",), None, ("k",), ("k", "v")])
def test_a_crash_after_the_old_key_has_gone(shop: Shop, then: tuple[str, ...] | None) -> None:
    """What the result's key has become meanwhile does not matter."""
    table = served(shop, KEYED, ["k"], total=True)
    table.serve((1, 10), (2, 20))
    table.option(key=("v",))
    table.put((1, 10), (1, 21))
    good = table.feed.contents
    table.feed.contents = lambda: (_ for _ in ()).throw(OSError("gone"))  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        table.again()
    assert (table.rows(), constraints(table), identity(table)) == (Counter([(1, 10), (2, 20)]), [], "f")
    table.feed.contents = good  # type: ignore[method-assign]
    table.option(key=then, is_key_total=False)
    rows = [(1, 10), (3, 10)] if then == ("k",) else [(1, 10), (1, None)]
    assert table.serve(*rows).reason.startswith("KEY_CHANGED")
    assert table.rows() == Counter(rows)
    assert constraints(table) == ([f"UNIQUE NULLS NOT DISTINCT ({', '.join(then)})"] if then else [])
    assert table.serve((1, 10)).mode == "DIFFERENTIAL"
