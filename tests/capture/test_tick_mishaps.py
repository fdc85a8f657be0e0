"""Ticks over what is not as they left it: an older catalog or lake, lost changes, lost connections."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from kits.capture import Kit, open_kit
from kits.shops import Shop
from kits.tick_tables import Owner, both, kit, owner
from millstream import Code, MillstreamError
from millstream.capture import tick
from millstream.capture.landing import Landing
from millstream.capture.tick_state import TickContext, TickState
from millstream.engine.storage import ChangeSet, Txn

__all__ = ["both", "kit", "owner"]
pytestmark = pytest.mark.postgres


def test_a_mirror_that_is_not_what_it_should_be(both: Kit, owner: Owner) -> None:
    """A row that goes and is not there is an error, once; then mirror and table are compared."""
    capture = both.capture("t")
    rows = both.store.look_up(capture.path, both.commits("t"), {"id": pa.array([5])})
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
    """They are from their next trim on; until then nothing counts as lost."""
    with shop.connect() as connection:
        connection.execute("DROP TABLE millstream_changes.trims")
        owner.execute("UPDATE t SET n = n + 1")
        both.tick()
        both.assert_exact(owner, "t", "bag")
        kept = connection.execute(
            "SELECT source::bigint, snapshot::text FROM millstream_changes.trims WHERE source <> 0"
        ).fetchall()
        assert kept == [(both.capture("t").oid, (both.database.position or {})["snapshot"])]
        connection.execute("DROP TABLE millstream_changes.trims")
        both.forget("a")
        both.read("c", "t", "v")
        assert connection.execute("SELECT count(*) FROM millstream_changes.trims").fetchone() == (2,), "and the mark"
    assert not any("comparing" in said for said in both.said)


def test_lost_changes_are_an_error_once(both: Kit, owner: Owner, shop: Shop) -> None:
    owner.execute("INSERT INTO t VALUES (50, 'lost', 1, '')")
    with shop.connect() as connection:
        connection.execute(f"DELETE FROM millstream_changes.changes_{both.capture('t').oid}")
    owner.execute("DELETE FROM t WHERE id = 50")
    with pytest.raises(MillstreamError) as caught:
        both.tick("t")
    assert caught.value.code is Code.CAPTURE_LOST
    both.tick("t")
    both.assert_exact(owner, "t", "bag")


def test_more_columns_when_the_connection_is_lost(both: Kit, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the mirror already when the tick is tried again."""
    is_lost = False
    clean_up = tick.clean_up

    def lost_once(context: TickContext, *arguments: Any) -> TickState:
        nonlocal is_lost
        if not is_lost:
            is_lost = True
            context.connection.close()
        return clean_up(context, *arguments)

    monkeypatch.setattr(tick, "clean_up", lost_once)
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
        landing.snapshot.connection.close()
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
