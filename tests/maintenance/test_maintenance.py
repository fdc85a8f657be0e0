"""Maintenance of a real lake: it becomes small, stays exact, and refreshes go on incrementally."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from kits.lake import Lake, bag, open_lake, refused
from kits.lake_process import LakeProcess
from millstream import Action, Code, MaintenanceKind, MaintenanceResult
from millstream.maintenance.compacting import CHANGED, Compacting
from millstream.maintenance.owned_tables import OwnedTable
from millstream.naming import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PER_KEY = "SELECT k, COUNT(*) AS n, SUM(v) AS s FROM t GROUP BY k"
PER_COUNT = "SELECT n, COUNT(*) AS keys, SUM(s) AS s FROM per_key GROUP BY n"
STAGED = "SELECT n, MAX(s) AS m FROM (SELECT k, COUNT(*) AS n, SUM(v) AS s FROM t GROUP BY k) GROUP BY n"


@pytest.fixture
def t(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with open_lake(tmp_path / "lake", retention_hours=0) as lake:
        lake.table("t", "k INT, v INT", *(f"{i % 7}, {i}" for i in range(50)))
        yield lake


def stored(lake: Lake) -> list[Path]:
    return [f for f in (lake.root / "stream_tables").rglob("*") if f.is_file()]


def size(files: list[Path]) -> int:
    return sum(f.stat().st_size for f in files)


def public(lake: Lake, name: str) -> str:
    return lake.ms._catalog.get(TableName.parse(name)).public_stage.path


def version(lake: Lake, name: str) -> int:
    recorded = lake.ms._catalog.get(TableName.parse(name)).public_stage.version
    assert recorded is not None
    return recorded


def chain(lake: Lake) -> None:
    lake.stream("per_key", PER_KEY)
    lake.stream("per_count", PER_COUNT)


def change(lake: Lake, step: int, *names: str) -> None:
    lake.sql(f"INSERT INTO t VALUES ({step % 11}, {step}), ({step % 3}, 1)")
    for name in names:
        assert lake.ms.refresh_stream_table(name).action is Action.DIFFERENTIAL


def assert_well(lake: Lake, *names: str) -> None:
    """Exact, readable by Spark and by delta-rs, and maintained incrementally."""
    for name in names:
        lake.assert_exact(name)
        path = public(lake, name)
        shown = bag(lake.ms.spark.read.format("delta").load(path))
        store = lake.ms._runtime.workers.here().store
        assert DeltaTable(path).version() == store.version(path)
        assert {Path(f).exists() for f in DeltaTable(path).file_uris()} == {True}
        assert shown.total() == store.snapshot(path).num_rows
    change(lake, 1_000, *names)
    for name in names:
        lake.assert_exact(name)


@contextmanager
def held(lake: Lake, key: str) -> Iterator[None]:
    """A lock that somebody else holds."""
    taken, finished = threading.Event(), threading.Event()

    def hold() -> None:
        with lake.ms._locks.acquire([key]):
            taken.set()
            finished.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(10)
    try:
        yield
    finally:
        finished.set()
        thread.join()


def done(results: list[MaintenanceResult]) -> set[MaintenanceKind]:
    return {r.kind for r in results if r.skipped is None}


@pytest.mark.long
def test_300_refreshes_of_a_chain(t: Lake) -> None:
    shrinks(t, 300)


def test_many_refreshes_of_a_chain(t: Lake) -> None:
    shrinks(t, 40)


def shrinks(t: Lake, refreshes: int) -> None:
    chain(t)
    for step in range(refreshes):
        change(t, step, "per_count")
    before = stored(t)
    assert len(before) > 3 * refreshes
    results = t.ms.maintain()
    assert {MaintenanceKind.VACUUM, MaintenanceKind.COMPACT} <= done(results)
    assert all(r.files_after <= r.files_before for r in results if r.kind is MaintenanceKind.VACUUM)
    after = stored(t)
    assert len(after) < len(before) / 4
    # what counts as the smallest lake with these contents: the same two tables, just loaded
    t.stream("fresh_key", PER_KEY)
    t.stream("fresh_count", PER_COUNT.replace("per_key", "fresh_key"))
    fresh = [f for f in stored(t) if "fresh" in str(f)]
    assert size(after) <= 3 * size(fresh)
    assert_well(t, "per_key", "per_count")
    assert not [r for r in t.ms.maintain() if r.skipped]


def test_a_second_call_finds_little_to_do(t: Lake) -> None:
    chain(t)
    for step in range(12):
        change(t, step, "per_count")
    t.ms.maintain()
    t.refresh("per_count", Action.NO_DATA)
    t.ms.maintain()
    assert t.ms.maintain() == []


def test_a_dry_run_changes_nothing(t: Lake) -> None:
    chain(t)
    for step in range(12):
        change(t, step, "per_count")
    before = sorted(stored(t))
    planned = t.ms.maintain(dry_run=True)
    assert sorted(stored(t)) == before
    vacuums = [r for r in planned if r.kind is MaintenanceKind.VACUUM]
    assert vacuums
    assert all(r.files_after < r.files_before for r in vacuums)


def test_within_the_retention_nothing_is_deleted(t: Lake, spark: SparkSession) -> None:
    chain(t)
    for step in range(12):
        change(t, step, "per_count")
    t.ms.close()
    (t.root / "millstream.toml").unlink()
    with open_lake(t.root) as again:
        before = set(stored(again))
        assert done(again.ms.maintain()) <= {MaintenanceKind.COMPACT, MaintenanceKind.CHECKPOINT}
        assert before <= set(stored(again))


def test_a_suspended_dependent_finds_its_changes(t: Lake) -> None:
    chain(t)
    change(t, 0, "per_count")
    t.sql("ALTER STREAM TABLE per_count SET STATUS SUSPENDED")
    for step in range(1, 15):
        change(t, step, "per_key")
    t.ms.maintain()
    t.assert_exact("per_count")
    t.sql("ALTER STREAM TABLE per_count SET STATUS ACTIVE")
    t.refresh("per_count", Action.DIFFERENTIAL)


def test_hidden_stages_are_maintained(t: Lake) -> None:
    t.stream("staged", STAGED)
    for step in range(15):
        change(t, step, "staged")
    names = {r.name for r in t.ms.maintain()}
    assert {"staged", "staged (stage 1)"} <= names
    assert_well(t, "staged")


def test_users_own_tables_are_never_touched(t: Lake) -> None:
    chain(t)
    for step in range(12):
        change(t, step, "per_count")
    own = lambda: {f: f.stat().st_mtime_ns for f in (t.root / "tables").rglob("*") if f.is_file()}  # noqa: E731
    before = own()
    t.ms.maintain()
    assert own() == before


def test_a_landing_keeps_what_its_readers_read(t: Lake, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1,2\n")
    t.sql(f"CREATE TABLE plain (k INT, v INT) USING csv LOCATION '{tmp_path / 'in'}'")
    t.stream("landed", "SELECT k, SUM(v) AS s FROM plain GROUP BY k", "FULL")
    for step in range(3):
        (tmp_path / "in" / f"b{step}.csv").write_text(f"{step},5\n")
        t.refresh("landed")
    past = time.time() - 7_200
    for file in (t.root / "landed").rglob("*"):
        os.utime(file, (past, past))
    t.ms.maintain()
    t.assert_exact("landed")
    (tmp_path / "in" / "c.csv").write_text("9,5\n")
    t.refresh("landed")


def test_orphaned_directories_are_swept(t: Lake) -> None:
    chain(t)
    used = set(t.stored)
    past = time.time() - 7_200
    for name in ("gone-12345678", "per_key-12345678"):
        orphan = t.root / "stream_tables" / name
        (orphan / "result").mkdir(parents=True)
        for place in (orphan / "result", orphan):
            os.utime(place, (past, past))
    young = t.root / "stream_tables" / "new-12345678"
    young.mkdir()
    [swept] = [r for r in t.ms.maintain() if r.kind is MaintenanceKind.SWEEP]
    assert (swept.files_before, swept.files_after) == (2, 0)
    assert set(t.stored) == used | {young.name}


def test_old_history_is_pruned(t: Lake) -> None:
    chain(t)
    for step in range(3):
        change(t, step, "per_count")
    t.ms.close()
    with open_lake(t.root, retention_hours=0, history_retention_days=0) as again:
        [pruned] = [r for r in again.ms.maintain() if r.kind is MaintenanceKind.HISTORY]
        assert pruned.files_before > 4
        assert {r.name for r in again.ms.refresh_history(limit=100)} == {"per_key", "per_count"}
        assert len(again.ms.refresh_history(limit=100)) == 2
        again.queries = t.queries
        assert_well(again, "per_key", "per_count")


def test_a_commit_in_between_wins(t: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is an empty one, made after the lock was taken: the worst moment, which no refresh can choose."""
    chain(t)
    for step in range(12):
        change(t, step, "per_count")
    recording = Compacting._recording

    def late(self: Compacting, table: OwnedTable, version: int) -> object:
        if table.name != "per_key":
            return recording(self, table, version)
        assert t.ms._runtime.workers.here().store.version(table.path) == version
        (Path(table.path) / "_delta_log" / f"{version + 1:020d}.json").write_text(
            '{"commitInfo":{"timestamp":1,"operation":"a refresh"}}'
        )
        return recording(self, table, version)

    monkeypatch.setattr(Compacting, "_recording", late)
    results = [r for r in t.ms.maintain() if r.kind is MaintenanceKind.COMPACT]
    assert {r.name: r.skipped for r in results} == {"per_key": CHANGED}
    assert not list(t.root.rglob("_millstream_staging"))
    assert_well(t, "per_key", "per_count")


