"""A stream table over PostgreSQL, and served there, gets another definition: captured, loaded and served, or not."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kits.captured_lake import CapturedLake, open_captured, plain
from kits.lake_process import LakeProcess
from kits.shops import MILLSTREAM, Shop
from millstream import Action, Code, MillstreamError, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

LONG = pytest.mark.long
MODES = ["DIFFERENTIAL STRICT", *(pytest.param(mode, marks=LONG) for mode in ("AUTO", "DIFFERENTIAL", "FULL"))]
SUMS = "SELECT k, SUM(v)::bigint AS s FROM shop.public.a GROUP BY k"
WIDER = "SELECT k, SUM(v + w)::bigint AS s FROM shop.public.a GROUP BY k"
OTHER = "SELECT k, v::bigint AS s FROM shop.public.b"
JOINED = "SELECT a.k, SUM(b.v)::bigint AS s FROM shop.public.a JOIN shop.public.b ON a.k = b.k GROUP BY a.k"
FAILING = "SELECT k, (100 / (v - 10))::bigint AS s FROM shop.public.b"


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[CapturedLake]:
    with open_captured(tmp_path / "lake", shop) as opened:
        opened.run(
            f"GRANT CREATE ON SCHEMA public TO {MILLSTREAM}",
            "CREATE TABLE a (k int PRIMARY KEY, v int, w int)",
            "CREATE TABLE b (k int, v int)",
            "INSERT INTO a VALUES (1, 10, 1), (2, 20, 2)",
            "INSERT INTO b VALUES (1, 10), (2, 20), (2, 20)",
        )
        yield opened


def asked(lake: CapturedLake, query: str) -> Counter[Any]:
    """The database's own answer."""
    with lake.shop.server.superuser(lake.shop.name) as superuser:
        return Counter(plain(row) for row in superuser.execute(query.encode()))


def state(lake: CapturedLake, name: str = "s") -> tuple[Any, ...]:
    """All that a replacement which fails must leave as it was."""
    catalog = lake.ms._catalog
    table = next(x for x in catalog.list() if str(x.name) == name)
    captures = sorted(c.name for c in catalog.captures())  # which may have more columns: others may come to read them
    stored = sorted(p.name for p in (lake.root / "stream_tables").iterdir())
    history = [(r.refresh_id, r.status) for r in lake.ms.refresh_history(name)]
    contents = sorted(map(tuple, lake.read_back.table(name).collect()))
    return table, captures, catalog.servings(), stored, history, contents, lake.made


@pytest.mark.parametrize("mode", MODES)
def test_a_replacement_begins_and_ends_captures(lake: CapturedLake, mode: str) -> None:
    lake.stream("s", SUMS, mode)
    made = lake.made
    for query in (WIDER, OTHER, JOINED, SUMS):
        lake.run("INSERT INTO b VALUES (3, 30)", "UPDATE a SET v = v + 1")
        lake.ms.replace_stream_table("s", query)
        lake.queries["s"] = query
        lake.assert_exact("s")
        assert lake.ms.status()[0].status is Status.ACTIVE
        assert lake.ms.refresh_history("s")[0].action is Action.REINITIALIZE
        read = {name for name in ("a", "b") if f"shop.public.{name}" in query}
        assert {c.table for c in lake.ms._catalog.captures()} == read
        lake.run("INSERT INTO b VALUES (2, 7)", "UPDATE a SET w = w + 1, v = v + 1")
        lake.refresh("s", Action.FULL if mode == "FULL" else None)
        assert mode == "FULL" or lake.ms.refresh_history("s")[0].action is not Action.FULL
    assert len(lake.made) == len(made)
    before = state(lake)
    lake.ms.replace_stream_table("s", SUMS)
    lake.ms.alter_stream_table("s", query=SUMS)
    assert state(lake) == before


@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_captured_or_loaded_changes_nothing(lake: CapturedLake, mode: str) -> None:
    lake.stream("s", SUMS, mode)
    lake.run(
        "CREATE TABLE secret (k int, s bigint)",
        f"REVOKE ALL ON secret FROM {MILLSTREAM}",
        f"CREATE TABLE halves (k int, s bigint); GRANT SELECT ON halves TO {MILLSTREAM}; "
        f"REVOKE TRIGGER ON halves FROM {MILLSTREAM}",
    )
    before = state(lake)
    for query, codes in (
        (FAILING, {Code.REFRESH_FAILED}),
        ("SELECT k, s FROM shop.public.secret", {Code.PRIVILEGE_MISSING, Code.UNKNOWN_TABLE}),
        ("SELECT k, s FROM shop.public.halves", {Code.PRIVILEGE_MISSING}),
    ):
        for change in (lake.ms.replace_stream_table, lambda n, q: lake.ms.alter_stream_table(n, query=q)):
            with pytest.raises(MillstreamError) as caught:
                change("s", query)
            assert caught.value.code in codes, caught.value
            assert state(lake) == before
    lake.run("UPDATE a SET v = v + 1")
    lake.refresh("s", Action.FULL if mode == "FULL" else None)


