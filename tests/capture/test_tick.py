"""Ticks: all mirrors of a database at one snapshot of it, and without Spark."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kits.capture import Kit, open_kit
from kits.shops import Shop, new_shop
from kits.tick_tables import Owner, both, kit, owner
from millstream import Code, MillstreamError
from millstream.capture.ending import sweep
from millstream.catalog import Catalog
from millstream.catalog.attached import Capture
from millstream.catalog.models import ObjectKind
from millstream.engine.storage import RangeKind
from millstream.postgres.connection import Connection
from millstream.reasons import CaptureReason
from millstream.results import Portion
from millstream.sources.postgres import memory_limit
from millstream.sources.postgres.triggers import buffer_changes
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.sources.postgres.uninstall import buffered_rows
from millstream.testing.postgres_server import Server

__all__ = ["both", "kit", "owner"]
pytestmark = pytest.mark.postgres


def test_nothing_happened(both: Kit) -> None:
    both.tick()  # before PostgreSQL 17 a tick that has to flush the WAL does that by a transaction, which the next sees
    before = (both.database, both.tick(), both.tick())
    assert before[1] == before[2] == {"shop.public.bag": 1, "shop.public.t": 1}
    assert both.database == before[0], "a tick that finds nothing writes nothing"


def test_how_far_a_load_has_come_is_reported(kit: Kit, owner: Owner) -> None:
    owner.execute("ANALYZE t")
    kit.read("a", "t", "id", "v")
    reported = [text for text in kit.said if isinstance(text, Portion)]
    assert [(text, text.share) for text in reported] == [("reading public.t: 20 of about 20 rows", 1.0)]


def test_every_kind_of_change(both: Kit, owner: Owner) -> None:
    for statement in (
        "INSERT INTO t VALUES (21, 'x', 1, '')",
        "UPDATE t SET n = n + 1, v = NULL WHERE id < 5",
        "UPDATE t SET id = id + 1000",
        "WITH x AS (DELETE FROM t WHERE id % 2 = 0) INSERT INTO bag VALUES ('b', 1)",
        "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)",
        "UPDATE bag SET d = -d",
        "INSERT INTO t VALUES (1, 'y', 2, '') ON CONFLICT (id) DO UPDATE SET v = 'z'",
        "TRUNCATE t",
        "INSERT INTO t VALUES (5, 'after', 1, '')",
        "TRUNCATE t, bag",
    ):
        owner.execute(statement)
        both.tick()
        both.assert_exact(owner, "t", "bag")
    both.assert_nothing_twice()


def test_commits_say_where_in_which_database_they_are(both: Kit, owner: Owner, shop: Shop) -> None:
    with shop.server.superuser(shop.name) as superuser:
        row = superuser.execute(
            "SELECT system_identifier::text, timeline_id FROM pg_control_system(), pg_control_checkpoint()"
        ).fetchone()
    assert row is not None
    here = {"system": row[0], "timeline": row[1], "database": shop.name}
    loaded = both.commit_says("t")
    assert {**loaded["postgres"], "position": None} == {**here, "position": None}
    owner.execute("UPDATE t SET n = n + 1")
    both.tick()
    after = both.commit_says("t")
    assert after == {"postgres": {**here, "position": both.database.position}}
    assert set(after["postgres"]["position"]) == {"snapshot"}
    assert after != loaded


def test_what_no_reader_uses_is_no_commit(both: Kit, owner: Owner) -> None:
    before = both.commits("t")
    owner.execute("UPDATE t SET unused = 'other'")
    owner.execute("UPDATE t SET v = v")
    owner.execute("ALTER TABLE t ADD more int DEFAULT 1, DROP unused")
    both.tick()
    assert both.commits("t") == before
    both.assert_exact(owner, "t")


def test_late_commits_come_with_the_next_tick(both: Kit, owner: Owner, shop: Shop) -> None:
    with shop.owner() as late:
        late.autocommit = False
        late.execute("INSERT INTO t VALUES (100, 'late', 1, '')")
        owner.execute("INSERT INTO t VALUES (101, 'early', 1, '')")
        both.tick()
        assert len(both.mirrored("t")) == 21
        late.commit()
    both.tick()
    both.assert_exact(owner, "t")


def test_a_second_reader_needs_more_columns(both: Kit, owner: Owner) -> None:
    path, version = both.capture("t").path, both.capture("t").version
    owner.execute("UPDATE t SET n = -1 WHERE id = 3")
    both.read("c", "t", "unused")
    both.tick()
    both.assert_exact(owner, "t")
    after = both.capture("t")
    assert after.path == path
    assert [name for name, _, _ in after.columns] == ["id", "v", "n", "unused"]
    assert version is not None
    assert after.version is not None
    summary = both.store.classify(path, version, after.version, ["id", "v", "n"])
    assert (summary.kind, summary.changed_rows) == (RangeKind.MUTATING, 1), "the update, not the new column"
    owner.execute("UPDATE t SET unused = 'w' WHERE id = 4")
    both.tick()
    both.assert_exact(owner, "t")
    both.read("d", "t", "v")
    assert both.capture("t").version == after.version + 1, "nothing more is needed"


def test_capture_ends_with_the_last_reader(both: Kit, owner: Owner, shop: Shop) -> None:
    both.read("c", "t", "v")
    both.forget("a")
    assert len(both.catalog.captures("shop")) == 2
    both.forget("c")
    both.forget("b")
    assert both.catalog.captures("shop") == ()
    assert list((both.root / "mirrors").iterdir()) == []
    assert owner.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'millstream%'").fetchone() == (0,)
    assert both.catalog.lake_objects(ObjectKind.TABLE) == ()


def test_a_mirror_that_is_made_while_others_are_swept(both: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of another database is being loaded: its capture was recorded after those that are known were read."""
    made, read = both.root / "mirrors" / "made", Catalog.captures

    def slow(catalog: Catalog, database: str | None = None) -> tuple[Capture, ...]:
        found = read(catalog, database)
        made.mkdir()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Catalog, "captures", slow)
        sweep(both.catalog, both.root / "mirrors")
    assert made.exists()
    sweep(both.catalog, both.root / "mirrors")
    assert not made.exists(), "nobody has recorded it"


