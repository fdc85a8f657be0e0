"""A catalog of version 2 is upgraded: in a lake where it was written, moved since, or in a shared PostgreSQL."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kits.catalog import Clock
from kits.catalog_server import new_schema_url
from kits.old_lakes import V2_ROOT, unpack
from millstream.catalog import Catalog, ObjectKind, SourceKind
from millstream.catalog.database import Database
from millstream.catalog.migrations import MIGRATIONS, v0001_initial, v0002_postgres
from millstream.catalog.migrator import migrate
from millstream.lake.source_changes import change_of, fingerprint_of
from millstream.naming import TableName

VERSION = 2


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("v2", tmp_path_factory.mktemp("v2") / "lake")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def old(request: pytest.FixtureRequest, lake: Path, tmp_path: Path, clock: Clock) -> Iterator[Database]:
    """The fixture's catalog, not upgraded yet."""
    directory = tmp_path / "lake"
    directory.mkdir()
    shutil.copy(lake / "millstream.db", directory)
    embedded = Database.at(directory)
    if request.param == "sqlite":
        yield embedded
    else:
        shared = Database.at(new_schema_url())
        copy(embedded, shared, clock)
        yield shared
        shared.close()
    embedded.close()


def copy(embedded: Database, shared: Database, clock: Clock) -> None:
    """Bring a catalog of version 2 into PostgreSQL."""
    migrate(shared, clock, MIGRATIONS[:VERSION])
    made = [*v0001_initial._METADATA.sorted_tables, *v0002_postgres._METADATA.sorted_tables]
    with embedded.read() as source, shared.write() as target:
        for table in dict.fromkeys(t for t in made if len(t.columns) > 1):
            target.execute(sa.delete(table))
            rows = [dict(row._mapping) for row in source.execute(sa.select(table))]
            if rows:
                target.execute(sa.insert(table), rows)


def opened(database: Database, clock: Clock, root: Path | None) -> Catalog:
    migrate(database, clock, root=root)
    return Catalog(database, clock, root)


def texts(database: Database) -> dict[str, list[str]]:
    """Every row of every table, as JSON."""
    found: dict[str, list[str]] = {}
    with database.read() as connection:
        made = sa.MetaData()
        made.reflect(connection)
        for table in made.sorted_tables:
            rows = connection.execute(sa.select(table)).all()
            found[table.name] = [json.dumps(dict(row._mapping), default=str) for row in rows]
    return found


def test_no_row_names_the_old_root(old: Database, clock: Clock) -> None:
    before = texts(old)
    assert {name for name, rows in before.items() if any(V2_ROOT in row for row in rows)} == {
        "ms_captures", "ms_dependencies", "ms_lake_objects", "ms_stages",
    }  # fmt: skip
    migrate(old, clock)
    after = texts(old)
    assert {name: len(rows) for name, rows in after.items()} == {
        name: len(rows) + (len(MIGRATIONS) - VERSION) * (name == "ms_migrations") for name, rows in before.items()
    }
    assert not [row for rows in after.values() for row in rows if V2_ROOT in row]


@pytest.mark.parametrize("root", [Path(V2_ROOT), Path("/moved/here")], ids=["where it was", "moved"])
def test_paths_are_resolved_against_the_root(old: Database, clock: Clock, root: Path) -> None:
    catalog = opened(old, clock, root)
    paths = [stage.path for table in catalog.list() for stage in table.stages]
    assert len(paths) == 15
    assert {str(Path(path).parents[1]) for path in paths} == {f"{root}/stream_tables"}
    rates = catalog.lake_object(ObjectKind.TABLE, TableName.parse("rates"))
    assert rates is not None
    assert (rates.location, rates.details.landing) == (f"{root}/tables/rates", f"{root}/landed/default.rates")
    (capture,) = catalog.captures()
    assert capture.path.startswith(f"{root}/mirrors/")


