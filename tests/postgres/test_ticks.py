"""Ticks: all mirrors of a database at one snapshot of it, whatever happened to its tables, and without Spark."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import capture_kit
import psycopg
import pyarrow as pa
import pytest
from capture_kit import DriverOnly, Kit, open_kit
from shops import Shop, new_shop

import millstream
from millstream import Code, MillstreamError
from millstream.catalog.attached import STALE
from millstream.catalog.models import ObjectKind
from millstream.engine.storage import ChangeSet, RangeKind, Txn
from millstream.naming import TableName
from millstream.refresh.capture.landing import Landing
from millstream.refresh.capture.record import MISSING
from millstream.refresh.capture.tick import Tick
from millstream.refresh.locks import locks_for
from millstream.service.captured import CapturedTables
from millstream.service.notices import CaptureWarning
from millstream.settings import Settings
from millstream.sources.postgres import held, windows
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

Owner = psycopg.Connection[Any]


@pytest.fixture
def owner(shop: Shop) -> Iterator[Owner]:
    with shop.owner() as connection:
        for statement in (
            "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(10,2), unused text)",
            "INSERT INTO t SELECT i, 'v' || i, i, 'u' FROM generate_series(1, 20) i",
            "CREATE TABLE bag (v text, d float8)",
            "INSERT INTO bag VALUES ('a', 0), ('a', 0), ('a', '-0'), (NULL, 'NaN')",
        ):
            connection.execute(statement)
        yield connection


@pytest.fixture
def kit(shop: Shop, owner: Owner, tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path / "lake", shop.address) as opened:
        yield opened


@pytest.fixture
def both(kit: Kit, owner: Owner) -> Kit:
    kit.read("a", "t", "v", "n")
    kit.read("b", "bag", "v", "d")
    kit.tick()
    kit.assert_exact(owner, "t", "bag")
    return kit


def test_nothing_happened(both: Kit) -> None:
    both.tick()  # before PostgreSQL 17 a tick that has to flush the WAL does that by a transaction, which the next sees
    before = (both.database, both.tick(), both.tick())
    assert before[1] == before[2] == {"shop.public.bag": 1, "shop.public.t": 1}
    assert both.database == before[0], "a tick that finds nothing writes nothing"


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


@pytest.mark.parametrize(
    "statement",
    [
        "VACUUM FULL t",
        "CLUSTER t USING t_pkey",
        "ALTER TABLE t ALTER v TYPE text USING v || '!'",
        "ALTER TABLE t ALTER v TYPE varchar(30)",
        "ALTER TABLE t DROP v; ALTER TABLE t ADD v text DEFAULT 'new'",
        "ALTER TABLE t DISABLE TRIGGER USER; DELETE FROM t WHERE id < 9; ALTER TABLE t ENABLE TRIGGER USER",
        "ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t VALUES (1, 'twice', 1, '')",
        "ALTER TABLE t RENAME v TO x; UPDATE t SET x = 'q'; ALTER TABLE t RENAME x TO v",
        "ALTER TABLE t RENAME TO old; CREATE TABLE t AS SELECT id, v, n, unused FROM old WHERE id > 7",
        "DROP TABLE t; CREATE TABLE t (n numeric(10,2), v text, id int); INSERT INTO t VALUES (1, 'one', 1)",
    ],
)
def test_what_no_trigger_sees(both: Kit, owner: Owner, statement: str) -> None:
    path = both.capture("t").path
    owner.execute("UPDATE t SET n = n + 1 WHERE id < 3")
    for part in statement.split("; "):
        owner.execute(part)
        if part.startswith("CREATE TABLE"):
            owner.execute("GRANT SELECT, TRIGGER ON t TO millstream")
    owner.execute("UPDATE bag SET v = 'seen at once'")
    both.tick()
    both.assert_exact(owner, "t", "bag")
    owner.execute("UPDATE t SET n = n + 1")
    owner.execute("INSERT INTO t (id, v) VALUES (77, 'then')")
    both.tick()
    both.assert_exact(owner, "t", "bag")
    assert both.capture("t").path == path, "the mirror went on, and nobody has to start over"
    both.assert_nothing_twice()


def test_a_rewrite_alone_is_no_commit(both: Kit, owner: Owner) -> None:
    before = both.commits("t")
    owner.execute("VACUUM FULL t")
    both.tick()
    assert both.commits("t") == before
    assert any("comparing" in said for said in both.said)
    both.said.clear()
    owner.execute("UPDATE bag SET v = 'x'")
    both.tick()
    assert both.said == [], "looked at once"


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("ALTER TABLE t ALTER n TYPE numeric(12,4)", "changed its column n"),
        ("ALTER TABLE t DROP v", "lost its column v"),
        ("ALTER TABLE t RENAME v TO w", "lost its column v"),
    ],
)
def test_columns_that_the_mirror_cannot_hold(both: Kit, owner: Owner, statement: str, word: str) -> None:
    owner.execute(statement)
    owner.execute("UPDATE bag SET v = 'goes on'")
    owner.execute("INSERT INTO t (id) VALUES (99)")
    both.tick()
    both.assert_exact(owner, "bag")
    item = both.catalog.lake_object(ObjectKind.TABLE, TableName.parse("shop.public.t"))
    assert item is not None
    assert word in item.details[STALE]
    assert owner.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass").fetchone() == (0,)
    both.tick()
    path = both.capture("t").path
    both.read("a2", "t", "n")  # as a reader does that binds anew
    assert both.capture("t").path != path
    both.tick()
    both.assert_exact(owner, "t")


def test_a_table_that_is_dropped_and_comes_back(both: Kit, owner: Owner) -> None:
    name = TableName.parse("shop.public.t")
    owner.execute("DROP TABLE t")
    owner.execute("UPDATE bag SET v = 'goes on'")
    both.tick()
    both.assert_exact(owner, "bag")
    assert both.catalog.lake_object(ObjectKind.TABLE, name) is None
    assert both.capture("t").details[MISSING]
    both.tick()
    owner.execute("CREATE TABLE t (id int, v text, n numeric(10,2))")
    owner.execute("INSERT INTO t VALUES (1, 'back', 1)")
    both.tick()
    both.assert_exact(owner, "t")
    assert both.catalog.lake_object(ObjectKind.TABLE, name) is not None


def test_partitions(kit: Kit, owner: Owner) -> None:
    for statement in (
        "CREATE TABLE p (k int, v text) PARTITION BY LIST (k)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)",
        "INSERT INTO p SELECT 1 + i % 2, 'v' || i FROM generate_series(1, 20) i",
    ):
        owner.execute(statement)
    kit.read("a", "p", "k", "v")
    for statement in (
        "INSERT INTO p1 VALUES (1, 'direct')",
        "UPDATE p SET k = 2 WHERE v = 'v2'",
        "TRUNCATE p1",
        "ALTER TABLE p DETACH PARTITION p2",
        "INSERT INTO p2 VALUES (2, 'unseen')",
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)",
        "CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3)",
        "INSERT INTO p VALUES (3, 'new')",
        "DELETE FROM p3",
        "INSERT INTO p VALUES (3, 'newer'), (1, 'x')",
        "TRUNCATE p3",
        "TRUNCATE p",
    ):
        owner.execute(statement)
        kit.tick()
        kit.assert_exact(owner, "p")


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


def test_a_mirror_that_is_not_what_it_should_be(both: Kit, owner: Owner) -> None:
    """A row that goes and is not there is an error, once; then mirror and table are compared."""
    capture = both.capture("t")
    rows = both.store.find(capture.path, both.commits("t"), {"id": pa.array([5])})
    assert rows is not None
    whole = both.store.arrow_at(capture.path, both.commits("t"), rows)
    made = both.store.apply(capture.path, ChangeSet(whole, None, both.commits("t")), Txn("somebody", 1), {})
    assert made is not None
    owner.execute("DELETE FROM t WHERE id = 5")
    both.tick()
    both.assert_exact(owner, "t")
    assert any("version" in said for said in both.said)


def test_an_older_catalog(both: Kit, owner: Owner, shop: Shop) -> None:
    """Restored from a copy: the buffers no longer have what came since."""
    (file,) = both.root.glob("*.db")
    copy = both.root.parent / "copy.db"
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    owner.execute("UPDATE t SET n = n + 1")
    both.tick()
    owner.execute("DELETE FROM t WHERE id = 1")
    both.tick()
    both.catalog.close()
    for left in both.root.glob(f"{file.name}*"):
        left.unlink()
    shutil.copy(copy, file)
    with open_kit(both.root, shop.address) as restored:
        restored.tick()
        restored.assert_exact(owner, "t", "bag")
        owner.execute("UPDATE t SET n = n + 1")
        restored.tick()
        restored.assert_exact(owner, "t", "bag")
        restored.assert_nothing_twice()


def test_an_older_lake(both: Kit, owner: Owner, shop: Shop) -> None:
    """Catalog and mirrors restored from a copy: they agree, and the buffers no longer have what came since."""
    copy = both.root.parent / "copy"
    both.captures.close()
    (file,) = both.root.glob("*.db")
    shutil.copytree(both.root, copy)
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy / file.name)) as target:
        source.backup(target)
    owner.execute("INSERT INTO t VALUES (100, 'since', 1, '')")
    owner.execute("INSERT INTO bag VALUES ('since', 1)")
    both.tick()
    both.catalog.close()
    shutil.rmtree(both.root)
    shutil.copytree(copy, both.root)
    owner.execute("INSERT INTO t VALUES (101, 'then', 1, '')")
    with open_kit(both.root, shop.address) as restored:
        restored.tick()
        restored.assert_exact(owner, "t", "bag")
        restored.said.clear()
        owner.execute("UPDATE t SET n = n + 1")
        restored.tick()
        restored.assert_exact(owner, "t", "bag")
        assert restored.said == [], "compared once"


def test_buffers_of_a_time_when_trims_were_not_kept(both: Kit, owner: Owner, shop: Shop) -> None:
    """They are from their next trim on; until then nothing is taken for lost."""
    with shop.connect() as connection:
        connection.execute("DROP TABLE millstream_changes.trims")
        owner.execute("UPDATE t SET n = n + 1")
        both.tick()
        both.assert_exact(owner, "t", "bag")
        kept = connection.execute("SELECT source::bigint, snapshot::text FROM millstream_changes.trims").fetchall()
        assert kept == [(both.capture("t").oid, (both.database.position or {})["snapshot"])]
        connection.execute("DROP TABLE millstream_changes.trims")
        both.forget("a")
        both.read("c", "t", "v")
        assert connection.execute("SELECT count(*) FROM millstream_changes.trims").fetchone() == (1,)
    assert not any("comparing" in said for said in both.said)


def test_more_changes_than_are_held(both: Kit, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest windows are not read: those tables are compared with their mirrors."""
    monkeypatch.setattr(held, "MOST_BYTES", 20_000)
    read, real = list[int](), windows._copy
    monkeypatch.setattr(
        windows, "_copy", lambda connection, buffer, *a: (read.append(buffer.oid), real(connection, buffer, *a))[1]
    )
    owner.execute("INSERT INTO t SELECT i, repeat('x', 100), 1, '' FROM generate_series(100, 400) i")
    owner.execute("INSERT INTO bag VALUES ('small', 1)")
    both.tick()
    both.assert_exact(owner, "t", "bag")
    assert read == [both.capture("bag").oid] * len(read)
    assert [s for s in both.said if "comparing" in s] == [f"comparing shop.public.t with its mirror: {held.TOO_MUCH}"]
    for statement in ("UPDATE t SET n = 7 WHERE id = 3", "UPDATE t SET v = v || 'y'", "TRUNCATE t", "DELETE FROM bag"):
        owner.execute(statement)
        both.tick()
        both.assert_exact(owner, "t", "bag")
    assert both.capture("t").oid in read, "a small window again"
    both.assert_nothing_twice()


