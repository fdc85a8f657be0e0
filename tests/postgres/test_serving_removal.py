"""The bookkeeping of served tables goes with the last lake that needs it, and takes no served table along."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from serving_kit import Table, connected, served
from shops import Shop

from millstream.sinks.postgres.removal import bookkeeping_removal

pytestmark = pytest.mark.postgres

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def remove(shop: Shop, lake: str) -> None:
    with connected(shop) as connection:
        connection.execute(bookkeeping_removal("millstream", lake))


def has_bookkeeping(table: Table) -> bool:
    with table.shop.owner() as owner:
        return owner.execute("SELECT to_regnamespace('millstream') IS NOT NULL").fetchone() == (True,)


def test_it_goes_with_the_last_lake(shop: Shop) -> None:
    table = served(shop, ROWS, None)  # without a key, so that it has places in the bookkeeping
    table.serve((1, 10), (1, 10))
    remove(shop, "another lake")
    assert has_bookkeeping(table)
    remove(shop, "lake")
    assert not has_bookkeeping(table)
    assert table.rows() == Counter({(1, 10): 2})
    remove(shop, "lake")  # there is nothing, which is no error


def test_what_users_put_there_is_left_alone(shop: Shop) -> None:
    table = served(shop, ROWS, ["k"])
    table.serve((1, 10))
    with connected(shop) as connection:
        connection.execute("CREATE TABLE millstream.notes (note text)")
        connection.execute("CREATE TABLE millstream.rows_of_mine (note text)")
    remove(shop, "lake")
    with connected(shop) as connection:
        left = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'millstream'::regnamespace")
        assert sorted(left.fetchall()) == [("notes",), ("rows_of_mine",)]


def test_a_schema_of_somebody_else_is_left_alone(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE SCHEMA millstream")
        owner.execute("CREATE TABLE millstream.serving (lake_id text)")
    remove(shop, "lake")
    with shop.owner() as owner:
        assert owner.execute("SELECT count(*) FROM millstream.serving").fetchone() == (0,)
