"""Attaching and detaching a database: what is checked, recorded, made and removed. No Spark is started."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

import millstream
from kits.catalog import body
from kits.shops import MILLSTREAM, OWNER, Shop, new_shop
from millstream import Millstream
from millstream.catalog.attached import Capture, Serving
from millstream.catalog.models import (
    Definition,
    Dependency,
    LakeObject,
    NewStreamTable,
    ObjectKind,
    SourceKind,
    Stage,
    new_id,
)
from millstream.catalog.serving_details import ServingDetails
from millstream.cli.main import main
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.results import RefreshMode
from millstream.settings import Settings
from millstream.sinks.postgres.keys import Key
from millstream.sinks.postgres.ledger import Ledger
from millstream.sinks.postgres.target import Target
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffers import install
from millstream.sources.postgres.values.types import mirror_columns
from millstream.testing.postgres_server import FAST, Server

pytestmark = pytest.mark.postgres


@pytest.fixture
def ms(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.connect(tmp_path / "lake") as opened:
        yield opened
        assert not opened._starter.is_started  # none of this needs a JVM


@pytest.fixture
def replicator(server: Server, shop: Shop) -> Iterator[None]:
    """Let the role have replication slots, for one test."""
    with server.superuser() as superuser:
        superuser.execute(f"ALTER ROLE {MILLSTREAM} REPLICATION")
        yield
        superuser.execute(f"ALTER ROLE {MILLSTREAM} NOREPLICATION")


def error_of(ms: Millstream, name: str, url: str, **options: str) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        ms.attach(name, url, **options)  # type: ignore[arg-type]
    return caught.value


def schemas_of(shop: Shop) -> set[object]:
    with shop.owner() as owner:
        return {row[0] for row in owner.execute("SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'")}


def leftovers(shop: Shop) -> tuple[object, ...]:
    """How much of millstream's is in the database."""
    with shop.server.superuser(shop.name) as superuser:
        row = superuser.execute(
            "SELECT (SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal), (SELECT count(*) FROM pg_publication), "
            "(SELECT count(*) FROM pg_replication_slots WHERE database = current_database())"
        ).fetchone()
    assert row is not None
    return row


def captured(ms: Millstream, shop: Shop, lake: Path, table: str) -> Capture:
    """Record a table as captured, by triggers whose buffer holds two changes, and by a slot."""
    with shop.connect() as connection, shop.owner() as owner:
        owner.execute(f"CREATE TABLE {table} (id int)")
        relation = find_relation(connection, table)
        found = ms._catalog.find_database("shop")
        assert found is not None
        install(connection, relation, mirror_columns(relation), ms._attaching.buffers(found))
        owner.execute(f"INSERT INTO {table} VALUES (1), (2)")
        slot = ms._attaching.slot(found).name
        connection.execute(f"CREATE PUBLICATION {slot}")  # type: ignore[arg-type]
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    path = lake / "mirrors" / "c1"
    path.mkdir(parents=True)
    capture = Capture(
        id="c1",
        database="shop",
        schema="public",
        table=table,
        oid=relation.oid,
        columns=(("id", "integer", "int"),),
        key=(),
        shape="",
        filenodes="",
        path=str(path),
    )
    database = replace(found, position={"snapshot": "9:9:"}, reached_at=datetime.now(UTC))
    ms._catalog.put_database(database, captures=[capture])
    name = TableName("shop.public", table)
    ms._catalog.put_lake_object(LakeObject(kind=ObjectKind.TABLE, name=name, location=str(path), provider="delta"))
    return capture