def test_readers_still_fit_what_they_read(old: Database, clock: Clock) -> None:
    catalog = opened(old, clock, Path("/moved/here"))
    dependencies = [(table, d) for table in catalog.list() for d in table.definition.dependencies]
    assert {d.kind for _, d in dependencies} == set(SourceKind)
    assert [f"{table.name}: {change}" for table, d in dependencies if (change := change_of(catalog, d))] == []
    for table, dependency in dependencies:
        if dependency.kind is SourceKind.STREAM_TABLE:
            assert dependency.fingerprint == fingerprint_of(catalog.get(TableName.parse(dependency.name))), table.name


def test_an_upgraded_catalog_has_the_schema_of_a_new_one(old: Database, clock: Clock, tmp_path: Path) -> None:
    new = Database.at(tmp_path / "new" if old.is_embedded else new_schema_url())
    migrate(new, clock)
    migrate(old, clock)
    assert schema_of(old) == schema_of(new)
    new.close()


def schema_of(database: Database) -> dict[str, Any]:
    """Columns with types and nullability, keys, references and indexes of every table."""
    with database.read() as connection:
        look = sa.inspect(connection)
        return {
            name: {
                "columns": [(c["name"], str(c["type"]), c["nullable"], c["default"]) for c in look.get_columns(name)],
                "key": look.get_pk_constraint(name)["constrained_columns"],
                "references": sorted(
                    (f["constrained_columns"], f["referred_table"], f["options"]) for f in look.get_foreign_keys(name)
                ),
                "unique": sorted(u["column_names"] for u in look.get_unique_constraints(name)),
                "indexes": sorted((i["name"] or "", i["column_names"], i["unique"]) for i in look.get_indexes(name)),
            }
            for name in look.get_table_names()
        }


def record(database: Database, location: str, **details: object) -> None:
    """A table of a catalog of version 2, as old code recorded it."""
    table = v0001_initial._METADATA.tables["ms_lake_objects"]
    now = Clock().now.replace(tzinfo=None)
    row = {"namespace": "RELATION", "schema_name": "default", "name": location[-8:], "kind": "TABLE"}
    row |= {"location": location, "provider": "delta", "fingerprint": ""}
    with database.write() as connection:
        connection.execute(sa.insert(table).values(**row, details=details, created_at=now, updated_at=now))


def locations(database: Database) -> list[str]:
    with database.read() as connection:
        return sorted(connection.execute(sa.text("SELECT location FROM ms_lake_objects")).scalars())


def test_tables_outside_the_lake_keep_their_paths(tmp_path: Path, clock: Clock) -> None:
    database = Database.at(tmp_path)
    migrate(database, clock, MIGRATIONS[:VERSION])
    outside = ["/data/lakes/t1", "s3a://bucket/data/lake/t2", "/elsewhere/tables/t3"]
    for place in outside:
        record(database, place, managed=False)
    record(database, "/data/lake/tables/t4", managed=True)
    record(database, "/data/lake/external/t5", managed=False)
    migrate(database, clock, root=Path("/data/lake"))
    assert locations(database) == sorted([*outside, "tables/t4", "external/t5"])
    database.close()


def test_managed_tables_show_the_old_root_where_nothing_else_does(tmp_path: Path, clock: Clock) -> None:
    database = Database.at(tmp_path)
    migrate(database, clock, MIGRATIONS[:VERSION])
    record(database, "/old/lake/tables/sales.db/t1", managed=True)
    record(database, "/old/lake/external/t2", managed=False)
    migrate(database, clock, root=tmp_path)
    assert locations(database) == ["external/t2", "tables/sales.db/t1"]
    database.close()


def test_a_recorded_statement_names_no_location_and_no_default_collation(tmp_path: Path, clock: Clock) -> None:
    database = Database.at(tmp_path)
    migrate(database, clock, MIGRATIONS[:VERSION])
    create = "CREATE TABLE a.t (\n  x STRING{})\nUSING csv\n{}TBLPROPERTIES (\n  'k' = 'LOCATION')\n"
    record(database, "/lake/csv/t1", create=create.format(" COLLATE UTF8_BINARY", "LOCATION 'file:/lake/it\\'s'\n"))
    catalog = opened(database, clock, Path("/lake"))
    (item,) = catalog.lake_objects()
    assert item.details.create == create.format("", "")
    catalog.close()
