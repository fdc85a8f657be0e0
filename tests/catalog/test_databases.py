"""Attached databases in the catalog: what is put comes back, and a step of capture is one transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kits.catalog import new_table
from millstream.catalog import AttachedDatabase, Capture, CaptureMode, Catalog, OpenTick, Serving
from millstream.catalog.capture_state import DatabaseState, WalState
from millstream.catalog.serving_details import FormerServing, ServingDetails
from millstream.errors import MillstreamError

SHOP = AttachedDatabase(
    name="shop",
    address="env:SHOP",
    cdc="auto",
    system=2**64 - 1,
    timeline=3,
    database="shop",
    database_oid=2**32 - 1,
    state=DatabaseState(buffer_schema="millstream_changes"),
)
ORDERS = Capture(
    id="c1",
    database="shop",
    schema="public",
    table="orders",
    oid=16_384,
    columns=(("id", "bigint", "bigint"), ("amount", "numeric(10,2)", "decimal(10,2)")),
    key=("id",),
    shape="s1",
    filenodes="f1",
    path="/lake/mirrors/c1",
)


def test_a_database_comes_back_as_it_was_put(catalog: Catalog) -> None:
    reached = datetime(2026, 1, 2, tzinfo=UTC)
    tick = OpenTick(id=8, position={"snapshot": "5:9:7"})
    item = replace(
        SHOP,
        mode=CaptureMode.WAL,
        position={"lsn": "0/16B"},
        reached_at=reached,
        last_tick=8,
        open_tick=tick,
        state=DatabaseState(buffer_schema="changes", wal=WalState("ms", "ms", {"c1": "f"})),
    )
    catalog.put_database(SHOP)
    catalog.put_database(item, captures=[ORDERS])
    catalog.put_database(item, captures=[replace(ORDERS, version=4)])
    assert catalog.databases() == (item,)
    assert catalog.find_database("SHOP") == item
    assert catalog.find_database("other") is None
    assert catalog.captures() == (replace(ORDERS, version=4),) == catalog.captures("shop")
    assert catalog.captures("other") == ()


def test_a_database_and_its_captures_are_put_together_or_not_at_all(catalog: Catalog) -> None:
    catalog.put_database(SHOP)
    with pytest.raises(MillstreamError):
        catalog.put_database(replace(SHOP, last_tick=1), captures=[replace(ORDERS, database="unknown")])
    assert catalog.find_database("shop") == SHOP


def test_a_database_in_use_is_not_dropped(catalog: Catalog) -> None:
    catalog.put_database(SHOP, captures=[ORDERS])
    with pytest.raises(MillstreamError):
        catalog.drop_database("shop")
    catalog.drop_capture("c1")
    catalog.drop_database("shop")
    assert catalog.databases() == ()


def test_a_serving_goes_with_its_stream_table(catalog: Catalog) -> None:
    catalog.put_database(SHOP)
    table = catalog.create_stream_table(new_table("totals"))
    old = ServingDetails(user_triggers="auto")
    former = FormerServing(database="shop", schema="public", table="old", details=old)
    details = ServingDetails(
        user_triggers="off", owner="o", grants=("a", "PUBLIC"), serving_schema="m", moved_from=former
    )
    serving = Serving(table_id=table.id, database="shop", schema="public", table="totals", details=details)
    catalog.put_serving(serving)
    assert catalog.servings() == (serving,) == catalog.servings("shop")
    catalog.drop_stream_table(table.name)
    assert catalog.servings() == ()
