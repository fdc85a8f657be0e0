"""Names that are made to mean another relation between a look at it and the statement that names it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psycopg
import pytest

from kits.capture import open_kit
from kits.shops import Shop
from kits.swapped_names import (
    TABLE_FOR_TABLE,
    VIEW_FOR_MATERIALIZED,
    VIEW_FOR_TABLE,
    code_of,
    evil_runs,
    make_evil,
    swapped_while_waiting,
)
from kits.trigger_capture import Owner
from millstream.errors import Code
from millstream.postgres import locked_names
from millstream.sources.postgres.load import chunks as chunks_module
from millstream.sources.postgres.load.chunks import chunks, read_chunk
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffers import install
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.sources.postgres.values.types import mirror_columns
from millstream.sources.postgres.wal.publication import ensure_published, unpublish

pytestmark = pytest.mark.postgres


@pytest.fixture
def sources(owner: Owner) -> None:
    """A table and a materialized view, and the owner's function."""
    make_evil(owner)
    owner.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    owner.execute("INSERT INTO t VALUES (1, 10), (2, 20)")
    owner.execute("CREATE MATERIALIZED VIEW m AS SELECT * FROM t")


@pytest.fixture(params=["as it is", "an old minor"])
def setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that knows the setting that forbids views, and one that does not."""
    if request.param == "an old minor":
        monkeypatch.setattr(locked_names, "RESTRICTION", "restrict_nothing_that_is_known")


@pytest.mark.usefixtures("sources", "setting")
class TestReading:
    def test_a_table_that_is_locked_for_a_load(self, shop: Shop) -> None:
        with shop.connect() as connection:
            relation = find_relation(connection, "t")
        with swapped_while_waiting(shop, *VIEW_FOR_TABLE):
            code = code_of(lambda: ExportedSnapshot(shop.address, [relation]).__enter__())
        assert (code, evil_runs(shop)) == (Code.SOURCE_CHANGED, [])

    def test_a_chunk_that_a_worker_reads(self, shop: Shop) -> None:
        with shop.connect() as connection:
            relation = find_relation(connection, "t")
        columns = mirror_columns(relation, None)
        with ExportedSnapshot(shop.address) as snapshot:
            [piece] = chunks(snapshot.connection, relation, columns)
            snapshot.connection.execute("ROLLBACK AND CHAIN")  # whatever it holds: a worker must not rely on it
            row = snapshot.connection.execute("SELECT pg_export_snapshot()").fetchone()
            assert row is not None
            with swapped_while_waiting(shop, *VIEW_FOR_TABLE):
                code = code_of(lambda: list(read_chunk(snapshot.address, row[0], piece, columns)))
        assert (code, evil_runs(shop)) == (Code.SOURCE_CHANGED, [])

    def test_the_partition_that_a_worker_reads(self, shop: Shop, owner: Owner) -> None:
        owner.execute("CREATE TABLE p (id int, v int) PARTITION BY LIST (id)")
        owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
        owner.execute("INSERT INTO p VALUES (1, 10)")
        with shop.connect() as connection:
            relation = find_relation(connection, "p")
        columns = mirror_columns(relation, None)
        with ExportedSnapshot(shop.address) as snapshot:
            [piece] = chunks(snapshot.connection, relation, columns)
            assert piece.source.name == "p1"
            snapshot.connection.execute("ROLLBACK AND CHAIN")
            row = snapshot.connection.execute("SELECT pg_export_snapshot()").fetchone()
            assert row is not None
            with swapped_while_waiting(
                shop,
                "ALTER TABLE p DETACH PARTITION p1",
                "ALTER TABLE p1 RENAME TO p1_old",
                "CREATE VIEW p1 AS SELECT evil() AS id, v FROM p1_old",
            ):
                code = code_of(lambda: list(read_chunk(snapshot.address, row[0], piece, columns)))
        assert (code, evil_runs(shop)) == (Code.SOURCE_CHANGED, [])

    def test_a_materialized_view_that_a_worker_reads(self, shop: Shop) -> None:
        with shop.connect() as connection:
            relation = find_relation(connection, "m")
        columns = mirror_columns(relation, None)
        with ExportedSnapshot(shop.address) as snapshot:
            [piece] = chunks(snapshot.connection, relation, columns)
            with swapped_while_waiting(shop, *VIEW_FOR_MATERIALIZED):
                code = code_of(lambda: list(read_chunk(snapshot.address, snapshot.name, piece, columns)))
        assert (code, evil_runs(shop)) == (Code.SOURCE_CHANGED, [])

    def test_a_view_whose_rows_are_estimated(self, shop: Shop, owner: Owner) -> None:
        """It is read on purpose, and no other is read in its place."""
        owner.execute("CREATE VIEW w AS SELECT * FROM t")
        with shop.connect() as connection:
            relation = find_relation(connection, "w")
        with (
            ExportedSnapshot(shop.address) as snapshot,
            swapped_while_waiting(
                shop, "ALTER VIEW w RENAME TO w_old", "CREATE VIEW w AS SELECT evil() AS id, v FROM t"
            ),
        ):
            code = code_of(lambda: chunks(snapshot.connection, relation))
        assert (code, evil_runs(shop)) == (Code.SOURCE_CHANGED, [])

    def test_what_is_held_cannot_be_exchanged(self, shop: Shop, owner: Owner) -> None:
        owner.execute("SET lock_timeout = '100ms'")
        for name, statements in {"t": VIEW_FOR_TABLE, "m": VIEW_FOR_MATERIALIZED}.items():
            with shop.connect() as connection:
                relation = find_relation(connection, name)
            with ExportedSnapshot(shop.address, [relation]), pytest.raises(psycopg.errors.LockNotAvailable):
                owner.execute(statements[0])


@pytest.mark.usefixtures("sources")
class TestReadingInARenamedSchema:
    """No lock on a table holds its schema: what the name has come to mean is refused, or read in vain."""

    @pytest.fixture(autouse=True)
    def _renamed_at_the_last_moment(self, owner: Owner, sources: None, monkeypatch: pytest.MonkeyPatch) -> None:
        owner.execute("CREATE SCHEMA s")
        owner.execute("GRANT USAGE ON SCHEMA s TO millstream")
        owner.execute("CREATE TABLE s.t AS SELECT * FROM public.t")
        owner.execute("GRANT SELECT ON s.t TO millstream")
        self.replacement = "TABLE"
        original = chunks_module._copied

        def renamed_first(connection: object, query: object) -> object:
            owner.execute("ALTER SCHEMA s RENAME TO s_old")
            owner.execute("CREATE SCHEMA s")
            owner.execute("GRANT USAGE ON SCHEMA s TO millstream")
            owner.execute(f"CREATE {self.replacement} s.t AS SELECT public.evil() AS id, 99 AS v")
            owner.execute("GRANT SELECT ON s.t TO millstream")
            return original(connection, query)  # type: ignore[arg-type]

        monkeypatch.setattr(chunks_module, "_copied", renamed_first)

    @pytest.mark.parametrize("replacement", ["VIEW", "TABLE"])
    def test_another_relation_is_not_read(self, shop: Shop, replacement: str) -> None:
        self.replacement = replacement
        with shop.connect() as connection:
            relation = find_relation(connection, "t", "s")
        columns = mirror_columns(relation, None)
        with ExportedSnapshot(shop.address, [relation]) as snapshot:
            [piece] = chunks(snapshot.connection, relation, columns)
            code = code_of(lambda: list(read_chunk(snapshot.address, snapshot.name, piece, columns)))
        assert (code, evil_runs(shop)) == (Code.SOURCE_CHANGED, [])


@pytest.mark.usefixtures("sources", "setting")
class TestTicks:
    def test_a_table_that_is_to_be_compared(self, shop: Shop, owner: Owner, tmp_path: Path) -> None:
        with open_kit(tmp_path / "lake", shop.address) as kit:
            kit.read("r", "t", "id", "v")
            owner.execute("VACUUM FULL t")
            with swapped_while_waiting(shop, *VIEW_FOR_TABLE):
                code = code_of(lambda: kit.tick("t"))
            assert (code, evil_runs(shop)) == (Code.SOURCE_NO_CHANGE_FEED, [])
            owner.execute("DROP VIEW t")
            owner.execute("ALTER TABLE t_old RENAME TO t")
            owner.execute("INSERT INTO t VALUES (3, 30)")
            kit.tick("t")
            kit.assert_exact(owner, "t")

    def test_a_table_that_is_being_loaded(self, shop: Shop, owner: Owner, tmp_path: Path) -> None:
        with open_kit(tmp_path / "lake", shop.address) as kit:
            with swapped_while_waiting(shop, *VIEW_FOR_TABLE):
                code = code_of(lambda: kit.read("r", "t", "id", "v"))
            assert (code, evil_runs(shop)) == (Code.SOURCE_CHANGED, [])
            assert owner.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)

    def test_a_view_under_the_name_of_a_table(self, shop: Shop, owner: Owner, tmp_path: Path) -> None:
        with open_kit(tmp_path / "lake", shop.address) as kit:
            for statement in VIEW_FOR_TABLE:
                owner.execute(statement)
            code = code_of(lambda: kit.read("r", "t", "id", "v"))
            assert (code, evil_runs(shop)) == (Code.SOURCE_CHANGED, [])

    def test_a_materialized_view_that_is_a_view_now(self, shop: Shop, owner: Owner, tmp_path: Path) -> None:
        with open_kit(tmp_path / "lake", shop.address) as kit:
            kit.read("r", "m", "id", "v")
            for statement in VIEW_FOR_MATERIALIZED:
                owner.execute(statement)
            code = code_of(lambda: kit.tick("m"))
            assert (code, evil_runs(shop)) == (Code.SOURCE_NO_CHANGE_FEED, [])
            owner.execute("DROP VIEW m")
            owner.execute("ALTER MATERIALIZED VIEW m_old RENAME TO m")
            owner.execute("INSERT INTO t VALUES (3, 30)")
            owner.execute("REFRESH MATERIALIZED VIEW m")
            kit.tick("m")
            kit.assert_exact(owner, "m")

    def test_a_materialized_view_while_it_is_read(self, shop: Shop, owner: Owner, tmp_path: Path) -> None:
        with open_kit(tmp_path / "lake", shop.address) as kit:
            kit.read("r", "m", "id", "v")
            with swapped_while_waiting(shop, *VIEW_FOR_MATERIALIZED):
                code = code_of(lambda: kit.tick("m"))
            assert (code, evil_runs(shop)) == (Code.SOURCE_NO_CHANGE_FEED, [])


@pytest.mark.usefixtures("sources")
class TestDefinitions:
    def test_triggers_are_not_put_on_another_table(self, shop: Shop, owner: Owner) -> None:
        with shop.connect() as connection:
            relation = find_relation(connection, "t")
            columns = mirror_columns(relation, None)
            settings = BufferSettings(lock_timeout_ms=8_000)
            with swapped_while_waiting(shop, *TABLE_FOR_TABLE):
                code = code_of(lambda: install(connection, relation, columns, settings))
        assert code is Code.SOURCE_CHANGED
        assert owner.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)

    def test_another_table_is_not_published_nor_another_taken_out(self, shop: Shop, owner: Owner) -> None:
        settings = BufferSettings(lock_timeout_ms=8_000)
        with shop.server.superuser() as admin:
            admin.execute("GRANT shop_owner TO millstream")
        try:
            with shop.connect() as connection:
                relation = find_relation(connection, "t")
                with swapped_while_waiting(shop, *TABLE_FOR_TABLE):
                    code = code_of(lambda: ensure_published(connection, "pub", [(relation, ["id"])], settings))
                assert code is Code.SOURCE_CHANGED
                assert owner.execute("SELECT * FROM pg_publication_tables").fetchall() == []
                other = find_relation(connection, "t")
                ensure_published(connection, "pub", [(other, ["id"])], settings)
                owner.execute("CREATE TABLE u (id int PRIMARY KEY)")
                ensure_published(connection, "pub", [(find_relation(connection, "u"), ["id"])], settings)
                with swapped_while_waiting(
                    shop, "ALTER TABLE t RENAME TO t_older", "ALTER TABLE u RENAME TO t", "ALTER TABLE t RENAME TO u",
                    "ALTER TABLE u RENAME TO v", "ALTER TABLE t_older RENAME TO u", "ALTER TABLE v RENAME TO t",
                ):  # fmt: skip
                    unpublish(connection, "pub", other.oid, settings)
                left = owner.execute("SELECT prrelid::regclass::text FROM pg_publication_rel").fetchall()
                assert Counter(left) == Counter([("t",)])  # what was u
        finally:
            with shop.server.superuser() as admin:
                admin.execute("REVOKE shop_owner FROM millstream")
