"""Bringing a table to the whole result changes only the rows that differ."""

from __future__ import annotations

import threading
from collections import Counter

import psycopg
import pytest

from kits.serving import KEYED, served, shop
from kits.shops import Shop

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("key", [["k"], None])
def test_a_full_refresh_changes_only_what_differs(shop: Shop, key: list[str] | None) -> None:
    t = served(shop, KEYED, key)
    t.serve((1, 10), (1, 10) if key is None else (4, 40), (2, 20), (None, 5))
    before = t.rows("ctid::text, k, v")
    done = t.serve((1, 10), (2, 21), (3, 30), (None, 5), full=True)
    assert t.rows() == Counter([(1, 10), (2, 21), (3, 30), (None, 5)])
    assert done.counts.inserted + done.counts.updated == 2
    kept = t.rows("ctid::text, k, v") & before
    assert {(k, v) for _, k, v in kept} == {(1, 10), (None, 5)}
    t.serve((1, 10), (3, 30))
    assert t.rows() == Counter([(1, 10), (3, 30)])


@pytest.mark.parametrize("key", [["k"], None])
def test_no_reader_ever_sees_an_empty_or_half_table(shop: Shop, key: list[str] | None) -> None:
    """Readers of both isolation levels count rows and sum a column that is the same in every row of a version."""
    t = served(shop, KEYED, key)
    size = 200
    t.serve(*((i, 1) for i in range(size)))
    stop, wrong, seen = threading.Event(), list[object](), set[int]()
    query = "SELECT count(*), min(v), max(v) FROM public.totals"

    def read(level: psycopg.IsolationLevel) -> None:
        with psycopg.connect(shop.server.url(shop.name)) as connection:
            connection.isolation_level = level
            while not stop.is_set():
                first = connection.execute(query).fetchone()
                again = connection.execute(query).fetchone()
                connection.commit()
                assert first is not None
                seen.add(int(first[1] or 0))
                if first[0] != size or first[1] != first[2]:
                    wrong.append(first)
                if level is psycopg.IsolationLevel.REPEATABLE_READ and first != again:
                    wrong.append((first, again))

    levels = (psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ)
    readers = [threading.Thread(target=read, args=[level]) for level in levels]
    for reader in readers:
        reader.start()
    for version in range(2, 8):
        t.serve(*((i, version) for i in range(size)), full=version % 2 == 0)
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert len(seen) > 1


def test_full_waits_for_no_reader(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.run(
        "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER f AFTER UPDATE ON public.totals FOR EACH ROW EXECUTE FUNCTION public.f()",
    )
    with psycopg.connect(shop.server.url(shop.name)) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert reader.execute("SELECT v FROM public.totals").fetchall() == [(10,)]
        t.serve((1, 11), full=True)  # with a trigger to suppress
        assert reader.execute("SELECT v FROM public.totals").fetchall() == [(10,)]
    assert t.rows() == Counter([(1, 11)])
