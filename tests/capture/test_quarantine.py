"""Tables that cannot be brought forward: only their readers get an error, and the others of their database go on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import NoReturn

import pytest

from kits.capture import Kit, killed_at, quarantine_code
from kits.quarantine import Fault, refused, restless, run
from kits.shops import Shop
from kits.tick_tables import Owner, kit
from millstream import Code, MillstreamError
from millstream.capture import quarantine
from millstream.catalog.models import ObjectKind
from millstream.naming import TableName
from millstream.sources.postgres.load import exported_snapshot

__all__ = ["kit", "restless"]
pytestmark = pytest.mark.postgres


FAULTS = {
    "value": Fault(
        Code.VALUE_UNSUPPORTED,
        "INSERT INTO t VALUES (100, 'infinity')",
        "DELETE FROM t WHERE id = 100",
    ),
    "unlogged": Fault(
        Code.SOURCE_NO_CHANGE_FEED,
        "ALTER TABLE t SET UNLOGGED",
        "ALTER TABLE t SET LOGGED",
    ),
    "row security": Fault(
        Code.PRIVILEGE_MISSING,
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE t DISABLE ROW LEVEL SECURITY",
    ),
    "triggers": Fault(
        Code.PRIVILEGE_MISSING,
        "REVOKE TRIGGER ON t FROM millstream; ALTER TABLE t DISABLE TRIGGER USER",
        "GRANT TRIGGER ON t TO millstream",
    ),
    "another table": Fault(
        Code.PRIVILEGE_MISSING,
        "ALTER TABLE t RENAME TO old; CREATE TABLE t AS SELECT * FROM old; REVOKE ALL ON t FROM millstream",
        "GRANT SELECT, TRIGGER ON t TO millstream",
    ),
    "right to read": Fault(
        Code.PRIVILEGE_MISSING,
        "REVOKE SELECT ON t FROM millstream; VACUUM FULL t",
        "GRANT SELECT ON t TO millstream",
    ),
}


@pytest.fixture
def owner(shop: Shop) -> Iterator[Owner]:
    with shop.owner() as connection:
        for statement in (
            "CREATE TABLE t (id int PRIMARY KEY, d date)",
            "INSERT INTO t SELECT i, '2024-01-01' FROM generate_series(1, 20) i",
            "CREATE TABLE other (id int PRIMARY KEY, v int)",
            "INSERT INTO other SELECT i, i FROM generate_series(1, 20) i",
        ):
            connection.execute(statement)
        yield connection


@pytest.fixture
def both(kit: Kit, owner: Owner) -> Kit:
    kit.read("a", "t", "id", "d")
    kit.read("b", "other", "id", "v")
    kit.tick()
    kit.assert_exact(owner, "t", "other")
    return kit


def buffered(shop: Shop, kit: Kit, table: str) -> int:
    with shop.connect() as connection:
        row = connection.execute(f"SELECT count(*) FROM millstream_changes.changes_{kit.capture(table).oid}").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("name", FAULTS)
def test_others_go_on(both: Kit, owner: Owner, shop: Shop, name: str) -> None:
    fault, version = FAULTS[name], both.capture("t").version
    owner.execute("UPDATE t SET d = '2024-02-02' WHERE id = 1")
    run(owner, fault.made)
    for _ in range(2):
        owner.execute("UPDATE other SET v = v + 1")
        versions = both.tick("other")
        both.assert_exact(owner, "other")
        assert versions == {"shop.public.other": both.capture("other").version}, "nobody mixes positions"
        assert buffered(shop, both, "other") == 0
        assert refused(both, "t").code is fault.code
        assert refused(both, "t", "other").code is fault.code
        left = both.capture("t")
        assert left.version == version
        assert quarantine_code(left) == fault.code
        assert left.state.position != both.database.position
    run(owner, fault.cleared)
    owner.execute("UPDATE t SET d = '2024-03-03' WHERE id = 2")
    both.tick()
    both.assert_exact(owner, "t", "other")
    assert both.tick("t", "other").keys() == {"shop.public.t", "shop.public.other"}
    assert (both.capture("t").state.quarantine, both.capture("t").state.position) == (None, None)
    owner.execute("UPDATE t SET d = '2024-04-04' WHERE id = 3")
    both.tick()
    both.assert_exact(owner, "t", "other")
    both.assert_nothing_twice()


def test_all_at_once(kit: Kit, owner: Owner) -> None:
    """More tables than a tick has tries."""
    kit.read("b", "other", "id", "v")
    for number in range(12):
        owner.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, d date)")
        kit.read(f"a{number}", f"t{number}", "id", "d")
    kit.tick()
    for number in range(12):
        owner.execute(f"REVOKE SELECT ON t{number} FROM millstream")
        owner.execute(f"INSERT INTO t{number} VALUES (1, 'infinity')")
    owner.execute("UPDATE other SET v = v + 1")
    kit.tick("other")
    kit.assert_exact(owner, "other")
    assert refused(kit, "t3").code is Code.PRIVILEGE_MISSING


def test_a_table_that_somebody_holds(both: Kit, owner: Owner, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported_snapshot, "_LOCK_TIMEOUT", "200ms")
    owner.execute("VACUUM FULL t")
    with shop.owner() as holder, holder.transaction():
        holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        owner.execute("UPDATE other SET v = v + 1")
        both.tick("other")
        both.assert_exact(owner, "other")
        error = refused(both, "t")
        assert error.code is Code.LOCK_TIMEOUT
        assert "public.t" in error.message
    both.tick()
    both.assert_exact(owner, "t", "other")


def test_what_is_left_is_not_tried_for_others_all_the_time(
    both: Kit, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "_RESTS", 1_000_000.0)
    owner.execute("INSERT INTO t VALUES (100, 'infinity')")
    both.tick()
    both.said.clear()
    owner.execute("DELETE FROM t WHERE id = 100")
    owner.execute("UPDATE other SET v = v + 1")
    assert "shop.public.t" not in both.tick("other")
    assert both.said == []
    clock = both.captures._clock
    monkeypatch.setattr(both.captures, "_clock", lambda: clock() + timedelta(days=30))
    owner.execute("UPDATE other SET v = v + 1")
    both.tick("other")
    both.assert_exact(owner, "t", "other")


def test_who_reads_it_has_it_tried_at_once(both: Kit, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "_RESTS", 1_000_000.0)
    owner.execute("INSERT INTO t VALUES (100, 'infinity')")
    both.tick()
    owner.execute("DELETE FROM t WHERE id = 100")
    assert "shop.public.t" in both.tick("t")
    both.assert_exact(owner, "t", "other")


def test_a_quiet_tick_writes_nothing(both: Kit, owner: Owner) -> None:
    if owner.info.server_version < 170_000:
        pytest.skip("before PostgreSQL 17 the WAL is flushed by a transaction, which the next tick sees")
    owner.execute("INSERT INTO t VALUES (100, 'infinity')")
    both.tick("other")
    both.tick("other")
    before = (both.database, both.capture("t"))
    both.said.clear()
    assert both.tick("other") == both.tick("other")
    assert (both.database, both.capture("t"), both.said) == (*before, [])


def test_its_buffer_does_not_grow(both: Kit, owner: Owner, shop: Shop) -> None:
    owner.execute("INSERT INTO t VALUES (100, 'infinity')")
    for _ in range(3):
        owner.execute("UPDATE t SET d = '2024-05-05' WHERE id < 10")
        both.tick("other")
        assert buffered(shop, both, "t") == 0
    owner.execute("DELETE FROM t WHERE id = 100")
    both.tick()
    both.assert_exact(owner, "t")


def test_a_table_that_is_left_and_then_dropped(both: Kit, owner: Owner) -> None:
    owner.execute("INSERT INTO t VALUES (100, 'infinity')")
    both.tick("other")
    owner.execute("DROP TABLE t")
    both.tick("other")
    assert both.capture("t").state.missing
    assert both.capture("t").state.quarantine is None
    name = TableName.parse("shop.public.t")
    assert both.catalog.lake_object(ObjectKind.TABLE, name) is None
    run(owner, "CREATE TABLE t (id int PRIMARY KEY, d date); REVOKE ALL ON t FROM millstream")
    owner.execute("UPDATE other SET v = v + 1")
    both.tick("other")
    both.assert_exact(owner, "other")
    assert refused(both, "t").code is Code.PRIVILEGE_MISSING
    assert both.catalog.lake_object(ObjectKind.TABLE, name) is None
    owner.execute("GRANT SELECT, TRIGGER ON t TO millstream")
    both.tick()
    both.assert_exact(owner, "t", "other")
    assert both.catalog.lake_object(ObjectKind.TABLE, name) is not None


def test_a_second_reader_of_a_table_that_is_left(both: Kit, owner: Owner) -> None:
    owner.execute("ALTER TABLE t ADD more int")
    owner.execute("INSERT INTO t VALUES (100, 'infinity')")
    both.tick()
    with pytest.raises(MillstreamError) as caught:
        both.read("c", "t", "more")
    assert caught.value.code is Code.VALUE_UNSUPPORTED
    owner.execute("DELETE FROM t WHERE id = 100")
    both.read("c", "t", "more")
    owner.execute("UPDATE t SET more = id")
    both.tick()
    both.assert_exact(owner, "t", "other")


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("value", ("put_database", "after", 1)),
        ("value", ("put_database", "after", 2)),
        ("value", ("millstream.capture.stages.clean_up:trim", "before", 1)),
        ("value", ("millstream.capture.stages.clean_up:trim", "before", 2)),
        ("triggers", ("put_database", "after", 1)),
        ("triggers", ("put_database", "after", 2)),
    ],
    ids=str,
)
def test_a_tick_that_leaves_a_table_and_is_killed(
    both: Kit, owner: Owner, shop: Shop, name: str, point: tuple[str, str, int]
) -> None:
    fault = FAULTS[name]
    owner.execute("UPDATE t SET d = '2024-02-02' WHERE id = 1")
    run(owner, fault.made)
    owner.execute("UPDATE other SET v = v + 1")
    killed_at(both.root, shop.address, point, "tick", "other")
    owner.execute("UPDATE other SET v = v + 1")
    both.tick("other")
    both.assert_exact(owner, "other")
    assert refused(both, "t").code is fault.code
    run(owner, fault.cleared)
    owner.execute("UPDATE t SET d = '2024-03-03' WHERE id = 2")
    both.tick()
    both.assert_exact(owner, "t", "other")
    both.assert_nothing_twice()


def test_a_mirror_that_was_written_before_it_was_left(both: Kit, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """What differed is committed; the columns that were to come with it are not."""
    owner.execute("ALTER TABLE t ADD more int")
    owner.execute("VACUUM FULL t")
    owner.execute("UPDATE t SET d = '2024-06-06'")

    def failing(*_: object) -> NoReturn:
        raise MillstreamError(Code.VALUE_UNSUPPORTED, "a value of the new column")

    with monkeypatch.context() as patched:
        patched.setattr(type(both.store), "widen", failing)
        with pytest.raises(MillstreamError) as caught:
            both.read("c", "t", "more")
    assert caught.value.code is Code.VALUE_UNSUPPORTED
    assert both.capture("t").version == both.commits("t"), "what is known is what was committed"
    for _ in range(2):
        owner.execute("UPDATE t SET d = d + 1")
        both.tick("t")
        both.assert_exact(owner, "t", "other")
    both.read("c", "t", "more")
    both.tick()
    both.assert_exact(owner, "t", "other")
    both.assert_nothing_twice()


@pytest.mark.parametrize("name", ["another table", "value"])
def test_a_second_reader_that_cannot_have_it_loaded(both: Kit, owner: Owner, name: str) -> None:
    """What the first one reads is not forgotten for that."""
    fault, path = FAULTS[name], both.capture("t").path
    if name == "value":
        run(owner, "ALTER TABLE t RENAME TO old; CREATE TABLE t AS SELECT * FROM old")
    run(owner, fault.made)
    with pytest.raises(MillstreamError) as caught:
        both.read("c", "t", "d")
    assert caught.value.code is fault.code
    assert refused(both, "t").code is fault.code
    owner.execute("UPDATE other SET v = v + 1")
    both.tick("other")
    both.assert_exact(owner, "other")
    run(owner, fault.cleared)
    for _ in range(2):
        owner.execute("UPDATE t SET d = d + 1")
        assert both.tick("t", "other").keys() == {"shop.public.t", "shop.public.other"}
        both.assert_exact(owner, "t", "other")
    assert both.capture("t").path == path
    both.read("c", "t", "d")
    left = owner.execute("SELECT count(DISTINCT tgrelid) FROM pg_trigger WHERE tgname LIKE 'millstream%'").fetchone()
    assert left == (2,)