def test_a_database_that_cannot_be_reached_changes_nothing(lake: CapturedLake) -> None:
    lake.stream("s", SUMS, "DIFFERENTIAL STRICT")
    before = state(lake)
    with lake.shop.server.superuser("postgres") as superuser:
        superuser.execute(f'ALTER DATABASE "{lake.shop.name}" ALLOW_CONNECTIONS false'.encode())
    try:
        with pytest.raises(MillstreamError) as caught:
            lake.ms.replace_stream_table("s", OTHER)
        assert caught.value.code is Code.DATABASE_UNREACHABLE
    finally:
        with lake.shop.server.superuser("postgres") as superuser:
            superuser.execute(f'ALTER DATABASE "{lake.shop.name}" ALLOW_CONNECTIONS true'.encode())
    assert state(lake) == before
    lake.ms.replace_stream_table("s", OTHER)
    lake.queries["s"] = OTHER
    lake.assert_exact("s")


def served(lake: CapturedLake, query: str = SUMS, mode: str = "DIFFERENTIAL STRICT") -> None:
    lake.ms.create_stream_table("s", query, refresh_mode=mode, serve_to="shop.public.s")
    lake.queries["s"] = query


def test_what_is_served_is_replaced_with_it(lake: CapturedLake, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "millstream"):
        served(lake)
    said = [r.getMessage() for r in caplog.records]
    assert any(text.startswith("brought shop.public.a forward in") for text in said)
    assert any(text.startswith("s: served as shop.public.s in") for text in said)
    for query in (WIDER, JOINED, OTHER):
        lake.ms.replace_stream_table("s", query)
        lake.queries["s"] = query
        lake.assert_exact("s")
        assert asked(lake, "SELECT * FROM s") == asked(lake, query.replace("shop.", ""))
        lake.run("INSERT INTO b VALUES (2, 9)", "UPDATE a SET v = v + 1")
        lake.refresh("s")
        assert asked(lake, "SELECT * FROM s") == asked(lake, query.replace("shop.", ""))
    lake.ms.replace_stream_table("s", OTHER, serve_to="shop.public.t", grants=["stranger"])
    assert asked(lake, "SELECT * FROM t") == asked(lake, OTHER.replace("shop.", ""))
    assert asked(lake, "SELECT to_regclass('public.s')::text") == Counter([(None,)])
    history = lake.ms.refresh_history("s")
    lake.ms.replace_stream_table("s", OTHER, serve_to="shop.public.t", grants=["stranger"])
    lake.ms.replace_stream_table("s", OTHER, serve_to="shop.public.u")  # elsewhere, and not loaded again
    assert lake.ms.refresh_history("s") == history
    assert asked(lake, "SELECT * FROM u") == asked(lake, OTHER.replace("shop.", ""))
    lake.ms.replace_stream_table("s", SUMS, serve_to="shop.public.v", initialize=False)
    assert not asked(lake, "SELECT * FROM v")
    lake.queries["s"] = SUMS
    lake.refresh("s", Action.FULL)
    assert asked(lake, "SELECT * FROM v") == asked(lake, SUMS.replace("shop.", ""))


def test_what_cannot_be_served_changes_nothing(lake: CapturedLake) -> None:
    served(lake)
    lake.run(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$",
        "CREATE TABLE taken (k int)",
    )
    with lake.shop.server.superuser(lake.shop.name) as superuser:
        superuser.execute(b"CREATE TRIGGER no BEFORE UPDATE OR INSERT OR DELETE ON s EXECUTE FUNCTION no()")
    before, rows = state(lake), asked(lake, "SELECT * FROM s")
    for query, options, code in (
        (WIDER, {}, Code.SERVE_FAILED),
        (OTHER, {"grants": ["nobody_at_all"], "serve_to": "shop.public.s"}, Code.SERVE_FAILED),
        (OTHER, {"serve_to": "shop.public.taken"}, Code.NAME_TAKEN),
        (SUMS, {"serve_to": "shop.public.taken"}, Code.NAME_TAKEN),
        ("SELECT k, s || chr(0) AS s FROM (SELECT k, v::text AS s FROM shop.public.b) x", {"serve_to": "shop.x"}, None),
    ):
        with pytest.raises(MillstreamError) as caught:
            lake.ms.replace_stream_table("s", query, **options)  # type: ignore[arg-type]
        assert code is None or caught.value.code is code, caught.value
        assert state(lake) == before, query
        assert asked(lake, "SELECT * FROM s") == rows
    with lake.shop.server.superuser(lake.shop.name) as superuser:
        superuser.execute(b"CREATE VIEW theirs AS SELECT * FROM s; DROP TRIGGER no ON s")
    with pytest.raises(MillstreamError) as caught:
        lake.ms.replace_stream_table("s", WIDER, serve_to="shop.public.elsewhere")
    assert caught.value.code is Code.DEPENDENTS_EXIST
    assert state(lake) == before
    lake.run("UPDATE a SET v = v + 1")
    lake.refresh("s", Action.DIFFERENTIAL)
    assert asked(lake, "SELECT * FROM s") == asked(lake, SUMS.replace("shop.", ""))


