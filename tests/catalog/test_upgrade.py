"""Catalogs of versions 2 and 3 are upgraded: where they were written, moved since, or in a shared PostgreSQL."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kits.catalog import Clock, no_data
from kits.catalog_server import new_schema_url
from kits.counted import assert_equal
from kits.old_lakes import V2_ROOT, unpack
from millstream.catalog import Catalog, Leadership, ObjectKind, SourceKind
from millstream.catalog.database import Database
from millstream.catalog.migrations import MIGRATIONS, v0001_initial, v0002_postgres
from millstream.catalog.migrator import migrate
from millstream.lake.source_changes import change_of, fingerprint_of
from millstream.naming import TableName
from millstream.results import Action, RefreshStatus

VERSION = 2


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {n: unpack(f"v{n}", tmp_path_factory.mktemp(f"v{n}") / "lake") for n in (2, 3)}


Opener = Callable[[int], Database]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def old_of(request: pytest.FixtureRequest, lakes: dict[int, Path], tmp_path: Path, clock: Clock) -> Iterator[Opener]:
    """The catalog of a fixture, not upgraded yet."""
    used: list[Database] = []

    def old_of(version: int) -> Database:
        directory = tmp_path / f"v{version}"
        directory.mkdir()
        shutil.copy(lakes[version] / "millstream.db", directory)
        used.append(Database.at(directory))
        if request.param == "postgres":
            used.append(Database.at(new_schema_url()))
            copy(used[-2], used[-1], clock, version)
        return used[-1]

    yield old_of
    for database in used:
        database.close()


@pytest.fixture
def old(old_of: Opener) -> Database:
    return old_of(VERSION)


def copy(embedded: Database, shared: Database, clock: Clock, version: int) -> None:
    """Bring a catalog of an old version into PostgreSQL."""
    migrate(shared, clock, MIGRATIONS[:version])
    made = [*v0001_initial._METADATA.sorted_tables, *v0002_postgres._METADATA.sorted_tables]
    with embedded.read() as source, shared.write() as target:
        for table in dict.fromkeys(t for t in made if len(t.columns) > 1):
            kept = {column["name"] for column in sa.inspect(source).get_columns(table.name)}
            columns = [column for column in table.columns if column.name in kept]
            target.execute(sa.delete(table))
            rows = [dict(row._mapping) for row in source.execute(sa.select(*columns))]
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
    assert {name: len(rows) for name, rows in after.items() if name in before} == {
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


@pytest.mark.parametrize("version", [2, 3])
def test_an_upgraded_catalog_has_the_schema_of_a_new_one(
    old_of: Opener, clock: Clock, tmp_path: Path, version: int
) -> None:
    old = old_of(version)
    new = Database.at(tmp_path / "new" if old.is_embedded else new_schema_url())
    migrate(new, clock)
    migrate(old, clock)
    assert schema_of(old) == schema_of(new)
    new.close()


@pytest.mark.parametrize("version", [2, 3])
def test_counters_are_filled_from_the_history(old_of: Opener, clock: Clock, version: int) -> None:
    catalog = opened(old_of(version), clock, Path("/lake"))
    totals = {s.name: s for s in catalog.stats()}
    history = catalog.history(limit=1_000)
    assert sum(s.total_refreshes for s in totals.values()) == len(history)
    assert {r.repeats for r in history} == {1}
    assert_equal(catalog)


def test_what_version_3_did_goes_on(old_of: Opener, clock: Clock) -> None:
    catalog = opened(old_of(3), clock, Path("/lake"))
    totals = {s.name: s for s in catalog.stats()}
    numbers = totals["numbers"]
    assert (numbers.total_refreshes, numbers.successful_refreshes, numbers.failed_refreshes) == (5, 2, 3)
    assert (totals["buyers"].last_refresh_action, totals["amounts"].last_refresh_status) == (
        Action.SKIP,
        RefreshStatus.RUNNING,
    )
    assert catalog.leadership() == Leadership(epoch=0, leader=None, woke_at=None, is_paused=False)
    assert catalog.events() == ()
    (intent,) = catalog.open_intents()
    assert catalog.resolve_running() == 0, "it has an intent"
    catalog.abandon_intent(intent, "the process ended")
    buyers = catalog.get(TableName.parse("buyers"))
    catalog.record_no_data(no_data(buyers, started_at=clock.now))
    assert_equal(catalog)
    assert {s.name: s.failed_refreshes for s in catalog.stats()}["amounts"] == totals["amounts"].failed_refreshes + 1


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