def test_a_table_that_is_locked_is_skipped(t: Lake) -> None:
    chain(t)
    for step in range(12):
        change(t, step, "per_count")
    before = version(t, "per_key")
    with held(t, t.ms._catalog.get(TableName.parse("per_key")).id):
        results = [r for r in t.ms.maintain() if r.name == "per_key" and r.kind is MaintenanceKind.COMPACT]
    assert [r.skipped for r in results] == ["the table is being refreshed"]
    assert version(t, "per_key") == before
    assert_well(t, "per_key", "per_count")


def test_two_processes_do_not_maintain_at_once(t: Lake) -> None:
    with held(t, "maintenance"), refused(Code.LOCK_TIMEOUT, "maintaining"):
        t.ms.maintain()


UPKEEP = "millstream.engine.storage.write.upkeep"
COMPACTION = "millstream.engine.storage.write.compaction"
POINTS = {
    "before the checkpoint": (f"{UPKEEP}:write_checkpoint_at", "before", 1),
    "after the checkpoint": (f"{UPKEEP}:write_checkpoint_at", "after", 1),
    "before files are deleted": (f"{UPKEEP}:_delete", "before", 1),
    "after files are deleted": (f"{UPKEEP}:_delete", "after", 1),
    "amid deleting files": ("pathlib:Path.unlink", "after", 20),
    "amid deleting more files": ("pathlib:Path.unlink", "after", 60),
    "before files are rewritten": (f"{COMPACTION}:_rewritten_here", "before", 1),
    "after files were rewritten": (f"{COMPACTION}:_rewritten_here", "after", 1),
    "amid adopting files": (f"{COMPACTION}:adopted_data", "after", 1),
    "before rewritten files are committed": (f"{COMPACTION}:put_if_absent", "before", 1),
    "after rewritten files were committed": (f"{COMPACTION}:put_if_absent", "after", 1),
    "before the catalog knows": ("record_rewritten", "before", 2),
    "after the catalog knows": ("record_rewritten", "after", 1),
}


