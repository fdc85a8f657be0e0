"""Which stored tables are ours, who is writing them, and since which version they are needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kits.catalog import intended, new_table, reads, refreshed
from millstream.catalog import Catalog, StreamTable
from millstream.catalog.attached import AttachedDatabase, Capture, OpenTick
from millstream.catalog.capture_state import CaptureState
from millstream.catalog.models import LakeObject, ObjectKind
from millstream.catalog.object_details import ObjectDetails
from millstream.maintenance.owned_tables import CatalogState, OwnedKind, needed_since
from millstream.naming import TableName


def table(catalog: Catalog, name: str, version: int, *sources: StreamTable, frontier: dict[str, int]) -> StreamTable:
    created = catalog.create_stream_table(new_table(name, *map(reads, sources)))
    stages = tuple(replace(s, version=version + s.ordinal) for s in created.stages)
    return replace(created, stages=stages, frontier=frontier, is_populated=True)


def capture(version: int | None = 30, **state: Any) -> Capture:
    return Capture(
        id="c1",
        database="shop",
        schema="public",
        table="orders",
        oid=1,
        columns=(),
        key=(),
        shape="",
        filenodes="",
        path="/lake/mirrors/1",
        version=version,
        state=CaptureState(**state),
    )


def database(open_tick: OpenTick | None = None) -> AttachedDatabase:
    return AttachedDatabase(
        name="shop",
        address="service=shop",
        cdc="auto",
        system=1,
        timeline=1,
        database="shop",
        database_oid=1,
        open_tick=open_tick,
    )


def landed(name: str, path: str) -> LakeObject:
    return LakeObject(
        kind=ObjectKind.TABLE, name=TableName.parse(name), location="/data", details=ObjectDetails(landing=path)
    )


def state(*tables: StreamTable, **more: Any) -> CatalogState:
    given: dict[str, Any] = {"captures": (), "databases": (), "objects": (), "intents": ()}
    return CatalogState(tables=tables, **(given | more))


@pytest.fixture
def catalog(tmp_path: Any) -> Any:
    with Catalog.open(tmp_path) as opened:
        yield opened


def test_stages_mirrors_and_landings_are_ours_and_nothing_else(catalog: Catalog) -> None:
    first = table(catalog, "a", 5, frontier={"orders": 3})
    own = LakeObject(kind=ObjectKind.TABLE, name=TableName.parse("orders"), location="/lake/tables/orders")
    found = state(
        first, captures=(capture(),), databases=(database(),), objects=(own, landed("csv", "/lake/landed/csv"))
    ).owned()
    assert [(t.kind, t.name, t.path) for t in found] == [
        (OwnedKind.STAGE, "a (stage 1)", first.stages[0].path),
        (OwnedKind.STAGE, "a", first.stages[1].path),
        (OwnedKind.MIRROR, "shop.public.orders", "/lake/mirrors/1"),
        (OwnedKind.LANDING, "csv", "/lake/landed/csv"),
    ]
    assert [t.is_rewritten for t in found] == [True, True, True, False]


def test_what_is_not_loaded_is_left_alone(catalog: Catalog) -> None:
    created = catalog.create_stream_table(new_table("a"))
    assert state(created, captures=(capture(None),)).owned() == []
    assert state(captures=(capture(stale="replaced"),)).owned() == []


def test_a_table_alone_needs_the_version_that_is_recorded(catalog: Catalog) -> None:
    first = table(catalog, "a", 5, frontier={"orders": 3})
    assert needed_since(state(first)) == {first.stages[0].path: 5, first.stages[1].path: 6}


def test_the_slowest_dependent_counts(catalog: Catalog) -> None:
    first = table(catalog, "a", 50, frontier={"orders": 3})
    fast = table(catalog, "fast", 9, first, frontier={"a": 49, "shop.public.orders": 29, "csv": 8})
    slow = table(catalog, "slow", 9, first, frontier={"a": 12, "shop.public.orders": 11, "csv": 7})
    objects = (landed("csv", "/lake/landed/csv"),)
    needed = needed_since(state(first, fast, slow, captures=(capture(),), objects=objects))
    assert needed[first.public_stage.path] == 12
    assert needed[first.stages[0].path] == 50, "nobody else reads a hidden stage"
    assert needed["/lake/mirrors/1"] == 11
    assert needed["/lake/landed/csv"] == 7
    assert needed_since(state(first, fast))[first.public_stage.path] == 49


def test_a_base_frontier_counts(catalog: Catalog) -> None:
    far = replace(table(catalog, "far", 9, frontier={"b": 1}), base_frontier={"shop.public.orders": 4})
    assert needed_since(state(far, captures=(capture(),)))["/lake/mirrors/1"] == 4


def test_an_interrupted_refresh_needs_what_it_began_with(catalog: Catalog) -> None:
    first = table(catalog, "a", 50, frontier={})
    reader = table(catalog, "b", 9, first, frontier={"a": 49})
    intent = replace(intended(reader), old_frontier={"a": 40}, new_frontier={"a": 45})
    assert needed_since(state(first, reader, intents=(intent,)))[first.public_stage.path] == 40


def test_a_served_table_that_lags_counts(catalog: Catalog) -> None:
    first = table(catalog, "a", 50, frontier={})
    assert needed_since(state(first), {first.id: 17})[first.public_stage.path] == 17
    assert needed_since(state(first), {first.id: None})[first.public_stage.path] == 51


def test_writers(catalog: Catalog) -> None:
    first, other = table(catalog, "a", 5, frontier={}), table(catalog, "b", 5, frontier={})
    tick = OpenTick(id=3, position={"snapshot": "1:1:"})
    given = state(first, other, captures=(capture(),), databases=(database(tick),), intents=(intended(first),))
    assert [given.writer_of(t) is not None for t in given.owned()] == [True, True, False, False, True]
    quiet = replace(given, intents=(), databases=(database(),))
    assert {quiet.writer_of(t) for t in quiet.owned()} == {None}


def test_the_state_is_that_of_the_catalog(catalog: Catalog) -> None:
    created = catalog.create_stream_table(new_table("a"))
    refreshed(catalog, created)
    read = CatalogState.read(catalog)
    assert [t.version for t in read.owned()] == [1, 1]
    assert read.intents == ()
