"""What goes wrong between millstream and the catalog's database comes out as a coded error."""

from __future__ import annotations

import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from kits.catalog import Clock, definition, new_table, no_data, outcome, refreshed, start
from kits.catalog_server import new_schema_url, server_url
from millstream.catalog import Catalog, database
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName


def code_of_opening(location: str | Path) -> Code:
    with pytest.raises(MillstreamError) as caught:
        Catalog.open(location)
    assert "secret" not in str(caught.value)
    return caught.value.code


def test_the_embedded_catalog_is_a_file_of_the_lake_with_the_right_pragmas(tmp_path: Path) -> None:
    lake = tmp_path / "new" / "lake"
    with Catalog.open(lake) as catalog, catalog._database.read() as connection:
        assert (lake / "millstream.db").is_file()
        assert catalog.is_embedded
        pragmas = {
            p: connection.exec_driver_sql(f"PRAGMA {p}").scalar()
            for p in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 30_000}
    with Catalog.open(f"sqlite:///{lake}/millstream.db") as same:
        assert same.list() == ()


@pytest.mark.parametrize("url", ["mysql://root@localhost/x", "s3://bucket/lake", "sc://", "postgresql://[::bad/x"])
def test_a_url_of_something_else(url: str) -> None:
    assert code_of_opening(url) == Code.SETTING_INVALID


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgres"])
def test_a_server_that_is_not_there(scheme: str) -> None:
    url = f"{scheme}://someone:secret@127.0.0.1:1/catalog?password=secret2"
    assert code_of_opening(url) == Code.CATALOG_UNAVAILABLE


def test_psycopg_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert code_of_opening("postgresql://localhost/x") == Code.DEPENDENCY_MISSING


def test_a_file_where_the_lake_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert code_of_opening(tmp_path / "file") == Code.LAKE_UNWRITABLE


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "millstream.db").write_bytes(b"something else" * 1000)
    assert code_of_opening(tmp_path) == Code.CATALOG_FAILED


def test_a_full_disk(tmp_path: Path) -> None:
    with Catalog.open(tmp_path) as catalog:
        catalog.create_stream_table(new_table("a"))
        catalog.close()  # new connections from here on
        sa.event.listen(catalog._database._engine, "connect", lambda c, _: c.execute("PRAGMA max_page_count = 1"))
        with pytest.raises(MillstreamError) as caught:
            catalog.create_stream_table(new_table("b", definition=definition(original_query="x" * 1_000_000)))
        assert caught.value.code == Code.LAKE_UNWRITABLE
        assert [str(t.name) for t in catalog.list()] == ["a"]


def test_a_writer_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 50)
    with Catalog.open(tmp_path) as catalog:
        table = catalog.create_stream_table(new_table())
        other = sqlite3.connect(tmp_path / "millstream.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MillstreamError) as caught:
            catalog.record_no_data(no_data(table))
        assert caught.value.code == Code.CATALOG_UNAVAILABLE
        assert catalog.get(table.name) == table  # reading goes on
        other.close()
        catalog.record_no_data(no_data(table))


def test_the_switch_to_wal_waits_for_a_writer(tmp_path: Path) -> None:
    """SQLite itself gives up at once here, whatever its busy timeout."""
    other = sqlite3.connect(tmp_path / "millstream.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE t (a)")
    other.execute("BEGIN IMMEDIATE")
    end = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    end.start()
    with Catalog.open(tmp_path) as catalog:
        assert catalog.list() == ()
    end.join()
    other.close()


def test_a_time_without_a_zone_is_a_mistake_of_the_program(catalog: Catalog, clock: Clock) -> None:
    table = catalog.create_stream_table(new_table())
    with pytest.raises(ValueError, match="time zone"):
        catalog.begin_refresh(start(table, data_timestamp=clock.now.replace(tzinfo=None)))
    assert catalog.open_intents() == ()


@pytest.mark.postgres
def test_connections_the_server_has_closed_are_replaced() -> None:
    with Catalog.open(new_schema_url()) as catalog:
        table = catalog.create_stream_table(new_table())
        end_all_connections()
        assert catalog.get(table.name) == table
        with pytest.raises(MillstreamError) as caught, catalog._database.write() as writing:  # noqa: PT012
            end_all_connections()
            writing.execute(sa.select(1))
        assert caught.value.code == Code.CATALOG_UNAVAILABLE
        assert catalog.get(table.name) == table


def end_all_connections() -> None:
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
    with psycopg.connect(server_url()) as connection:
        connection.execute(f"SELECT pg_terminate_backend(pid, 10000) {others}")


@pytest.mark.postgres
def test_two_lakes_can_share_a_server() -> None:
    with Catalog.open(new_schema_url()) as one, Catalog.open(new_schema_url()) as two:
        one.create_stream_table(new_table())
        assert two.list() == ()
        assert one.lake_id() != two.lake_id()
        assert not one.is_embedded


def test_a_read_sees_one_state_throughout(catalog: Catalog) -> None:
    """Frontier and stage versions move in one transaction, and `get` reads them with several statements."""
    table = catalog.create_stream_table(new_table())
    refreshed(catalog, table)
    stop = threading.Event()

    def write() -> None:
        for version in range(2, 100):
            intent = catalog.begin_refresh(start(table, new_frontier={"v": version}))
            catalog.complete_refresh(intent, outcome(table, version))
        stop.set()

    def read() -> int:
        count = 0
        while not stop.is_set():
            seen = catalog.get(table.name)
            if "v" in seen.frontier:
                assert {s.version for s in seen.stages} == {seen.frontier["v"]}
                count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        pool.submit(write).result()
        assert sum(r.result() for r in readers) > 10


def test_threads_share_a_catalog(catalog: Catalog) -> None:
    def create(number: int) -> bool:
        try:
            catalog.create_stream_table(new_table(f"t{number % 4}"))
        except MillstreamError as e:
            if e.code != Code.NAME_TAKEN:
                raise
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(create, range(16))) == 4
        tables = catalog.list()
        ids = list(pool.map(lambda i: catalog.record_no_data(no_data(tables[i % 4])), range(64)))
    assert sorted(ids) == list(range(1, 65))
    assert [t.name for t in tables] == [TableName.parse(f"t{i}") for i in range(4)]