def test_what_nothing_captures_is_compared_when_it_is_read(kit: Kit, owner: Owner) -> None:
    owner.execute("CREATE MATERIALIZED VIEW m AS SELECT id, v FROM t")
    kit.read("a", "m", "id", "v")
    kit.read("b", "t", "v")
    kit.tick("m")
    kit.assert_exact(owner, "m")
    before = kit.mirrored("m")
    owner.execute("UPDATE t SET v = 'x' WHERE id = 1")
    owner.execute("REFRESH MATERIALIZED VIEW m")
    kit.tick("t")
    assert kit.mirrored("m") == before
    kit.tick("m", "t")
    kit.assert_exact(owner, "m", "t")
    version = kit.commits("m")
    kit.tick("m")
    assert kit.commits("m") == version


def test_more_changes_than_are_held(both: Kit, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest windows are not read: those tables are compared with their mirrors."""
    monkeypatch.setattr(memory_limit, "MAX_BYTES", 20_000)
    read, real = list[int](), buffer_changes._copy
    monkeypatch.setattr(
        buffer_changes,
        "_copy",
        lambda connection, buffer, *a: (read.append(buffer.oid), real(connection, buffer, *a))[1],
    )
    owner.execute("INSERT INTO t SELECT i, repeat('x', 100), 1, '' FROM generate_series(100, 400) i")
    owner.execute("INSERT INTO bag VALUES ('small', 1)")
    both.tick()
    both.assert_exact(owner, "t", "bag")
    assert read == [both.capture("bag").oid] * len(read)
    assert [s for s in both.said if "comparing" in s] == [
        f"comparing shop.public.t with its mirror: {CaptureReason.TOO_MUCH}"
    ]
    for statement in ("UPDATE t SET n = 7 WHERE id = 3", "UPDATE t SET v = v || 'y'", "TRUNCATE t", "DELETE FROM bag"):
        owner.execute(statement)
        both.tick()
        both.assert_exact(owner, "t", "bag")
    assert both.capture("t").oid in read, "a small window again"
    both.assert_nothing_twice()


def test_captures_begin_and_end_while_others_tick(both: Kit, owner: Owner, shop: Shop) -> None:
    """Two lakes' processes would do the same: locks are taken in one order, and no change is lost."""
    stop, wrong = threading.Event(), list[BaseException]()

    def ticking() -> None:
        try:
            with open_kit(both.root, shop.address) as other:
                while not stop.wait(0.02):  # a thread that ticks without a pause keeps the lock from others
                    other.tick()
        except BaseException as error:  # noqa: BLE001 - shown below
            wrong.append(error)

    def writing() -> None:
        with shop.owner() as writer:
            while not stop.is_set():
                writer.execute("WITH x AS (UPDATE t SET n = n + 1) UPDATE bag SET d = d + 1")

    threads = [threading.Thread(target=f) for f in (ticking, ticking, writing)]
    for thread in threads:
        thread.start()
    try:
        for number in range(6):
            both.read(f"r{number}", "t", *(("unused",) if number == 3 else ()))
            if number == 0:
                both.forget("a")
            elif number % 2:
                both.forget(f"r{number - 1}")
            both.tick()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    both.tick()
    both.assert_exact(owner, "t", "bag")
    both.assert_nothing_twice()


def buffered(connection: Connection, oid: int) -> int:
    """How many changes of a table wait."""
    return buffered_rows(connection, BufferSettings(), [oid])[oid]


def test_buffers_are_trimmed(both: Kit, owner: Owner, shop: Shop) -> None:
    owner.execute("UPDATE t SET n = n + 1")
    both.tick()
    with shop.connect() as connection:
        assert buffered(connection, both.capture("t").oid) == 0


@pytest.mark.parametrize("is_there_before", [True, False])
def test_a_publication_of_all_tables_forbids_nothing(kit: Kit, owner: Owner, shop: Shop, is_there_before: bool) -> None:
    """It has the buffers, too: what has no replica identity then cannot be deleted from."""

    def publish() -> None:
        with shop.server.superuser(shop.name) as superuser:
            superuser.execute("CREATE PUBLICATION everything FOR ALL TABLES")

    owner.execute("CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY LIST (k)")
    owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1, 2, 3)")
    if is_there_before:
        publish()
    kit.read("a", "t", "v", "n")
    kit.read("b", "p", "v")
    kit.tick()
    if not is_there_before:
        publish()
    for statement in (
        "INSERT INTO p VALUES (1, 'x'), (2, NULL)",
        "WITH x AS (UPDATE t SET n = n + 1) UPDATE p SET v = v || '!'",
        "WITH x AS (DELETE FROM t WHERE id < 5) DELETE FROM p WHERE v IS NULL",
        "TRUNCATE t, p",
    ):
        owner.execute(statement)
        kit.tick()
        kit.assert_exact(owner, "t", "p")
        with shop.connect() as connection:
            for table in ("t", "p"):
                assert buffered(connection, kit.capture(table).oid) == 0
    kit.read("c", "t", "unused")
    kit.forget("b")
    owner.execute("INSERT INTO t VALUES (1, 'after', 1, 'all')")
    kit.tick()
    kit.assert_exact(owner, "t")


