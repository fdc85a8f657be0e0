"""Deltas and whole results applied to a real table, by a role that is no superuser."""

from __future__ import annotations

from collections import Counter

import pytest

from kits.serving import BAG, KEYED, LEDGER, connected, served, shop
from kits.shops import Shop
from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.serve import PostgresSink

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


def test_what_was_missed_is_served_later_and_nothing_twice(shop: Shop) -> None:
    t = served(shop, BAG, None)
    t.serve(("a", 1))
    t.put(("a", 1), ("a", 1))
    t.put(("a", 1), ("a", 1), ("b", 2))
    assert t.again().mode == "DIFFERENTIAL"
    assert t.again().mode == "NONE"
    assert t.rows() == Counter([("a", 1), ("a", 1), ("b", 2)])


def test_what_users_made_on_the_table_is_kept(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"], total=True)
    t.serve((1, 10), (2, 20))
    t.run(
        "CREATE INDEX mine ON public.totals (v)",
        "CREATE VIEW public.big AS SELECT * FROM public.totals WHERE v > 10",
        "GRANT SELECT ON public.totals TO stranger",
        "CREATE PUBLICATION all_of_it FOR TABLE public.totals",
        "ALTER TABLE public.totals ADD COLUMN note text DEFAULT 'mine'",
        "UPDATE public.totals SET note = 'kept' WHERE k = 1",
        "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER f AFTER UPDATE ON public.totals FOR EACH ROW EXECUTE FUNCTION public.f()",
    )
    t.serve((1, 11), (3, 30), full=True)
    t.serve((1, 12), (3, 31))
    assert t.rows() == Counter([(1, 12, "kept"), (3, 31, "mine")])
    assert t.run("SELECT k FROM public.big ORDER BY k") == [(1,), (3,)]
    assert t.run("SELECT 1 FROM pg_indexes WHERE indexname = 'mine'") == [(1,)]
    assert t.run("SELECT tablename FROM pg_publication_tables") == [("totals",)]
    assert t.run("SELECT tgenabled FROM pg_trigger WHERE tgname = 'f'") == [("O",)]
    assert t.run("SELECT has_table_privilege('stranger', 'public.totals', 'SELECT')") == [(True,)]


@pytest.mark.parametrize("is_there_before", [True, False])
@pytest.mark.parametrize(("key", "is_total"), [(["k"], True), (["k"], False), ([], True), (None, False)])
def test_a_publication_of_all_tables_forbids_nothing(
    shop: Shop, key: list[str] | None, is_total: bool, is_there_before: bool
) -> None:
    t = served(shop, KEYED, key, total=is_total)
    publish = "CREATE PUBLICATION everything FOR ALL TABLES"
    if is_there_before:
        t.run(publish)
    t.serve((1, 10))
    if not is_there_before:
        t.run(publish)
    t.serve((1, 11))
    t.serve((1, 12), full=True)
    assert t.rows() == Counter([(1, 12)])
    t.serve(full=True)
    assert t.rows() == Counter()


def test_a_name_that_is_taken_is_refused(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.run("CREATE VIEW public.totals AS SELECT 1 AS k, 2 AS v")
    for call in (t.declare, t.again):
        with pytest.raises(MillstreamError) as caught:
            call()
        assert caught.value.code is Code.NAME_TAKEN


def test_a_dropped_table_is_made_again_and_a_renamed_one_is_not(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.run("DROP TABLE public.totals")
    assert t.again().mode == "FULL"  # also if nothing has changed
    assert t.rows() == Counter([(1, 10)])
    t.run("DROP TABLE public.totals")
    t.serve((1, 11))
    assert t.rows() == Counter([(1, 11)])
    t.run("ALTER TABLE public.totals RENAME TO mine")
    with pytest.raises(MillstreamError) as caught:
        t.serve((1, 12))
    assert caught.value.code is Code.SERVE_FAILED
    assert "mine" in caught.value.message


@pytest.mark.parametrize("change", ["DROP COLUMN v", "ALTER COLUMN v TYPE text"])
def test_altered_columns_are_refused(shop: Shop, change: str) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.run(f"ALTER TABLE public.totals {change}")
    with pytest.raises(MillstreamError) as caught:
        t.serve((1, 11))
    assert caught.value.code is Code.SERVE_FAILED
    assert "column v" in caught.value.message


@pytest.mark.parametrize(
    "meddling",
    [
        "UPDATE public.totals SET v = 7 WHERE k = 1",
        "DELETE FROM public.totals WHERE k = 1",
        "INSERT INTO public.totals VALUES (3, 3)",
        "VACUUM FULL public.totals",
        "TRUNCATE public.totals",
    ],
)
@pytest.mark.parametrize("key", [["k"], None])
def test_what_others_did_to_the_rows_is_made_good(shop: Shop, key: list[str] | None, meddling: str) -> None:
    """At the latest by the next full refresh; rows of a bag that were to be changed are missed at once."""
    t = served(shop, KEYED, key)
    t.serve((0, 0), (1, 10), (2, 20))
    t.run("DELETE FROM public.totals WHERE k = 0", "INSERT INTO public.totals VALUES (0, 0)")  # places move
    t.serve((1, 10), (2, 20))
    t.run(meddling)
    done = t.serve((1, 11), (3, 30))
    if "INSERT" not in meddling:
        assert t.rows() == Counter([(1, 11), (3, 30)])
    if "VACUUM" in meddling and key is None:
        assert (done.mode, done.reason.split(":")[0]) == ("FULL", "SERVED_MOVED")
    t.serve((1, 12), (3, 30), full=True)
    assert t.rows() == Counter([(1, 12), (3, 30)])


def test_dropping_asks_about_views_of_users(shop: Shop) -> None:
    t = served(shop, BAG, None)
    t.serve(("a", 1))
    t.run("CREATE VIEW public.mine AS SELECT * FROM public.totals")
    with connected(shop) as connection:
        sink = PostgresSink(connection, LEDGER)
        with pytest.raises(MillstreamError) as caught:
            sink.drop(t.target, cascade=False)
        assert caught.value.code is Code.DEPENDENTS_EXIST
        assert "mine" in caught.value.message
        assert t.rows() == Counter([("a", 1)])
        sink.drop(t.target, cascade=True)
    assert t.run("SELECT to_regclass('public.totals')") == [(None,)]
    assert t.run("SELECT count(*) FROM pg_namespace WHERE nspname = 'millstream'") == [(0,)]


def test_a_key_that_is_none_any_more_fails_loudly(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10), (2, 20))
    with pytest.raises(MillstreamError) as caught:
        t.serve((1, 10), (1, 30), (2, 20))
    assert caught.value.code is Code.SERVE_FAILED
    assert t.rows() == Counter([(1, 10), (2, 20)])
    assert t.serve((1, 30), (2, 20)).mode == "DIFFERENTIAL"
    assert t.rows() == Counter([(1, 30), (2, 20)])
