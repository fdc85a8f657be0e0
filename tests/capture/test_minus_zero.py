"""The sign of zero, and NaN, come into mirrors as they are, by triggers and by the WAL, with a key and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kits.capture import Kit, open_kit
from kits.shops import Shop
from kits.wal_shops import REPLICATOR, new_owned_wal_shop
from kits.wal_tables import always_surveyed, drop_slots, until
from millstream.catalog.attached import CaptureMode
from millstream.testing.postgres_server import Server

__all__ = ["always_surveyed"]
pytestmark = pytest.mark.postgres

Writer = psycopg.Connection[Any]
COLUMNS = "v float8, f real, vs float8[], fs real[]"
TABLES = ("keyed", "bag", "whole")
MAKING = (
    f"CREATE TABLE keyed (id int PRIMARY KEY, {COLUMNS})",
    f"CREATE TABLE bag (id int, {COLUMNS})",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    f"CREATE TABLE whole (id int PRIMARY KEY, {COLUMNS})",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
)
ZERO, MINUS, NAN = "0, 0, '{0,1}', '{0}'", "'-0', '-0', '{-0,1}', '{-0}'", "'NaN', 'NaN', '{NaN}', '{NaN,-0}'"


@pytest.fixture(params=[CaptureMode.TRIGGER, CaptureMode.WAL])
def kit(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[tuple[Kit, Writer]]:
    shop: Shop = new_owned_wal_shop(server)
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR), autocommit=True) as writer:
        for statement in MAKING:
            writer.execute(statement)
        for table in TABLES:
            writer.execute(f"INSERT INTO {table} VALUES (1, {ZERO}), (2, {MINUS}), (3, {NAN})")
        cdc = "auto" if request.param is CaptureMode.WAL else "trigger"
        with open_kit(tmp_path / "lake", shop.address, cdc=cdc) as opened:
            for table in TABLES:
                opened.read(f"r_{table}", table, "id", "v", "f", "vs", "fs")
            until(opened, request.param, writer, *TABLES, statement="UPDATE bag SET id = id")
            yield opened, writer
            drop_slots(shop)  # type: ignore[arg-type]


def test_the_sign_of_zero_and_nan_are_kept(kit: tuple[Kit, Writer]) -> None:
    opened, writer = kit
    opened.assert_exact(writer, *TABLES)
    for statement in (
        "UPDATE {} SET v = '-0' WHERE id = 1",
        "UPDATE {} SET v = 0, f = 0 WHERE id = 2",
        "UPDATE {} SET vs = '{{-0,1}}', fs = '{{-0}}' WHERE id = 1",
        "UPDATE {} SET vs = '{{0,1}}', fs = '{{0}}' WHERE id = 2",
        "UPDATE {} SET v = -v, f = -f",
        "INSERT INTO {} SELECT id + 10, -v, -f, vs, fs FROM {}",
        "UPDATE {} SET v = 'NaN' WHERE id = 1",
        "UPDATE {} SET v = '-0' WHERE v = 'NaN'",
        "DELETE FROM {} WHERE id IN (2, 11)",
    ):
        for table in TABLES:
            writer.execute(statement.replace("{}", table).replace("{{", "{").replace("}}", "}"))
        opened.tick(*TABLES)
        opened.assert_exact(writer, *TABLES)
    signs = {repr(v) for table in TABLES for (v,) in writer.execute(f"SELECT v FROM {table}")}
    assert signs >= {"-0.0", "0.0"}