@pytest.mark.long
@pytest.mark.parametrize("query", [SUMS, OTHER], ids=["the same query", "another query"])
@pytest.mark.parametrize("step", ["before", "after"])
def test_killed_while_it_moves_to_another_name(lake: CapturedLake, spark: SparkSession, step: str, query: str) -> None:
    """Killed after the catalog has switched and before PostgreSQL has committed, the next refresh finds both names."""
    served(lake)
    switch = "alter_stream_table" if query == SUMS else "replace_stream_table"
    for name in ("t", "u"):
        before = asked(lake, f"SELECT * FROM {'s' if name == 't' else 't'}")
        with LakeProcess(lake.root, spark) as process:
            process.ask("die", switch, step, 1)
            clauses = f"REFRESH MODE DIFFERENTIAL STRICT SERVE TO shop.public.{name}"
            process.tell("run", f"CREATE OR REPLACE STREAM TABLE s {clauses} AS {query}")
            assert process.killed()
        assert asked(lake, f"SELECT * FROM {'s' if name == 't' else 't'}") == before
        if step == "before":
            return
        lake.queries["s"] = query
        lake.refresh("s", Action.NO_DATA)
        assert asked(lake, f"SELECT * FROM {name}") == asked(lake, query.replace("shop.", ""))
        assert asked(lake, f"SELECT to_regclass('public.{'s' if name == 't' else 't'}')::text") == Counter([(None,)])
        switch = "alter_stream_table"
    lake.ms.drop_stream_table("s")
    assert asked(lake, "SELECT to_regclass('public.u')::text") == Counter([(None,)])


RECORDED = "millstream.sinks.postgres.table_writer:TableWriter._record"
COMMITTED = "millstream.service.definitions:Definitions.settle"
KILLS = {
    "after the capture was begun": ("millstream.lake.stage_storage:StageStorage.create", "before", 1),
    "after the load": ("begin_load", "after", 1),
    "served, before COMMIT": (RECORDED, "after", 1),
    "before the switch": ("replace_stream_table", "before", 1),
    "after the switch, before COMMIT": ("replace_stream_table", "after", 1),
    "after COMMIT": (COMMITTED, "before", 1),
    "after all": (COMMITTED, "after", 1),
}


@pytest.mark.long
@pytest.mark.parametrize("point", KILLS)
@pytest.mark.parametrize("query", [OTHER, WIDER], ids=["another table", "another column"])
def test_killed_at_each_step(lake: CapturedLake, spark: SparkSession, point: str, query: str) -> None:
    """The old definition with the old contents, or the new one with the new; the next refresh serves it."""
    served(lake)
    lake.run("UPDATE a SET v = v + 1")
    lake.refresh("s")
    old = asked(lake, SUMS.replace("shop.", ""))
    with LakeProcess(lake.root, spark) as process:
        process.ask("die", *KILLS[point])
        process.tell("run", f"ALTER STREAM TABLE s AS {query}")
        assert process.killed()
    is_new = point.startswith("after the switch") or point in ("after COMMIT", "after all")
    wanted = query if is_new else SUMS
    table, *_ = state(lake)
    assert table.definition.original_query == wanted
    lake.queries["s"] = wanted
    lake.assert_exact("s")
    new = asked(lake, query.replace("shop.", ""))
    assert asked(lake, "SELECT * FROM s") == (new if point in ("after COMMIT", "after all") else old)
    lake.run("UPDATE a SET v = v + 1", "INSERT INTO b VALUES (5, 50)")
    lake.refresh("s", Action.APPEND_ONLY if wanted == OTHER else Action.DIFFERENTIAL)
    assert asked(lake, "SELECT * FROM s") == asked(lake, wanted.replace("shop.", ""))
    lake.ms.replace_stream_table("s", query)
    lake.queries["s"] = query
    lake.refresh("s", Action.NO_DATA)
    assert asked(lake, "SELECT * FROM s") == asked(lake, query.replace("shop.", ""))
    read = {name for name in ("a", "b") if f"shop.public.{name}" in query}
    assert {c.table for c in lake.ms._catalog.captures()} == read
    assert len(list((lake.root / "stream_tables").iterdir())) == 1
