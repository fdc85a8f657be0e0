"""Direct commits without a JVM: a long random life of a table, checked against a model in plain Python."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from kits.storage import KSD, Bag, bag_of_arrow, change, direct, next_txn, rows, stored, summed, without_places
from millstream import naming
from millstream.engine.storage import CHANGE, INSERT, POSTIMAGE, PREIMAGE, ChangeSet, Commit, DeltaStore, RangeKind, Txn
from millstream.engine.storage.write import fold
from millstream.errors import Code, MillstreamError


@pytest.fixture
def store() -> DeltaStore:
    return direct(None)


@pytest.fixture
def path(store: DeltaStore, tmp_path: Path) -> str:
    path = str(tmp_path / "a table")
    store.create(path, KSD, stats_columns=["k", "s", "d"])
    return path


def random_row(rng: random.Random) -> tuple[Any, ...]:
    return rng.choice([None, *range(6)]), rng.choice([None, "a", "b"]), rng.choice([None, Decimal("0.5"), Decimal(7)])


@pytest.mark.parametrize("seed", range(4))
def test_random_life(store: DeltaStore, path: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """130 commits: vectors upon vectors, files that die, folding, a checkpoint on the way."""
    monkeypatch.setattr(fold, "SMALL_ROWS", 60)
    monkeypatch.setattr(fold, "MAX_SMALL_FILES", 3)
    rng = random.Random(seed)
    models: list[Bag] = [Counter()]
    while len(models) <= 130:
        now = stored(store, path)
        assert bag_of_arrow(without_places(now)) == models[-1]
        wanted = rng.choice([0, 1, 3, 3, now.num_rows // 2, now.num_rows])
        removed = now.take(pa.array(rng.sample(range(now.num_rows), min(now.num_rows, wanted)), pa.int64()))
        added = rows(*(random_row(rng) for _ in range(rng.choice([0, 2, 5, 25]))))
        commit = change(store, path, removed, added)
        if removed.num_rows + added.num_rows == 0:
            assert commit is None
            continue
        models.append(models[-1] - bag_of_arrow(without_places(removed)) + bag_of_arrow(added))
        assert commit == Commit(len(models) - 1, added.num_rows, removed.num_rows)
        assert store.snapshot(path).num_rows == models[-1].total()
    fresh = direct(None)  # starts from the checkpoint
    assert bag_of_arrow(without_places(stored(fresh, path))) == models[-1]
    assert fresh.transaction_version(path, "app") == store.transaction_version(path, "app")
    for version in rng.sample(range(len(models)), 20):
        changes = store.changes(path, version, len(models) - 1)
        assert changes.arrow is not None
        total = Counter(models[version])
        total.update(summed(changes.arrow))
        assert +total == models[-1]
        assert changes.arrow.num_rows == len(summed(changes.arrow)), "one row per value"


def test_a_checkpoint_keeps_everything(store: DeltaStore, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    store.create(path, KSD, stats_columns=["k"], properties={"delta.checkpointInterval": "4"})
    store.append(path, rows(*((i, "a", None) for i in range(9))), Txn("early", 17), {})
    change(store, path, stored(store, path).slice(2, 3), None)
    for k in (100, 101):
        store.append(path, rows((k, "b", None)), Txn("late", k), {})
    log = Path(path) / "_delta_log"
    assert (log / f"{4:020d}.checkpoint.parquet").exists()
    for version in range(4):
        (log / f"{version:020d}.json").unlink()
    fresh = direct(None)
    assert (fresh.transaction_version(path, "early"), fresh.transaction_version(path, "late")) == (17, 101)
    assert fresh.append(path, rows((1, "x", None)), Txn("early", 17), {}).repeated
    assert bag_of_arrow(stored(fresh, path)) == bag_of_arrow(stored(store, path))
    assert fresh.snapshot(path) == store.snapshot(path)
    change(fresh, path, stored(fresh, path).slice(0, 1), None)
    assert direct(None).snapshot(path).num_rows == 7


def test_other_engines_read_what_we_write(store: DeltaStore, path: str) -> None:
    store.append(path, rows(*((i, f"s{i}", Decimal(i)) for i in range(100))), next_txn(), {})
    old = stored(store, path)
    change(store, path, old.slice(10, 20), rows((1000, "new", None)))
    table = DeltaTable(path)
    count, total = QueryBuilder().register("t", table).execute("SELECT count(*) c, sum(k) s FROM t").read_all().columns
    assert (count[0].as_py(), total[0].as_py()) == (81, sum(range(100)) - sum(range(10, 30)) + 1000)
    assert pa.table(table.load_cdf(starting_version=2, ending_version=2)).num_rows == 21


def test_statistics_leave_decimals_out(store: DeltaStore, path: str) -> None:
    store.append(path, rows((3, "b", Decimal("12345678901234567.89")), (None, "x" * 40, Decimal(1))), next_txn(), {})
    (file,) = store._state(path, None).files.values()
    assert file.stats == {
        "numRecords": 2,
        "minValues": {"k": 3},
        "maxValues": {"k": 3},
        "nullCount": {"k": 1, "s": 0},
        "tightBounds": True,
    }


def test_a_marked_file_keeps_its_bounds_loosely(store: DeltaStore, path: str) -> None:
    store.append(path, rows((1, "a", None), (2, "b", None)), next_txn(), {})
    change(store, path, stored(store, path).slice(0, 1), None)
    (file,) = store._state(path, None).files.values()
    assert (file.num_records, file.num_live) == (2, 1)
    assert file.stats["tightBounds"] is False
    assert file.stats["minValues"] == {"k": 1, "s": "a"}


def test_a_file_without_live_rows_goes(store: DeltaStore, path: str) -> None:
    store.append(path, rows((1, "a", None), (2, "b", None)), next_txn(), {})
    change(store, path, stored(store, path), None)
    assert store.snapshot(path).num_files == 0


def test_small_files_are_folded(store: DeltaStore, path: str) -> None:
    for i in range(100):
        store.append(path, rows((i, "s", None)), next_txn(), {})
    assert store.snapshot(path).num_files <= fold.MAX_SMALL_FILES + 1
    assert bag_of_arrow(without_places(stored(store, path))) == Counter((i, "s", None) for i in range(100))
    summary = store.classify(path, 0, 100)
    assert (summary.kind, summary.changed_rows, summary.exact) == (RangeKind.APPEND_ONLY, 100, True)


def test_updates_are_labelled_and_counted(store: DeltaStore, path: str) -> None:
    store.append(path, rows((1, "a", None), (2, "b", None)), next_txn(), {})
    old = stored(store, path).slice(0, 1).append_column(CHANGE, pa.array([PREIMAGE]))
    new = rows((1, "z", None), (3, "c", None)).append_column(CHANGE, pa.array([POSTIMAGE, INSERT]))
    change(store, path, old, new, metadata={"frontier": {"orders": 7}})
    feed = pa.table(DeltaTable(path).load_cdf(starting_version=2, ending_version=2))
    labels = sorted(zip(feed["_change_type"].to_pylist(), feed["s"].to_pylist(), strict=True))
    assert labels == [("insert", "c"), ("update_postimage", "z"), ("update_preimage", "a")]
    summary = store.classify(path, 1, 2)
    assert (summary.kind, summary.changed_rows, summary.feed_rows) == (RangeKind.MUTATING, 2, 3)
    assert store.committed(path, Txn("app", store.transaction_version(path, "app") or 0)) == (
        2,
        {"frontier": {"orders": 7}},
    )


def test_exactly_once(store: DeltaStore, path: str) -> None:
    txn = next_txn()
    first = store.append(path, rows((1, "a", None)), txn, {})
    assert store.append(path, rows((1, "a", None)), txn, {}) == Commit(first.version, repeated=True)
    again = change(store, path, stored(store, path), rows((5, "x", None)), txn=Txn(txn.app_id, txn.version))
    assert again == Commit(first.version, repeated=True)
    assert store.snapshot(path).num_rows == 1


def test_a_moved_table_is_a_conflict(store: DeltaStore, path: str) -> None:
    store.append(path, rows((1, "a", None)), next_txn(), {})
    seen = stored(store, path)
    change(store, path, None, rows((2, "b", None)))
    with pytest.raises(MillstreamError) as caught:
        store.apply(path, ChangeSet(seen, None, expected_version=1), next_txn(), {})
    assert caught.value.code is Code.COMMIT_CONFLICT
    assert store.version(path) == 2


@pytest.mark.parametrize(
    "places", [("gone.parquet", 0), (None, 99), (None, 0, 0)], ids=["unknown file", "unknown row", "twice"]
)
def test_rows_that_are_not_there(store: DeltaStore, path: str, places: tuple[str | None, int]) -> None:
    store.append(path, rows((1, "a", None)), next_txn(), {})
    row = stored(store, path)
    name = places[0] or row.column(naming.FILE)[0].as_py()
    wrong = pa.concat_tables(
        without_places(row)
        .append_column(naming.FILE, pa.array([name]))
        .append_column(naming.ROW, pa.array([n], pa.int64()))
        for n in places[1:]
    )
    before = sorted(p.name for p in Path(path).rglob("*"))
    with pytest.raises(MillstreamError) as caught:
        change(store, path, wrong, rows((2, "b", None)))
    assert caught.value.code is Code.COMMIT_CONFLICT
    assert sorted(p.name for p in Path(path).rglob("*")) == before, "nothing is left behind"


@pytest.mark.usefixtures("unlocked")
def test_racing_appends_all_arrive(path: str) -> None:
    _race(lambda store, n: store.append(path, rows((n, "r", None)), Txn(f"app{n}", 1), {}), threads=8)
    fresh = direct(None)
    assert fresh.snapshot(path).num_rows == 8
    assert {fresh.transaction_version(path, f"app{n}") for n in range(8)} == {1}


@pytest.mark.usefixtures("unlocked")
def test_racing_changes_have_one_winner(store: DeltaStore, path: str) -> None:
    store.append(path, rows((1, "a", None)), next_txn(), {})
    old = stored(store, path)

    def replace_row(own: DeltaStore, n: int) -> None:
        own.apply(path, ChangeSet(old, rows((n, "won", None)), 1), Txn(f"app{n}", 1), {})

    failures = _race(replace_row, threads=6)
    assert [f.code for f in failures] == [Code.COMMIT_CONFLICT] * 5
    assert store.snapshot(path).num_rows == 1
    assert store.version(path) == 2


@pytest.mark.usefixtures("unlocked")
def test_racing_repeats_of_one_transaction(store: DeltaStore, path: str) -> None:
    store.append(path, rows((1, "a", None)), next_txn(), {})
    old, txn = stored(store, path), next_txn()
    failures = _race(lambda own, n: own.apply(path, ChangeSet(old, rows((9, "x", None)), 1), txn, {}), threads=6)
    assert failures == []
    assert bag_of_arrow(without_places(stored(store, path))) == {(9, "x", None): 1}
    assert store.version(path) == 2


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between processes: only the commit itself decides who was first."""
    monkeypatch.setattr("millstream.engine.storage.write.writer._lock_of", lambda _: threading.RLock())