@pytest.fixture(scope="module")
def worn(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that needs every kind of maintenance, closed."""
    root = tmp_path_factory.mktemp("worn") / "lake"
    with open_lake(root, retention_hours=0) as lake:
        lake.table("t", "k INT, v INT", *(f"{i % 7}, {i}" for i in range(50)))
        lake.stream("staged", STAGED)
        chain(lake)
        for step in range(24):
            change(lake, step, "per_count", "staged")
    return root


OFTEN = ("after the checkpoint", "amid deleting files", "after rewritten files were committed")


@pytest.mark.parametrize("point", [p if p in OFTEN else pytest.param(p, marks=pytest.mark.long) for p in POINTS])
def test_killed(spark: SparkSession, worn: Path, tmp_path: Path, point: str) -> None:
    """The process that maintains the lake dies; every table is exact and goes on incrementally."""
    root = tmp_path / "lake"
    shutil.copytree(worn, root)
    with LakeProcess(root, spark) as process:
        process.ask("die", *POINTS[point])
        process.tell("maintain")
        with pytest.raises(EOFError):
            process.answer()
        assert process.killed()
    names = ("per_key", "per_count", "staged")
    with open_lake(root) as t:
        for name in names:
            t.assert_exact(name)
        change(t, 500, "per_count", "staged")
        t.ms.maintain()
        assert_well(t, *names)
