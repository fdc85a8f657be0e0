"""Ticks after something was done to the tables that their triggers do not record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

import kits.capture
import millstream
from kits.capture import DriverOnly, Kit
from kits.shops import STRANGER, Shop, detach_halfway
from kits.tick_tables import Owner, both, kit, owner
from millstream import Code, MillstreamError
from millstream.capture import Captures
from millstream.catalog.models import ObjectKind
from millstream.lake.locks import locks_for
from millstream.naming import TableName
from millstream.notices import CaptureWarning
from millstream.settings import Settings

__all__ = ["both", "kit", "owner"]
pytestmark = pytest.mark.postgres


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
    assert word in (item.details.stale or "")
    assert owner.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass").fetchone() == (0,)
    both.tick()
    path = both.capture("t").path
    both.read("a2", "t", "n")  # as a reader does that binds again
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
    assert both.capture("t").state.missing
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


def test_a_partition_whose_detaching_was_interrupted(kit: Kit, owner: Owner, shop: Shop) -> None:
    """No query of the parent reads it any more; its triggers fire until that is finished."""
    for statement in (
        "CREATE TABLE p (k int, v text) PARTITION BY LIST (k)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)",
        "INSERT INTO p VALUES (1, 'a'), (2, 'b')",
    ):
        owner.execute(statement)
    kit.read("a", "p", "k", "v")
    kit.tick()
    detach_halfway(shop, owner, "p", "p2")
    for statement in (
        "INSERT INTO p VALUES (1, 'more')",
        "INSERT INTO p2 VALUES (2, 'outside')",
        "UPDATE p2 SET v = 'outside too'",
        "ALTER TABLE p DETACH PARTITION p2 FINALIZE",
        "UPDATE p SET v = v || '!'",
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)",
        "DELETE FROM p WHERE k = 2",
    ):
        owner.execute(statement)
        kit.tick()
        kit.assert_exact(owner, "p")


def test_a_partitioned_table_that_has_another_owner(kit: Kit, owner: Owner, shop: Shop) -> None:
    """A new partition gets its parent's triggers by the rights of the role that adds it."""
    for statement in (
        "CREATE TABLE p (k int, j int) PARTITION BY LIST (k)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (j)",
        f"GRANT CREATE ON SCHEMA public TO {STRANGER}",
    ):
        owner.execute(statement)
    kit.read("a", "p", "k", "j")
    kit.tick()
    address = shop.server.url(shop.name, STRANGER)
    with shop.server.superuser(shop.name) as superuser, psycopg.connect(address, autocommit=True) as stranger:
        for table, part, value in (("p2", "p21", 1), ("p", "p3", 3)):
            superuser.execute(f"ALTER TABLE {table} OWNER TO {STRANGER}")
            kit.said.clear()
            kit.tick()
            assert kit.said == [], "nothing is compared for that"
            stranger.execute(f"CREATE TABLE {part} PARTITION OF {table} FOR VALUES IN ({value})")
            stranger.execute(f"GRANT SELECT, TRIGGER ON {part} TO PUBLIC")
            kit.tick()
        stranger.execute("INSERT INTO p21 VALUES (2, 1)")
        stranger.execute("INSERT INTO p VALUES (3, 1)")
        kit.tick()
        kit.assert_exact(stranger, "p")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE p ALTER v TYPE varchar(30)",
        "ALTER TABLE p DROP v, ADD v text",
        "ALTER TABLE p RENAME TO q; ALTER TABLE q ALTER v TYPE varchar(9); ALTER TABLE q RENAME TO p",
        "ALTER TABLE p ALTER n TYPE bigint",
        "ALTER TABLE p ALTER n TYPE text",
    ],
)
@pytest.mark.parametrize("part", ["PARTITION OF p FOR VALUES IN (1)", "() INHERITS (p)"])
def test_sessions_that_have_written_before_an_alteration(
    kit: Kit, owner: Owner, shop: Shop, part: str, statement: str
) -> None:
    """What fires per row was made ready for the columns as they were; its writers must not learn of that."""
    by = "PARTITION BY LIST (k)" if "PARTITION" in part else ""
    owner.execute(f"CREATE TABLE p (k int, v text, n int) {by}")
    owner.execute(f"CREATE TABLE p1 {part}")
    kit.read("a", "p", "k", "v")
    kit.read("b", "p", "n")
    kit.tick()
    writes = "INSERT INTO p1 (k, v, n) VALUES (1, 'x', 1)", "UPDATE p SET k = k", "DELETE FROM p"
    with shop.owner() as writer:
        for _ in range(7):  # a plan for any values is made with the sixth
            for write in writes:
                writer.execute(write)
        owner.execute(statement)
        for write in (*writes, "INSERT INTO p1 (k) VALUES (1)"):
            writer.execute(write)
        kit.tick()
        if "ALTER n" not in statement:  # of a column with other values there is no mirror until it is bound again
            kit.assert_exact(owner, "p")
            writer.execute("INSERT INTO p1 (k, v) VALUES (1, 'y')")
            kit.tick()
            kit.assert_exact(owner, "p")


