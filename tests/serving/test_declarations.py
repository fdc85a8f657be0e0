"""Beginning to serve and ending it, as the catalog and the database see it; no row is served, so no Spark is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kits.capture import DriverOnly
from kits.shops import Shop
from kits.stage_feed import StoredStage
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase
from millstream.catalog.models import StreamTable
from millstream.errors import Code, MillstreamError
from millstream.lake.served_key import ServedKey
from millstream.naming import TableName
from millstream.notices import NoticeWarning
from millstream.postgres.connection import connect
from millstream.postgres.identity import identify
from millstream.postgres.pool import ConnectionPool
from millstream.serving.declarations import ServeOptions, ServingDefinitions
from millstream.serving.table_server import TableServer
from millstream.settings import Settings
from millstream.sinks.postgres.ledger import Ledger
from millstream.sinks.postgres.serve import PostgresSink

pytestmark = pytest.mark.postgres
TO = ServeOptions("shop.public.totals")


@dataclass
class Kit:
    """A catalog with `shop` attached and a stream table in it."""

    catalog: Catalog
    root: Path
    shop: Shop
    table: StreamTable
    server: TableServer | None = None
    connections: ConnectionPool = field(default_factory=ConnectionPool)

    def servings(self, settings: Settings | None = None) -> ServingDefinitions:
        """What a process with these settings has."""
        settings = settings or Settings()
        self.server = TableServer(
            self.catalog,
            settings,
            self.root / "spill",
            lambda _: ServedKey(("k",), is_total=False),
            lambda _: None,
            self.connections,
        )
        workers: Any = DriverOnly(settings)
        return ServingDefinitions(self.catalog, workers, self.server, settings, lambda _: ServedKey())

    def has(self, *names: str) -> list[bool]:
        """Whether the database has those tables and schemas."""
        found = []
        with self.shop.server.superuser(self.shop.name) as connection:
            for name in names:
                lookup = "to_regclass" if "." in name else "to_regnamespace"
                found += connection.execute(f"SELECT {lookup}(%s) IS NOT NULL", [name]).fetchall()
        return [bool(is_there) for (is_there,) in found]


@pytest.fixture
def kit(tmp_path: Path, shop: Shop) -> Iterator[Kit]:
    with shop.owner() as owner:
        owner.execute("GRANT CREATE ON SCHEMA public TO millstream")
    with connect(shop.address) as connection:
        found = identify(connection)
    with Catalog.open(tmp_path) as catalog:
        catalog.put_database(
            AttachedDatabase(
                name="shop",
                address=shop.address.reference,
                cdc="trigger",
                system=found.system,
                timeline=found.timeline,
                database=found.database,
                database_oid=found.oid,
            )
        )
        stage = StoredStage(tmp_path / "stage")
        stage.add((1, "a"))
        yield Kit(catalog, tmp_path, shop, catalog.create_stream_table(stage.new_table))


def losing(shop: Shop, step: Callable[..., Any], *, after_commit: bool = False) -> Callable[..., Any]:
    """A step after which the connection is lost."""

    def lost(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = step(self, *args, **kwargs)
        with shop.server.superuser() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [shop.name]
            )
        if after_commit:
            raise MillstreamError(Code.DATABASE_UNREACHABLE, "the connection was lost")
        return done

    return lost


def test_the_schema_of_the_bookkeeping_stays_what_it_was(kit: Kit) -> None:
    kit.servings(Settings(serving_schema="one")).declare(kit.table, TO)
    assert kit.has("one.serving", "public.totals") == [True, True]
    kit.servings(Settings(serving_schema="two")).stop(kit.table)
    assert kit.has("one", "two", "public.totals") == [False, False, False]


def test_a_rehearsal_leaves_all_as_it_is(kit: Kit) -> None:
    """Also where the bookkeeping is to lie elsewhere: the present table is dropped by that which it is in."""
    kit.servings(Settings(serving_schema="one")).declare(kit.table, TO)
    with kit.shop.server.superuser(kit.shop.name) as connection:
        connection.execute("CREATE VIEW public.reads_it AS SELECT k FROM public.totals")
    schema, key = pa.schema([("k", pa.int64())]), ServedKey(("k",), is_total=True)
    later, to = kit.servings(Settings(serving_schema="two")), ServeOptions("shop.public.other")
    with pytest.raises(MillstreamError) as refused:
        later.rehearse_result(kit.table, schema, key, to)
    assert refused.value.code is Code.DEPENDENTS_EXIST
    with kit.shop.server.superuser(kit.shop.name) as connection:
        connection.execute("DROP VIEW public.reads_it")
    later.rehearse_result(kit.table, schema, key, to)
    assert kit.has("one.serving", "public.totals", "two", "public.other") == [True, True, False, False]
    later.stop(kit.table)
    later.declare(kit.table, to)
    assert kit.has("one", "public.totals", "two.serving", "public.other") == [False, False, True, True]


def test_a_rehearsal_declares_the_key(kit: Kit) -> None:
    servings, to = kit.servings(), ServeOptions("shop.other")
    servings.declare(kit.table, TO)
    names = [f"k{i}" for i in range(33)]
    schema = pa.schema([(n, pa.int64()) for n in names])
    servings.rehearse_result(kit.table, schema, ServedKey(tuple(names), is_total=True), to)
    with pytest.raises(MillstreamError) as refused:
        servings.rehearse_result(kit.table, schema, ServedKey(("no column",), is_total=True), to)
    assert refused.value.code is Code.SERVE_FAILED
    assert kit.has("public.totals", "public.other") == [True, False]


def test_options_change_where_it_is_served_already(kit: Kit) -> None:
    servings = kit.servings()
    servings.declare(kit.table, ServeOptions(TO.to, user_triggers="off", grants=["stranger"]))
    with kit.shop.server.superuser(kit.shop.name) as connection:
        connection.execute("GRANT shop_owner TO millstream")
        connection.execute("REVOKE ALL ON public.totals FROM stranger")
    try:
        assert servings.declare(kit.table, ServeOptions("SHOP.totals", owner="shop_owner", grants=["PUBLIC"])) is None
    finally:
        with kit.shop.server.superuser() as connection:
            connection.execute("REVOKE shop_owner FROM millstream")
    [serving] = kit.catalog.servings()
    assert (serving.details.user_triggers, serving.details.grants) == ("off", ("stranger", "PUBLIC"))
    with kit.shop.server.superuser(kit.shop.name) as connection:
        assert connection.execute("SELECT tableowner FROM pg_tables WHERE tablename = 'totals'").fetchall() == [
            ("shop_owner",)
        ]
        assert connection.execute("SELECT has_table_privilege('stranger', 'totals', 'SELECT')").fetchone() == (True,)
    with pytest.raises(MillstreamError) as refused:
        servings.declare(kit.table, ServeOptions("shop.other"))
    assert refused.value.code is Code.SERVE_FAILED


def test_a_database_that_is_detached_is_left_alone(kit: Kit) -> None:
    kit.servings().declare(kit.table, TO)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND usename = 'millstream'"
    with kit.shop.server.superuser() as connection:
        assert connection.execute(sessions, [kit.shop.name]).fetchone() == (1,)
        kit.connections.disconnect("shop")
        until = time.monotonic() + 10
        while connection.execute(sessions, [kit.shop.name]).fetchone() != (0,):
            assert time.monotonic() < until
            time.sleep(0.02)


@pytest.mark.parametrize("chosen", ["table", "setting"])
def test_on_is_an_old_name_of_auto(kit: Kit, chosen: str) -> None:
    servings = kit.servings(Settings(user_triggers="on") if chosen == "setting" else None)
    with pytest.warns(NoticeWarning, match="old name"):
        servings.declare(kit.table, ServeOptions(TO.to, user_triggers="ON" if chosen == "table" else None))
    assert [s.details.user_triggers for s in kit.catalog.servings()] == ["auto"]


def test_other_ways_to_treat_triggers_are_refused(kit: Kit) -> None:
    with pytest.raises(MillstreamError) as refused:
        kit.servings().declare(kit.table, ServeOptions(TO.to, user_triggers="perhaps"))
    assert (refused.value.code, kit.catalog.servings()) == (Code.SETTING_INVALID, ())


@pytest.mark.parametrize("is_made", [False, True])
def test_a_connection_lost_while_serving_begins_leaves_the_record(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    with monkeypatch.context() as patch:
        if is_made:
            patch.setattr(PostgresSink, "declare", losing(kit.shop, PostgresSink.declare, after_commit=True))
        else:
            patch.setattr(Ledger, "add", losing(kit.shop, Ledger.add))
        with pytest.raises(MillstreamError) as lost:
            kit.servings().declare(kit.table, TO)
    assert lost.value.code is Code.DATABASE_UNREACHABLE
    assert kit.has("public.totals") == [is_made]
    assert [s.table_id for s in kit.catalog.servings()] == [kit.table.id]
    kit.servings().stop(kit.table)
    assert kit.has("public.totals", "millstream") == [False, False]
    assert kit.catalog.servings() == ()


def test_a_database_that_was_never_reached_leaves_no_record(kit: Kit) -> None:
    with kit.shop.server.superuser() as connection:
        connection.execute(f'DROP DATABASE "{kit.shop.name}" WITH (FORCE)')
    with pytest.raises(MillstreamError) as lost:
        kit.servings().declare(kit.table, TO)
    assert (lost.value.code, kit.catalog.servings()) == (Code.DATABASE_UNREACHABLE, ())


def test_a_table_that_nobody_has_ever_been_served_is_not_in_the_way(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A CREATE that lost its connection takes everything back here, and cannot there."""
    with monkeypatch.context() as patch:
        patch.setattr(PostgresSink, "declare", losing(kit.shop, PostgresSink.declare, after_commit=True))
        with pytest.raises(MillstreamError):
            kit.servings().declare(kit.table, TO)
    kit.catalog.drop_serving(kit.table.id)
    kit.catalog.drop_stream_table(TableName.parse("totals"))
    stage = StoredStage(tmp_path / "again")
    stage.add((1, "a"))
    again = kit.catalog.create_stream_table(stage.new_table)
    kit.servings().declare(again, TO)
    with kit.shop.connect() as connection:
        assert connection.execute("SELECT stream_table_id FROM millstream.serving").fetchall() == [(again.id,)]
        connection.execute("UPDATE millstream.serving SET version = 1")  # from now on it holds what somebody reads
    kit.catalog.drop_serving(again.id)
    with pytest.raises(MillstreamError) as refused:
        kit.servings().declare(again, TO)
    assert refused.value.code is Code.NAME_TAKEN


def test_a_table_that_was_renamed_does_not_survive(kit: Kit) -> None:
    kit.servings().declare(kit.table, TO)
    with kit.shop.server.superuser(kit.shop.name) as connection:
        connection.execute("CREATE SCHEMA aside; GRANT USAGE ON SCHEMA aside TO millstream")
        connection.execute('ALTER TABLE public.totals RENAME TO "My totals"')
        connection.execute('ALTER TABLE public."My totals" SET SCHEMA aside; CREATE TABLE public.totals (mine int)')
    kit.servings().stop(kit.table)
    assert kit.has('aside."My totals"', "public.totals", "millstream") == [False, True, False]


def test_a_table_that_was_restored_from_a_dump_does_not_survive(kit: Kit) -> None:
    kit.servings().declare(kit.table, TO)
    with kit.shop.server.superuser(kit.shop.name) as connection:
        connection.execute("UPDATE millstream.serving SET relation = 'pg_class'::regclass")
    kit.servings().stop(kit.table)
    assert kit.has("public.totals", "pg_catalog.pg_class") == [False, True]
