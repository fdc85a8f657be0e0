"""block_source_ddl in the database itself, where the role may make event triggers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kits.capture import Kit, open_kit
from kits.shops import Shop
from millstream.postgres.address import Address
from millstream.postgres.connection import connect
from millstream.settings import Settings
from millstream.sources.postgres.triggers.ddl_guard import guard

pytestmark = pytest.mark.postgres


@pytest.fixture
def owner(shop: Shop) -> Iterator[psycopg.Connection[Any]]:
    with shop.owner() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(10), free text)")
        connection.execute("CREATE TABLE other (id int)")
        yield connection


@pytest.fixture
def kit(shop: Shop, owner: psycopg.Connection[Any], tmp_path: Path) -> Iterator[Kit]:
    """Captured by a superuser, who alone may make event triggers here."""
    address = Address.parse(shop.server.url(shop.name))
    with open_kit(tmp_path / "lake", address, Settings(block_source_ddl=True)) as opened:
        opened.read("a", "t", "v")
        yield opened


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DROP v",
        "ALTER TABLE t RENAME v TO w",
        "ALTER TABLE t ALTER v TYPE varchar(20)",
        "ALTER TABLE t RENAME TO u",
        "DROP TABLE t",
    ],
)
def test_what_is_refused(kit: Kit, owner: psycopg.Connection[Any], statement: str) -> None:
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="millstream"):
        owner.execute(statement)
    owner.execute("INSERT INTO t VALUES (1, 'x', '')")
    kit.tick()
    kit.assert_exact(owner, "t")


def test_what_is_not(kit: Kit, owner: psycopg.Connection[Any], shop: Shop) -> None:
    for statement in ("ALTER TABLE t DROP free", "ALTER TABLE t ADD more int", "DROP TABLE other"):
        owner.execute(statement)
    kit.read("b", "t", "more")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        owner.execute("ALTER TABLE t DROP more")
    kit.forget("a")
    kit.forget("b")
    owner.execute("DROP TABLE t")
    with shop.server.superuser(shop.name) as superuser:
        assert superuser.execute("SELECT count(*) FROM pg_event_trigger").fetchone() == (0,)


def test_a_publication_of_all_tables_forbids_nothing(kit: Kit, owner: psycopg.Connection[Any], shop: Shop) -> None:
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    kit.read("b", "t", "free")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="millstream"):
        owner.execute("ALTER TABLE t DROP free")
    kit.forget("b")
    kit.tick()


def test_when_it_is_no_longer_wanted(kit: Kit, owner: psycopg.Connection[Any], shop: Shop) -> None:
    with open_kit(kit.root, Address.parse(shop.server.url(shop.name))) as other:
        other.tick()
        owner.execute("ALTER TABLE t DROP v")


def test_a_role_that_may_not(shop: Shop, owner: psycopg.Connection[Any], tmp_path: Path) -> None:
    with connect(shop.address) as connection:
        connection.execute("CREATE SCHEMA buffers")
        assert not guard(connection, "buffers", {1: ["a"]})
    with open_kit(tmp_path / "lake", shop.address, Settings(block_source_ddl=True)) as kit:
        kit.read("a", "t", "v")
        assert any("block_source_ddl" in said for said in kit.said)
        owner.execute("ALTER TABLE t DROP free")