def test_a_child_that_is_let_go_and_altered(kit: Kit, owner: Owner, shop: Shop) -> None:
    """It keeps the triggers until the next tick."""
    owner.execute("CREATE TABLE p (k int, v int)")
    owner.execute("CREATE TABLE p1 () INHERITS (p)")
    kit.read("a", "p", "k", "v")
    kit.tick()
    with shop.owner() as writer:
        writer.execute("INSERT INTO p1 VALUES (1, 1)")
        owner.execute("ALTER TABLE p1 NO INHERIT p")
        writer.execute("INSERT INTO p1 VALUES (1, 1)")
        owner.execute("ALTER TABLE p1 ALTER v TYPE text")
        writer.execute("INSERT INTO p1 VALUES (1, 'text')")
    kit.tick()
    kit.assert_exact(owner, "p")


def test_columns_that_are_never_null(kit: Kit, owner: Owner) -> None:
    """A served table has a primary key only of such columns."""
    owner.execute('ALTER TABLE bag ADD "Id" int NOT NULL DEFAULT 1, ALTER d SET NOT NULL')
    kit.read("b", "bag", "v", "d")
    assert kit.capture("bag").state.not_null == ("d",)
    kit.read("c", "bag", "Id")
    assert kit.capture("bag").state.not_null == ("d", "Id")
    owner.execute("ALTER TABLE bag ALTER d DROP NOT NULL")
    owner.execute("INSERT INTO bag VALUES ('x', NULL)")
    kit.tick()
    assert kit.capture("bag").state.not_null == ("Id",)
    kit.assert_exact(owner, "bag")
    owner.execute("DELETE FROM bag WHERE d IS NULL")
    owner.execute("ALTER TABLE bag ALTER d SET NOT NULL")
    kit.tick()
    assert kit.capture("bag").state.not_null == ("d", "Id")


def test_row_policies_that_would_hide_rows(both: Kit, owner: Owner) -> None:
    owner.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    with pytest.raises(MillstreamError) as caught:
        both.tick("t")
    assert caught.value.code is Code.PRIVILEGE_MISSING
    owner.execute("ALTER TABLE t DISABLE ROW LEVEL SECURITY")
    owner.execute("DELETE FROM t WHERE id = 1")
    both.tick("t")
    both.assert_exact(owner, "t")


@pytest.mark.parametrize("how", ["DISABLE TRIGGER USER", "DISABLE TRIGGER ALL", "ENABLE REPLICA TRIGGER {}"])
def test_triggers_that_the_owner_has_switched_off_are_made_again(both: Kit, owner: Owner, how: str) -> None:
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
    tables = Captures(kit.root, kit.catalog, workers, locks, Settings(), lambda: datetime.now(UTC), said.append)
    kit.captures, before = tables, kit.captures
    with pytest.warns(CaptureWarning, match="ENABLE ALWAYS TRIGGER") as warned:
        kit.read("a", "t", "v", "n")
    tables.close()
    locks.close()
    kit.captures = before
    assert warned[0].filename == kits.capture.__file__, "the line outside that made the call"
    sentence, *statements = str(warned[0].message).splitlines()
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
