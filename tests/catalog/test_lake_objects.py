"""The lake's own tables, views and functions."""

from __future__ import annotations

import dataclasses

import pytest

from kits.catalog import T0, Clock, new_table
from millstream.catalog import Catalog, LakeObject, ObjectKind
from millstream.catalog.object_details import ObjectDetails
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName

ORDERS = LakeObject(
    kind=ObjectKind.TABLE,
    name=TableName.parse("orders"),
    location="/lake/orders",
    provider="delta",
    fingerprint="f1",
    details=ObjectDetails(managed=False, landing="/lake/landed", create="CREATE", capture="c1", stale="s"),
)
VIEW = LakeObject(
    kind=ObjectKind.VIEW,
    name=TableName.parse("s.v"),
    text="SELECT * FROM orders",
    fingerprint="f2",
    details=ObjectDetails(columns=("a",)),
)
FUNCTION = LakeObject(kind=ObjectKind.FUNCTION, name=TableName.parse("orders"), text="RETURN 1", fingerprint="f3")


def stored(item: LakeObject) -> LakeObject:
    return dataclasses.replace(item, created_at=T0, updated_at=T0)


def test_objects_are_read_back_in_the_order_of_their_creation(catalog: Catalog, clock: Clock) -> None:
    later = []
    for item in (ORDERS, VIEW, FUNCTION):  # a function may be called like a table
        catalog.put_lake_object(item)
        later.append(dataclasses.replace(item, created_at=clock.now, updated_at=clock.now))
        clock.pass_seconds(1)
    assert list(catalog.lake_objects()) == later
    assert catalog.lake_objects(ObjectKind.VIEW) == (later[1],)
    assert catalog.lake_object(ObjectKind.TABLE, ORDERS.name) == later[0]
    assert catalog.lake_object(ObjectKind.FUNCTION, ORDERS.name) == later[2]
    assert catalog.lake_object(ObjectKind.VIEW, ORDERS.name) is None


def test_replacing_keeps_the_time_of_creation(catalog: Catalog, clock: Clock) -> None:
    catalog.put_lake_object(VIEW)
    clock.pass_seconds(1)
    catalog.put_lake_object(dataclasses.replace(VIEW, text="SELECT 2"), replace=True)
    assert catalog.lake_objects() == (dataclasses.replace(stored(VIEW), text="SELECT 2", updated_at=clock.now),)


def test_every_change_is_a_new_generation(catalog: Catalog) -> None:
    seen = [catalog.generation()]
    catalog.put_lake_object(VIEW)
    seen.append(catalog.generation())
    catalog.put_lake_object(VIEW, replace=True)
    seen.append(catalog.generation())
    assert catalog.drop_lake_object(ObjectKind.VIEW, VIEW.name)
    seen.append(catalog.generation())
    assert seen == sorted(set(seen))


def test_names_are_taken_once(catalog: Catalog) -> None:
    catalog.put_lake_object(ORDERS)
    catalog.create_stream_table(new_table("totals"))
    as_view = dataclasses.replace(VIEW, name=ORDERS.name)
    as_stream = dataclasses.replace(VIEW, name=TableName.parse("totals"))
    for item, replace in ((ORDERS, False), (as_view, False), (as_view, True), (as_stream, True)):
        with pytest.raises(MillstreamError) as caught:
            catalog.put_lake_object(item, replace=replace)
        assert caught.value.code == Code.NAME_TAKEN
    assert catalog.lake_objects() == (stored(ORDERS),)


def test_dropping(catalog: Catalog) -> None:
    catalog.put_lake_object(ORDERS)
    assert not catalog.drop_lake_object(ObjectKind.VIEW, ORDERS.name)  # a table is no view
    assert catalog.drop_lake_object(ObjectKind.TABLE, ORDERS.name)
    assert not catalog.drop_lake_object(ObjectKind.TABLE, ORDERS.name)