def test_columns_that_are_never_null(kit: Kit, owner: Owner) -> None:
    """A served table has a primary key only of such columns."""
    owner.execute('ALTER TABLE bag ADD "Id" int NOT NULL DEFAULT 1, ALTER d SET NOT NULL')
    kit.read("b", "bag", "v", "d")
    assert kit.capture("bag").details["not_null"] == ["d"]
    kit.read("c", "bag", "Id")
    assert kit.capture("bag").details["not_null"] == ["d", "Id"]
    owner.execute("ALTER TABLE bag ALTER d DROP NOT NULL")
    owner.execute("INSERT INTO bag VALUES ('x', NULL)")
    kit.tick()
    assert kit.capture("bag").details["not_null"] == ["Id"]
    kit.assert_exact(owner, "bag")
    owner.execute("DELETE FROM bag WHERE d IS NULL")
    owner.execute("ALTER TABLE bag ALTER d SET NOT NULL")
    kit.tick()
    assert kit.capture("bag").details["not_null"] == ["d", "Id"]


def test_row_policies_that_would_hide_rows(both: Kit, owner: Owner) -> None:
    owner.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    with pytest.raises(MillstreamError) as caught:
        both.tick()
    assert caught.value.code is Code.PRIVILEGE_MISSING
    owner.execute("ALTER TABLE t DISABLE ROW LEVEL SECURITY")
    owner.execute("DELETE FROM t WHERE id = 1")
    both.tick()
    both.assert_exact(owner, "t")