class TestAttach:
    def test_is_recorded_and_listed(self, ms: Millstream, shop: Shop) -> None:
        assert ms.sources() == []
        ms.attach("Shop", shop.address.reference)
        (source,) = ms.sources()
        assert (source.name, source.kind, source.cdc, source.mode) == ("shop", "postgres", "auto", "TRIGGER")
        assert (source.table, source.position, source.staleness, source.readers) == (None, None, None, ())
        assert source.address == shop.address.reference
        assert "millstream_changes" not in schemas_of(shop)  # capture makes it

    def test_another_process_sees_it(self, ms: Millstream, shop: Shop, tmp_path: Path) -> None:
        ms.attach("shop", shop.address.reference, cdc="trigger")
        with millstream.connect(tmp_path / "lake") as other:
            assert [s.cdc for s in other.sources()] == ["trigger"]

    def test_a_name_is_used_once(self, ms: Millstream, shop: Shop, server: Server) -> None:
        ms.attach("shop", shop.address.reference)
        assert error_of(ms, "SHOP", new_shop(server).address.reference).code is Code.NAME_TAKEN
        error = error_of(ms, "store", shop.address.reference)
        assert (error.code, "as shop" in error.message) == (Code.NAME_TAKEN, True)

    def test_again_changes_how_it_is_captured(self, ms: Millstream, shop: Shop) -> None:
        ms.attach("shop", shop.address.reference)
        ms.attach("Shop", shop.address.reference, cdc="trigger")
        assert [(s.name, s.cdc) for s in ms.sources()] == [("shop", "trigger")]
        assert error_of(ms, "shop", shop.address.reference, cdc="wal").code is Code.PRIVILEGE_MISSING
        assert [(s.name, s.cdc) for s in ms.sources()] == [("shop", "trigger")]

    def test_again_as_another_role_is_refused(self, ms: Millstream, shop: Shop) -> None:
        ms.attach("shop", shop.address.reference)
        error = error_of(ms, "shop", shop.server.url(shop.name, OWNER))
        assert (error.code, MILLSTREAM in error.message) == (Code.NAME_TAKEN, True)

    def test_another_database_of_the_same_name_is_refused(self, ms: Millstream, shop: Shop, server: Server) -> None:
        ms.attach("shop", shop.address.reference)
        other = new_shop(server)
        with server.superuser() as superuser:
            superuser.execute(f"ALTER DATABASE {shop.name} RENAME TO {shop.name}_old")
            superuser.execute(f"ALTER DATABASE {other.name} RENAME TO {shop.name}")
            try:
                assert error_of(ms, "shop", shop.address.reference).code is Code.NAME_TAKEN
            finally:
                superuser.execute(f"ALTER DATABASE {shop.name} RENAME TO {other.name}")
                superuser.execute(f"ALTER DATABASE {shop.name}_old RENAME TO {shop.name}")

    @pytest.mark.parametrize("name", ["", "a.b", "1a", "a b", "__ms_a", "default", "spark_catalog", "delta", 'x"y'])
    def test_a_name_must_be_plain(self, ms: Millstream, shop: Shop, name: str) -> None:
        assert error_of(ms, name, shop.address.reference).code is Code.NAME_INVALID

    def test_a_schema_of_the_lake_is_no_name(self, ms: Millstream, shop: Shop, tmp_path: Path) -> None:
        table = LakeObject(kind=ObjectKind.TABLE, name=TableName("sales", "t"), location="x", provider="delta")
        ms._catalog.put_lake_object(table)
        assert error_of(ms, "sales", shop.address.reference).code is Code.NAME_TAKEN
        (tmp_path / "lake" / "tables" / "empty.db").mkdir(parents=True)
        assert error_of(ms, "empty", shop.address.reference).code is Code.NAME_TAKEN

    def test_wrong_arguments(self, ms: Millstream, shop: Shop) -> None:
        assert error_of(ms, "shop", shop.address.reference, cdc="magic").code is Code.SETTING_INVALID
        assert error_of(ms, "shop", "mysql://x").code is Code.ADDRESS_INVALID
        assert error_of(ms, "shop", "postgresql://nobody@/none?host=/nowhere").code is Code.DATABASE_UNREACHABLE
        assert ms.sources() == []

    def test_missing_rights_are_said_as_grants(self, ms: Millstream, shop: Shop) -> None:
        with shop.owner() as owner:
            owner.execute(f'REVOKE CREATE ON DATABASE "{shop.name}" FROM {MILLSTREAM}')
        error = error_of(ms, "shop", shop.address.reference, cdc="wal")
        assert error.code is Code.PRIVILEGE_MISSING
        assert f'GRANT CREATE ON DATABASE "{shop.name}" TO "{MILLSTREAM}";' in str(error)
        assert f'ALTER ROLE "{MILLSTREAM}" REPLICATION;' in str(error)
        with shop.owner() as owner:
            owner.execute(f'GRANT CREATE ON DATABASE "{shop.name}" TO {MILLSTREAM}')
        ms.attach("shop", shop.address.reference)

    def test_schemas_out_of_reach_are_told_of(self, ms: Millstream, shop: Shop) -> None:
        with shop.owner() as owner:
            owner.execute("CREATE TABLE seen (id int)")
            owner.execute("CREATE SCHEMA hidden CREATE TABLE t (id int)")
        with pytest.warns(UserWarning, match="GRANT USAGE ON SCHEMA") as told:
            ms.attach("shop", shop.address.reference)
        (said,) = [str(w.message) for w in told]
        assert f'GRANT SELECT, TRIGGER ON ALL TABLES IN SCHEMA "hidden" TO "{MILLSTREAM}";' in said
        assert '"public"' not in said

    def test_two_lakes_need_schemas_of_their_own(self, ms: Millstream, shop: Shop, tmp_path: Path) -> None:
        ms.attach("shop", shop.address.reference)
        captured(ms, shop, tmp_path / "lake", "orders")
        with millstream.connect(tmp_path / "second") as second:
            error = error_of(second, "shop", shop.address.reference)
            assert (error.code, "change_buffer_schema" in str(error)) == (Code.NAME_TAKEN, True)
        config = tmp_path / "second.toml"
        config.write_text('[millstream]\nchange_buffer_schema = "second_changes"\n')
        with millstream.connect(tmp_path / "second", config=config) as second:
            second.attach("shop", shop.address.reference)
            second.detach("shop")
        assert schemas_of(shop) & {"millstream_changes", "second_changes"} == {"millstream_changes"}

    def test_an_unfit_server_is_refused(self, ms: Millstream) -> None:
        with Server(FAST) as other:
            shop = new_shop(other)
            with other.superuser() as superuser:
                superuser.execute(f"ALTER ROLE {MILLSTREAM} REPLICATION")
            error = error_of(ms, "shop", shop.address.reference, cdc="wal")
            assert (error.code, "wal_level" in str(error)) == (Code.DATABASE_UNFIT, True)
            other.stop()
            (other.data / "standby.signal").touch()
            other.start()
            error = error_of(ms, "shop", shop.address.reference)
            assert (error.code, "standby" in str(error)) == (Code.DATABASE_UNFIT, True)
        assert ms.sources() == []


