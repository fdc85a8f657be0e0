"""Numbered migrations: complete, in order, all or nothing."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

import millstream.catalog.migrations as package
from kits.catalog import Clock, new_table
from millstream.catalog import Catalog
from millstream.catalog.database import Database
from millstream.catalog.migrations import MIGRATIONS
from millstream.catalog.migrator import migrate, number
from millstream.catalog.schema import metadata, migrations
from millstream.errors import Code, MillstreamError


def step(name: str, *statements: str) -> Any:
    def upgrade(connection: sa.Connection, _root: Path | None) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    return SimpleNamespace(__name__=f"somewhere.{name}", upgrade=upgrade)


def table_names(database: Database) -> set[str]:
    with database.read() as connection:
        return set(sa.inspect(connection).get_table_names())


def test_numbers_have_no_gap_and_no_duplicate() -> None:
    files = sorted(f.stem for f in Path(package.__path__[0]).glob("v*.py"))
    assert all(re.fullmatch(r"v\d{4}_[a-z0-9_]+", f) for f in files)
    assert [m.__name__.rpartition(".")[2] for m in MIGRATIONS] == files
    assert [number(m) for m in MIGRATIONS] == list(range(1, len(files) + 1))


def test_the_migrations_lead_to_the_schema_the_code_uses(catalog: Catalog) -> None:
    with catalog._database.read() as connection:
        made = sa.MetaData()
        made.reflect(connection)
        dialect = connection.dialect
    assert set(made.tables) == set(metadata.tables)
    for name, wanted in metadata.tables.items():
        assert described(made.tables[name], dialect) == described(wanted, dialect), name


def described(table: sa.Table, dialect: sa.Dialect) -> dict[str, Any]:
    return {
        "columns": [
            (c.name, c.type.compile(dialect).replace("DOUBLE PRECISION", "DOUBLE"), c.nullable, c.primary_key)
            for c in table.columns
        ],
        "references": sorted((f.parent.name, f.target_fullname, f.ondelete) for f in table.foreign_keys),
        "unique": sorted(
            tuple(c.name for c in u.columns) for u in table.constraints if isinstance(u, sa.UniqueConstraint)
        ),
        "indexes": sorted((str(i.name), tuple(c.name for c in i.columns)) for i in table.indexes),
    }


def test_opening_again_changes_nothing(location: str, clock: Clock) -> None:
    with Catalog.open(location, clock) as catalog:
        catalog.create_stream_table(new_table())
        before = catalog.list(), catalog.generation(), catalog.lake_id()
    with Catalog.open(location, clock) as catalog:
        assert (catalog.list(), catalog.generation(), catalog.lake_id()) == before


def test_a_catalog_of_a_newer_millstream_is_left_alone(location: str, clock: Clock) -> None:
    with Catalog.open(location, clock) as catalog, catalog._database.write() as connection:
        connection.execute(sa.insert(migrations).values(version=999, name="v0999_later", applied_at=clock.now))
    with pytest.raises(MillstreamError) as caught:
        Catalog.open(location, clock)
    assert caught.value.code == Code.CATALOG_TOO_NEW
    assert "999" in caught.value.message


def test_a_step_is_all_or_nothing(location: str, clock: Clock) -> None:
    database = Database.at(location)
    first = step("v0001_first", "CREATE TABLE one (a INTEGER)")
    broken = step("v0002_second", "CREATE TABLE two (a INTEGER)", "ALTER TABLE one ADD b INTEGER", "nonsense")
    with pytest.raises(MillstreamError) as caught:
        migrate(database, clock, [first, broken])
    assert caught.value.code == Code.CATALOG_FAILED
    assert table_names(database) == {"ms_migrations", "one"}
    migrate(database, clock, [first, step("v0002_second", "CREATE TABLE two (a INTEGER)")])
    assert table_names(database) == {"ms_migrations", "one", "two"}
    with database.read() as connection:
        names = connection.execute(sa.select(migrations.c.version, migrations.c.name)).all()
        assert sorted(tuple(r) for r in names) == [(1, "v0001_first"), (2, "v0002_second")]
        assert [c["name"] for c in sa.inspect(connection).get_columns("one")] == ["a"]
    database.close()