def test_captures_begin_and_end_while_others_tick(both: Kit, owner: Owner, shop: Shop) -> None:
    """Two lakes' processes would do the same: locks are taken in one order, and no change is lost."""
    stop, wrong = threading.Event(), list[BaseException]()

    def ticking() -> None:
        try:
            with open_kit(both.root, shop.address) as other:
                while not stop.wait(0.02):  # whoever ticks without a pause keeps the lock from others
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


def test_lost_changes_are_an_error_once(both: Kit, owner: Owner, shop: Shop) -> None:
    owner.execute("INSERT INTO t VALUES (50, 'lost', 1, '')")
    with shop.connect() as connection:
        connection.execute(f"DELETE FROM millstream_changes.changes_{both.capture('t').oid}")
    owner.execute("DELETE FROM t WHERE id = 50")
    with pytest.raises(MillstreamError) as caught:
        both.tick()
    assert caught.value.code is Code.CAPTURE_LOST
    both.tick()
    both.assert_exact(owner, "t", "bag")


def test_buffers_are_trimmed(both: Kit, owner: Owner, shop: Shop) -> None:
    owner.execute("UPDATE t SET n = n + 1")
    both.tick()
    with shop.connect() as connection:
        left = connection.execute(f"SELECT count(*) FROM millstream_changes.changes_{both.capture('t').oid}").fetchone()
    assert left == (0,)