def _race(work: Any, threads: int) -> list[MillstreamError]:
    """Run `work(store, n)` in threads with a store each, let loose at once; gives what failed."""
    barrier, failures = threading.Barrier(threads), []

    def run(n: int) -> None:
        own = direct(None)
        barrier.wait()
        try:
            work(own, n)
        except MillstreamError as e:
            failures.append(e)

    running = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return failures


def test_dropped_and_made_anew(store: DeltaStore, path: str) -> None:
    store.append(path, rows((1, "a", None)), next_txn(), {})
    before = store.snapshot(path)
    for file in sorted(Path(path).rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    assert not store.exists(path)
    with pytest.raises(MillstreamError) as caught:
        store.version(path)
    assert caught.value.code is Code.SOURCE_MISSING
    store.create(path, KSD)
    assert store.classify(path, before.version, store.version(path)).kind is RangeKind.RECREATED
    store.append(path, rows((1, "a", None)), next_txn(), {})
    store.append(path, rows((2, "b", None)), next_txn(), {})
    assert store.version(path) > before.version
    assert store.classify(path, before.version, 2, table_id=before.table_id).kind is RangeKind.RECREATED


def test_lost_history(store: DeltaStore, path: str) -> None:
    for i in range(5):
        store.append(path, rows((i, "a", None)), next_txn(), {})
    log = Path(path) / "_delta_log"
    DeltaTable(path).create_checkpoint()
    for version in range(3):
        (log / f"{version:020d}.json").unlink()
    fresh = direct(None)
    assert fresh.classify(path, 1, 5).kind is RangeKind.LOST
    assert fresh.classify(path, 5, 5).kind is RangeKind.NOTHING
    with pytest.raises(MillstreamError) as caught:
        fresh.changes(path, 1, 5)
    assert caught.value.code is Code.FRONTIER_LOST


def test_lost_change_files(store: DeltaStore, path: str) -> None:
    store.append(path, rows((1, "a", None)), next_txn(), {})
    change(store, path, stored(store, path), rows((2, "b", None)))
    for file in (Path(path) / "_change_data").iterdir():
        file.unlink()
    assert store.classify(path, 1, 2).kind is RangeKind.LOST


def test_an_unwritable_lake(store: DeltaStore, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", full)
    with pytest.raises(MillstreamError) as caught:
        store.append(path, rows((1, "a", None)), next_txn(), {})
    assert caught.value.code is Code.LAKE_UNWRITABLE
    assert [p.name for p in Path(path).iterdir()] == ["_delta_log"], "the data file is deleted again"


def test_without_hard_links(store: DeltaStore, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", unsupported)
    store.append(path, rows((1, "a", None)), next_txn(), {})
    assert direct(None).snapshot(path).num_rows == 1


def test_commit_lines_are_json(store: DeltaStore, path: str) -> None:
    store.append(path, rows((1, "zwölf", None)), next_txn(), {"reason": "naïve"})
    lines = (Path(path) / "_delta_log" / f"{1:020d}.json").read_text(encoding="utf-8").splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["commitInfo", "txn", "add"]
