"""Deltas and whole results applied to a real table, by a role that is no superuser."""

from __future__ import annotations

import json
import threading
from collections import Counter

import psycopg
import pytest
from serving_kit import BAG, KEYED, LEDGER, connected, served, shop
from shops import Shop

from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.serve import PostgresSink

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("total", [True, False])
def test_a_keyed_result_is_kept_by_deltas(shop: Shop, total: bool) -> None:
    t = served(shop, KEYED, ["k"], total=total)
    assert t.serve((1, 10), (2, 20)).reason == "INITIAL"
    assert t.rows() == Counter([(1, 10), (2, 20)])
    done = t.serve((1, 11), (3, 30))
    assert (done.mode, done.counts.inserted, done.counts.updated, done.counts.deleted) == ("DIFFERENTIAL", 1, 1, 1)
    assert t.rows() == Counter([(1, 11), (3, 30)])
    kind = t.run(
        "SELECT contype FROM pg_constraint WHERE conrelid = 'public.totals'::regclass AND contype IN ('p', 'u')"
    )
    assert kind == [("p" if total else "u",)]


def test_a_null_group_is_one_group(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((None, 1), (1, 1))
    assert t.serve((None, 2), (1, 1)).mode == "DIFFERENTIAL"
    assert t.rows() == Counter([(None, 2), (1, 1)])
    with pytest.raises(psycopg.errors.UniqueViolation):
        t.as_owner("INSERT INTO public.totals VALUES (NULL, 9)")
    t.serve((1, 1))
    assert t.rows() == Counter([(1, 1)])


def test_duplicates_of_a_bag_are_counted(shop: Shop) -> None:
    t = served(shop, BAG, None)
    t.serve(("a", 1), ("a", 1), ("a", 1), (None, None))
    assert t.serve(("a", 1), ("b", 2), (None, None), (None, None)).mode == "DIFFERENTIAL"
    assert t.rows() == Counter([("a", 1), ("b", 2), (None, None), (None, None)])
    columns = t.run("SELECT attname FROM pg_attribute WHERE attrelid = 'public.totals'::regclass AND attnum > 0")
    assert columns == [("a",), ("b",)]


def test_a_result_of_one_row_is_updated(shop: Shop) -> None:
    t = served(shop, KEYED, [])
    t.serve((1, 10))
    done = t.serve((2, 20))
    assert (done.mode, done.counts.updated) == ("DIFFERENTIAL", 1)
    assert t.rows() == Counter([(2, 20)])


def test_all_columns_may_be_the_key(shop: Shop) -> None:
    t = served(shop, BAG, ["a", "b"])
    t.serve(("a", 1), ("b", None))
    t.serve(("b", None), ("c", 3))
    assert t.rows() == Counter([("b", None), ("c", 3)])


def test_what_was_missed_is_served_later_and_nothing_twice(shop: Shop) -> None:
    t = served(shop, BAG, None)
    t.serve(("a", 1))
    t.put(("a", 1), ("a", 1))
    t.put(("a", 1), ("a", 1), ("b", 2))
    assert t.again().mode == "DIFFERENTIAL"
    assert t.again().mode == "NONE"
    assert t.rows() == Counter([("a", 1), ("a", 1), ("b", 2)])


def test_a_stream_table_stored_anew_or_restored_is_served_as_a_whole(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.serve((1, 11))
    t.stage = "stage-2"
    done = t.serve((2, 20))
    assert (done.mode, done.reason.split(":")[0]) == ("FULL", "QUERY_ALTERED")
    t.feed.versions = t.feed.versions[:2]
    done = t.again()
    assert (done.mode, done.reason.split(":")[0]) == ("FULL", "STORED_CHANGED")
    assert t.rows() == Counter([(1, 10)])


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


def test_a_change_is_notified_of(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    with psycopg.connect(shop.server.url(shop.name, "stranger"), autocommit=True) as listener:
        listener.execute("LISTEN millstream_refresh")
        t.serve((1, 11), (2, 20), full=True)
        t.serve((1, 11))
        t.again()
        messages = [json.loads(n.payload) for n in listener.notifies(timeout=5, stop_after=2)]
        assert list(listener.notifies(timeout=0.1)) == []
    assert messages[0] == {
        "stream_table": "totals",
        "schema": "public",
        "table": "totals",
        "mode": "FULL",
        "rows_inserted": 1,
        "rows_updated": 1,
        "rows_deleted": 0,
        "refresh_id": 102,
        "data_timestamp": "2024-05-01T12:00:00+00:00",
    }
    assert messages[1]["mode"] == "DIFFERENTIAL"
    assert messages[1]["rows_deleted"] == 1


# What others do to the table


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


def test_a_place_that_another_row_has_taken_is_noticed(shop: Shop) -> None:
    t = served(shop, KEYED, None)
    t.serve((1, 10), (2, 20))
    t.run("DELETE FROM public.totals WHERE k = 1", "VACUUM public.totals", "INSERT INTO public.totals VALUES (9, 90)")
    assert t.rows("k, ctid::text") == Counter([(9, "(0,1)"), (2, "(0,2)")])
    done = t.serve((2, 20))
    assert (done.mode, done.reason.split(":")[0]) == ("FULL", "SERVED_CHANGED")
    assert t.rows() == Counter([(2, 20)])


def test_a_row_in_the_way_is_made_good(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"], total=True)
    t.serve((1, 10))
    t.run("CREATE UNIQUE INDEX ON public.totals (v)", "INSERT INTO public.totals VALUES (9, 90)")
    done = t.serve((1, 10), (2, 90))
    assert (done.mode, done.reason.split(":")[0]) == ("FULL", "SERVED_CHANGED")
    assert t.rows() == Counter([(1, 10), (2, 90)])


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


@pytest.mark.parametrize("key", [["k"], None])
@pytest.mark.parametrize("later", [0, 1])
def test_a_lake_that_was_restored_and_went_on_is_served_as_a_whole(
    shop: Shop, key: list[str] | None, later: int
) -> None:
    table = served(shop, KEYED, key)
    table.serve((1, 10))
    table.serve((1, 10), (2, 20))
    del table.feed.versions[-1]  # restored to the version before, from which it went on otherwise
    table.feed.lake = "restored"
    table.put((1, 10), (3, 30))
    for _ in range(later):
        table.put((1, 11), (3, 30))
    done = table.again()
    assert (done.mode, done.reason.partition(":")[0]) == ("FULL", "STORED_CHANGED")
    assert table.rows() == Counter(table.feed.versions[-1])
    assert table.again().mode == "NONE"


@pytest.mark.parametrize("has_trigger", [False, True])
@pytest.mark.parametrize("key", [["k"], None])
def test_a_large_change_is_netted_in_the_database(shop: Shop, key: list[str] | None, has_trigger: bool) -> None:
    t = served(shop, KEYED, key)
    t.serve((1, 10), (2, 20), (3, 30), (None, 40))
    if has_trigger:
        t.run(
            "CREATE TABLE public.seen (op text); GRANT INSERT ON public.seen TO millstream",
            "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO public.seen VALUES (TG_OP); RETURN NULL; END $$",
            "CREATE TRIGGER f AFTER INSERT OR UPDATE OR DELETE ON public.totals "
            "FOR EACH ROW EXECUTE FUNCTION public.f()",
        )
    t.feed.is_large = True
    done = t.serve((1, 10), (2, 21), (4, 40), (None, 41))
    assert t.rows() == Counter([(1, 10), (2, 21), (4, 40), (None, 41)])
    moved = (done.counts.inserted, done.counts.updated, done.counts.deleted)
    assert (done.mode, moved) == ("DIFFERENTIAL", (1, 2, 1) if key else (3, 0, 3))
    if has_trigger:
        assert t.run("SELECT op, count(*) FROM public.seen GROUP BY op ORDER BY op") == (
            [("DELETE", 1), ("INSERT", 1), ("UPDATE", 2)] if key else [("DELETE", 3), ("INSERT", 3)]
        )
    t.serve((1, 10), (2, 21), (4, 40), (None, 41))  # nothing, in many pieces
    assert t.rows() == Counter([(1, 10), (2, 21), (4, 40), (None, 41)])


def test_a_large_change_with_a_key_twice_is_served_as_a_whole(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.feed.is_large = True
    with pytest.raises(MillstreamError):
        t.serve((1, 11), (1, 12))
    assert t.rows() == Counter([(1, 10)])