@pytest.mark.parametrize("how", ["DISABLE TRIGGER USER", "DISABLE TRIGGER ALL", "ENABLE REPLICA TRIGGER {}"])
def test_triggers_that_the_owner_has_switched_off_are_made_anew(both: Kit, owner: Owner, how: str) -> None:
    row = owner.execute("SELECT tgname FROM pg_trigger WHERE tgrelid = 't'::regclass AND tgname ~ 'insert'").fetchone()
    assert row is not None
    owner.execute(f"ALTER TABLE t {how.format(row[0])}")
    owner.execute("INSERT INTO t VALUES (100, 'unseen', 1, '')")
    both.tick()
    both.assert_exact(owner, "t", "bag")
    owner.execute("INSERT INTO t VALUES (101, 'seen', 1, '')")
    both.tick()
    both.assert_exact(owner, "t", "bag")


def test_a_partition_whose_triggers_are_switched_off(kit: Kit, owner: Owner) -> None:
    owner.execute("CREATE TABLE p (a int) PARTITION BY LIST (a)")
    owner.execute("CREATE TABLE q PARTITION OF p FOR VALUES IN (1, 2) PARTITION BY LIST (a)")
    owner.execute("CREATE TABLE q1 PARTITION OF q FOR VALUES IN (1)")
    kit.read("a", "p", "a")
    for switched in ("q1", "q", "ONLY q"):
        owner.execute(f"ALTER TABLE {switched} DISABLE TRIGGER USER")
        owner.execute("INSERT INTO p VALUES (1)")
        kit.tick()
        kit.assert_exact(owner, "p")
        owner.execute("INSERT INTO p VALUES (1)")
        kit.tick()
        kit.assert_exact(owner, "p")
    owner.execute("CREATE TABLE q2 PARTITION OF q FOR VALUES IN (2)")
    kit.tick()
    owner.execute("INSERT INTO p VALUES (2)")
    kit.tick()
    kit.assert_exact(owner, "p")


def test_switched_off_triggers_when_a_second_reader_needs_more_columns(both: Kit, owner: Owner) -> None:
    owner.execute("ALTER TABLE t DISABLE TRIGGER USER")
    owner.execute("INSERT INTO t VALUES (100, 'unseen', 1, '')")
    both.read("c", "t", "unused")
    owner.execute("INSERT INTO t VALUES (101, 'seen', 1, '')")
    both.tick()
    both.assert_exact(owner, "t")