class TestCommands:
    """The real thing behind the command line."""

    def test_attach_sources_detach(
        self, shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("millstream.service.runtime.Runtime", None)  # none of it may start Spark

        def run(*arguments: str) -> tuple[int, str]:
            code = main([*arguments, "--lake", str(tmp_path / "lake"), "--json"])
            return code, capsys.readouterr().out

        monkeypatch.setenv("MS_TEST_URL", shop.address.reference)
        assert run("attach", "shop", "env:MS_TEST_URL")[0] == 0
        code, out = run("sources")
        assert (code, json.loads(out)[0]["address"]) == (0, "env:MS_TEST_URL")
        code, out = run("detach", "shop", "--script")
        assert (code, "DROP SCHEMA" in json.loads(out)["script"]) == (0, True)
        assert run("status")[0] == 0
        assert run("detach", "shop")[0] == 0
        code, out = run("attach", "shop", "postgresql://me:hush@nowhere/shop")
        assert (code, json.loads(out)["error"]["code"], "hush" in out) == (1, "SECRET_IN_ADDRESS", False)


class TestSecrets:
    SECRET = "hush-4711"

    def test_none_is_stored_or_shown(
        self,
        ms: Millstream,
        shop: Shop,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        url = shop.address.reference.replace(f"{MILLSTREAM}@", f"{MILLSTREAM}:{self.SECRET}@")
        refused = error_of(ms, "shop", url)
        assert (refused.code, self.SECRET in str(refused)) == (Code.SECRET_IN_ADDRESS, False)
        monkeypatch.setenv("MS_TEST_URL", url)
        with caplog.at_level("DEBUG"), warnings.catch_warnings(record=True) as told:
            ms.attach("shop", "env:MS_TEST_URL")
        seen = [repr(ms.sources()), repr(ms._catalog.databases()), ms.detach_script("shop"), caplog.text, str(told)]
        monkeypatch.setenv("MS_TEST_URL", url.replace(shop.name, "nowhere"))
        with pytest.raises(MillstreamError) as caught:
            ms.detach("shop")
        seen.append(str(caught.value))
        assert caught.value.code is Code.DATABASE_UNREACHABLE
        assert all(self.SECRET not in text for text in seen)
        for file in (tmp_path / "lake").rglob("*"):
            assert not file.is_file() or self.SECRET.encode() not in file.read_bytes(), file


class TestDetach:
    @pytest.mark.usefixtures("replicator")
    def test_removes_everything_it_made(self, ms: Millstream, shop: Shop, tmp_path: Path) -> None:
        before = schemas_of(shop)
        ms.attach("shop", shop.address.reference)
        capture = captured(ms, shop, tmp_path / "lake", "orders")
        assert leftovers(shop) > (0, 0, 0)
        (source,) = ms.sources()
        assert (source.table, source.columns, source.buffered_rows) == ("shop.public.orders", ("id",), 2)
        assert source.position == "9:9:"
        assert source.staleness is not None
        assert 0 <= source.staleness < 60
        ms.detach("shop")
        assert ms.sources() == []
        assert schemas_of(shop) == before
        assert leftovers(shop) == (0, 0, 0)
        with shop.owner() as owner:
            owner.execute("INSERT INTO orders VALUES (1)")
        assert not Path(capture.path).exists()
        assert ms._catalog.lake_objects() == ()
        ms.attach("shop", shop.address.reference)  # and from the start

    @pytest.mark.usefixtures("replicator")
    def test_the_script_does_the_same_without_millstream(self, ms: Millstream, shop: Shop, tmp_path: Path) -> None:
        before = schemas_of(shop)
        ms.attach("shop", shop.address.reference)
        captured(ms, shop, tmp_path / "lake", "orders")
        with psycopg.connect(shop.server.url(shop.name, MILLSTREAM), autocommit=True) as plain:
            plain.execute(ms.detach_script("shop"))  # type: ignore[arg-type]
        assert schemas_of(shop) == before
        assert leftovers(shop) == (0, 0, 0)
        ms.detach("shop")  # nothing is left to remove, which is no error

    @pytest.mark.usefixtures("replicator")
    def test_a_superuser_may_run_the_script_too(self, ms: Millstream, shop: Shop, tmp_path: Path) -> None:
        before = schemas_of(shop)
        ms.attach("shop", shop.address.reference)
        captured(ms, shop, tmp_path / "lake", "orders")
        with shop.connect() as connection:
            ledger = Ledger("millstream")
            ledger.prepare(connection)
            target = Target(table_id=new_id(), schema="public", table="orders", columns=())
            ledger.add(connection, target, ms._catalog.lake_id(), "totals", 1, key=Key(None, False), types={})
        with shop.server.superuser(shop.name) as superuser:
            superuser.execute(ms.detach_script("shop"))  # type: ignore[arg-type]
            assert superuser.execute("SHOW role").fetchone() == ("none",)
        assert schemas_of(shop) == before
        assert leftovers(shop) == (0, 0, 0)

    def test_the_script_leaves_a_schema_of_another_lake_or_role_alone(self, ms: Millstream, shop: Shop) -> None:
        ms.attach("shop", shop.address.reference)
        mark = f"millstream's capture, lake {ms._catalog.lake_id()}"
        with shop.server.superuser(shop.name) as superuser:
            for owner, comment in ((OWNER, mark), (MILLSTREAM, "millstream's capture, lake another")):
                superuser.execute(f"CREATE SCHEMA millstream_changes AUTHORIZATION {owner}")
                superuser.execute(f"COMMENT ON SCHEMA millstream_changes IS '{comment.replace(chr(39), chr(39) * 2)}'")
                superuser.execute(ms.detach_script("shop"))  # type: ignore[arg-type]
                assert "millstream_changes" in schemas_of(shop)
                superuser.execute("DROP SCHEMA millstream_changes")

    def test_an_unknown_name(self, ms: Millstream) -> None:
        for call in (ms.detach, ms.detach_script):
            with pytest.raises(MillstreamError) as caught:
                call("shop")
            assert caught.value.code is Code.NOT_ATTACHED

    def test_an_unreachable_database_can_be_forgotten(self, ms: Millstream, server: Server) -> None:
        shop = new_shop(server)
        ms.attach("shop", shop.address.reference)
        with server.superuser() as superuser:
            superuser.execute(f'ALTER DATABASE "{shop.name}" RENAME TO "{shop.name}_away"')
        with pytest.raises(MillstreamError) as caught:
            ms.detach("shop")
        assert caught.value.code is Code.DATABASE_UNREACHABLE
        assert "--script" in str(caught.value)
        assert len(ms.sources()) == 1
        ms.detach("shop", forget=True)
        assert ms.sources() == []

    def test_is_refused_while_something_reads_it_or_is_served_there(self, ms: Millstream, shop: Shop) -> None:
        ms.attach("shop", shop.address.reference)
        record(ms, "totals", "shop.public.orders")
        served = record(ms, "best", "lake_table")
        ms._catalog.put_serving(
            Serving(
                table_id=served,
                database="shop",
                schema="public",
                table="best",
                details=ServingDetails(user_triggers="auto"),
            )
        )
        with pytest.raises(MillstreamError) as caught:
            ms.detach("shop")
        assert caught.value.code is Code.DEPENDENTS_EXIST
        assert "totals reads it, best is served as shop.public.best" in caught.value.message
        assert len(ms.sources()) == 1


def record(ms: Millstream, name: str, source: str) -> str:
    """A stream table in the catalog only."""
    dependency = Dependency(kind=SourceKind.TABLE, name=source, source_id="x")
    definition = Definition(
        original_query="", dialect="spark", body=body(), settings={}, columns=(), dependencies=(dependency,)
    )
    stage = Stage(id=new_id(), ordinal=0, path="x", is_public=True)
    table = NewStreamTable(
        id=new_id(),
        name=TableName.parse(name),
        schedule="1m",
        refresh_mode=RefreshMode.AUTO,
        definition=definition,
        stages=(stage,),
    )
    return ms._catalog.create_stream_table(table).id


@pytest.mark.parametrize("schema", ["", "pg_changes", "Changes", "a b", "a" * 39, 7])
def test_a_schema_for_buffers_has_a_plain_name(schema: object) -> None:
    with pytest.raises(MillstreamError) as caught:
        Settings.of({"change_buffer_schema": schema})
    assert caught.value.code is Code.SETTING_INVALID


def test_the_owner_can_attach_too(ms: Millstream, shop: Shop) -> None:
    ms.attach("shop", shop.server.url(shop.name, OWNER))
    ms.detach("shop")


def test_a_database_is_not_detached_while_a_capture_begins_or_ends(ms: Millstream, shop: Shop) -> None:
    ms.attach("shop", shop.address.reference)
    done = threading.Event()

    def detach() -> None:
        ms.detach("shop")
        done.set()

    thread = threading.Thread(target=detach)
    with ms._locks.acquire(["captures-shop"]):
        thread.start()
        assert not done.wait(0.5)
    thread.join(30)
    assert done.is_set()


def test_detaching_forgets_what_was_served(ms: Millstream, shop: Shop) -> None:
    ms.attach("shop", shop.address.reference)
    ledger = Ledger("millstream")
    with shop.connect() as connection, shop.owner() as owner:
        owner.execute("CREATE TABLE served (a int)")
        ledger.prepare(connection)
        for lake in (ms._catalog.lake_id(), "another lake"):
            target = Target(table_id=new_id(), schema="public", table="served", columns=())
            ledger.add(
                connection,
                target,
                lake,
                "totals",
                find_relation(connection, "served").oid,
                key=Key(None, False),
                types={},
            )
    ms.detach("shop")
    assert "millstream" in schemas_of(shop), "another lake serves, too"
    with shop.connect() as connection:
        connection.execute("DELETE FROM millstream.serving WHERE lake_id = 'another lake'")
    ms.attach("shop", shop.address.reference)
    ms.detach("shop")
    assert "millstream" not in schemas_of(shop)
    with shop.owner() as owner:
        assert owner.execute("SELECT count(*) FROM served").fetchone() == (0,)