def test_a_server_without_flushing_messages(old_server: Server, tmp_path: Path) -> None:
    """Before PostgreSQL 17 only a commit makes others durable, and a poll is a transaction that cannot commit."""
    shop = new_shop(old_server)
    with shop.owner() as owner, open_kit(tmp_path / "lake", shop.address) as kit:
        owner.execute("SET synchronous_commit = off")
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        kit.read("a", "t", "id", "v")
        for number in range(5):
            owner.execute("INSERT INTO t VALUES (%s, 'x')", [number])
            kit.tick()
            kit.assert_exact(owner, "t")


def test_a_value_that_was_corrected_since(kit: Kit, owner: Owner) -> None:
    owner.execute("CREATE TABLE d (id int PRIMARY KEY, d date)")
    kit.read("a", "d", "id", "d")
    kit.read("b", "bag", "v", "d")
    kit.tick()
    owner.execute("INSERT INTO d VALUES (1, 'infinity'), (2, '2024-01-01')")
    with pytest.raises(MillstreamError) as caught:
        kit.tick("d")
    assert caught.value.code is Code.VALUE_UNSUPPORTED
    owner.execute("UPDATE d SET d = '2024-01-02' WHERE id = 1")
    owner.execute("UPDATE bag SET v = 'goes on'")
    kit.tick("d")
    kit.assert_exact(owner, "d", "bag")