def test_what_was_missed_is_not_forgotten_if_the_columns_come_too_late(
    both: Kit, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.execute("ALTER TABLE t DISABLE TRIGGER USER")
    owner.execute("INSERT INTO t VALUES (100, 'unseen', 1, '')")
    with monkeypatch.context() as patched:
        patched.setattr(type(both.captures), "_tick", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            both.read("c", "t", "unused")
    both.tick()
    both.assert_exact(owner, "t")


def test_sessions_that_fire_no_triggers_are_told_of(kit: Kit, owner: Owner, shop: Shop) -> None:
    locks = locks_for(kit.catalog, kit.root)
    workers: Any = DriverOnly(Settings())
    said: list[str] = []
    tables = CapturedTables(kit.root, kit.catalog, workers, locks, Settings(), lambda: datetime.now(UTC), said.append)
    kit.captures, before = cast("Any", tables), kit.captures
    with pytest.warns(CaptureWarning, match="ENABLE ALWAYS TRIGGER") as told:
        kit.read("a", "t", "v", "n")
    tables.close()
    locks.close()
    kit.captures = before
    assert told[0].filename == capture_kit.__file__, "the line outside that made the call"
    sentence, *statements = str(told[0].message).splitlines()
    assert "shop.public.t" in sentence
    assert len(statements) == 4
    with shop.server.superuser(shop.name) as replica, millstream.connect(kit.root) as ms:
        replica.execute("SET session_replication_role = replica")
        assert [row.alert for row in ms.check_cdc_health()] == ["replica_sessions_not_captured"]
        replica.execute("INSERT INTO t VALUES (99, 'before', 1, '')")
        for statement in statements:
            owner.execute(statement)
        assert [row.alert for row in ms.check_cdc_health()] == [None]
        kit.tick()
        kit.assert_exact(owner, "t")
        assert not kit.catalog.list()[0].needs_reinit
        replica.execute("INSERT INTO t VALUES (100, 'after', 1, '')")
        kit.tick()
        kit.assert_exact(owner, "t")
        owner.execute("ALTER TABLE t DISABLE TRIGGER USER")
        assert [row.alert for row in ms.check_cdc_health()] == ["capture_triggers_disabled"]


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


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
        kit.tick()
    assert caught.value.code is Code.VALUE_UNSUPPORTED
    owner.execute("UPDATE d SET d = '2024-01-02' WHERE id = 1")
    owner.execute("UPDATE bag SET v = 'goes on'")
    kit.tick()
    kit.assert_exact(owner, "d", "bag")


def test_more_columns_when_the_connection_is_lost(both: Kit, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the mirror already when the tick is tried again."""
    is_lost = False
    clean_up = Tick._clean_up

    def lost_once(tick: Tick) -> None:
        nonlocal is_lost
        if not is_lost:
            is_lost = True
            tick.connection.close()
        clean_up(tick)

    monkeypatch.setattr(Tick, "_clean_up", lost_once)
    owner.execute("UPDATE t SET n = -1 WHERE id = 3")
    both.read("c", "t", "unused")
    assert is_lost
    assert [name for name, _, _ in both.capture("t").columns] == ["id", "v", "n", "unused"]
    both.tick()
    both.assert_exact(owner, "t")
    both.assert_nothing_twice()


def test_a_comparison_whose_snapshot_is_lost(
    both: Kit, owner: Owner, monkeypatch: pytest.MonkeyPatch, shop: Shop
) -> None:
    """What was read under it may be wrong: the catalog does not move, and the tick is an error."""
    before = both.database.position
    compare = Landing.compare

    def losing(landing: Landing, *arguments: Any) -> Any:
        after = compare(landing, *arguments)
        landing.cut.connection.close()
        return after

    owner.execute("VACUUM FULL t")
    owner.execute("UPDATE t SET n = 0")
    with monkeypatch.context() as patch:
        patch.setattr(Landing, "compare", losing)
        with pytest.raises(MillstreamError) as caught:
            both.tick()
    assert caught.value.code is Code.SNAPSHOT_LOST
    assert both.database.position == before
    both.tick()
    both.assert_exact(owner, "t", "bag")
