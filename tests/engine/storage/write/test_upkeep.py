"""Maintenance of one table: what is rewritten and deleted, and that every version in use stays as it was.

No JVM: the direct path and delta-rs read the tables; `tests/maintenance` reads them with Spark.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kits.storage import KSD, Bag, bag_of_arrow, change, rows, summed
from millstream.engine.storage import DeltaStore, RangeKind, Txn
from millstream.engine.storage.location import LOG_DIRECTORY
from millstream.engine.storage.log.retention import (
    StoredFile,
    unneeded_files,
    unneeded_log,
    version_current_at,
)
from millstream.engine.storage.write.upkeep import Excess, TableUpkeep
from millstream.settings import Settings

NEVER, ALL = 1 << 40, 1 << 62
"""As a number of bytes, no limit; as a cutoff, everything is old."""


def new_store() -> DeltaStore:
    return DeltaStore(None, Settings())  # type: ignore[arg-type]


@pytest.fixture
def store() -> DeltaStore:
    return new_store()


@pytest.fixture
def path(store: DeltaStore, tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    store.create(path, KSD, stats_columns=["k"])
    return path


def append(store: DeltaStore, path: str, *keys: int) -> None:
    number = store.version(path) + 1
    store.append(path, rows(*((k, "s", None) for k in keys)), Txn("a", number), {})


def replace_row(store: DeltaStore, path: str, key: int, new: int) -> None:
    version = store.version(path)
    found = store.look_up(path, version, {"k": pa.array([key])})
    assert found is not None
    located = store.arrow_at(path, version, found)
    assert located is not None
    change(store, path, located, rows((new, "u", None)))


def upkeep_of(store: DeltaStore, path: str) -> TableUpkeep:
    upkeep = store.upkeep(path)
    assert upkeep is not None
    return upkeep


def excess_of(path: str, needed: int, cutoff: float | None = None) -> Excess:
    upkeep = upkeep_of(new_store(), path)
    return upkeep.excess(upkeep.contents(), needed, time.time() + 1 if cutoff is None else cutoff)


def clean(path: str, needed: int) -> None:
    """Delete everything that the versions from `needed` on do not need."""
    upkeep = upkeep_of(new_store(), path)
    assert upkeep.checkpoint(needed)
    excess = excess_of(path, needed)
    upkeep.delete_files(excess.files, excess.since)
    upkeep.delete_log_files(excess.log)


def compact(path: str) -> int | None:
    with upkeep_of(new_store(), path).rewriting(NEVER) as rewritten:
        return rewritten.commit() if rewritten is not None else None


def contents(path: str, version: int) -> Bag:
    found = new_store().rows(path, version, 1_000_000)
    assert found is not None
    return bag_of_arrow(found)


def feed(path: str, after: int, upto: int) -> dict[tuple[Any, ...], int]:
    found = new_store().changes(path, after, upto).arrow
    assert found is not None
    return summed(found)


def by_delta_rs(path: str, version: int) -> set[str]:
    return {Path(uri).name for uri in DeltaTable(path, version=version).file_uris()}


def files_of(path: str) -> set[str]:
    root = Path(path)
    return {str(f.relative_to(root)) for f in root.rglob("*") if f.is_file() and LOG_DIRECTORY not in f.parts}


def grown(store: DeltaStore, path: str, steps: int, seed: int = 0) -> None:
    """Appends, updates that leave deletion vectors, and files that fold."""
    draw, live = random.Random(seed), [0]
    append(store, path, *live)
    for step in range(1, steps):
        if draw.random() < 0.5:
            append(store, path, step)
            live.append(step)
        else:
            key = live.pop(draw.randrange(len(live)))
            replace_row(store, path, key, step)
            live.append(step)


def test_compaction_changes_no_row(store: DeltaStore, path: str) -> None:
    grown(store, path, 12)
    before = contents(path, 12)
    assert compact(path) == 13
    assert contents(path, 13) == contents(path, 12) == before
    assert len(by_delta_rs(path, 13)) == 1
    assert new_store().classify(path, 12, 13).kind is RangeKind.NOTHING
    assert compact(path) is None
    assert not list(Path(path).glob("_millstream*"))


def test_a_small_table_is_rewritten_without_spark_and_a_bite_is_bounded(store: DeltaStore, path: str) -> None:
    grown(store, path, 12)
    assert excess_of(path, 12).rewritable[0] > 4
    with upkeep_of(store, path).rewriting(1) as rewritten:
        assert rewritten is not None
        assert len(rewritten.files) == 1


def test_a_commit_in_between_wins(store: DeltaStore, path: str) -> None:
    grown(store, path, 12)
    with upkeep_of(store, path).rewriting(NEVER) as rewritten:
        assert rewritten is not None
        append(new_store(), path, 99)
        before = files_of(path)
        assert rewritten.commit() is None
        assert {f for f in files_of(path) if "_millstream" not in f} == {f for f in before if "_millstream" not in f}
    assert not list(Path(path).glob("_millstream*"))
    assert new_store().version(path) == 13
    assert contents(path, 13)[(99, "s", None)] == 1


def test_files_that_are_not_committed_disappear(store: DeltaStore, path: str) -> None:
    grown(store, path, 12)
    before = files_of(path)
    with upkeep_of(store, path).rewriting(NEVER) as rewritten:
        assert rewritten is not None
    assert files_of(path) == before


@pytest.mark.parametrize("seed", range(6))
def test_every_version_in_use_stays_as_it_was(store: DeltaStore, path: str, seed: int) -> None:
    grown(store, path, 40, seed)
    compact(path)
    grown_to = new_store().version(path)
    since = random.Random(seed).randrange(grown_to + 1)
    wanted: dict[int, Any] = {v: contents(path, v) for v in range(since, grown_to + 1)}
    feeds = {v: feed(path, v, grown_to) for v in wanted if v < grown_to}
    files = {v: by_delta_rs(path, v) for v in wanted}
    before = len(files_of(path)), len(os.listdir(Path(path) / LOG_DIRECTORY))
    clean(path, since)
    assert {v: contents(path, v) for v in wanted} == wanted
    assert {v: by_delta_rs(path, v) for v in wanted} == files
    assert {v: feed(path, v, grown_to) for v in feeds} == feeds
    assert new_store().commit_id(path, since) is not None
    assert excess_of(path, since).files == excess_of(path, since).log == ()
    if since > grown_to // 2:
        assert (len(files_of(path)), len(os.listdir(Path(path) / LOG_DIRECTORY))) < before
    append(new_store(), path, 1_000)
    assert contents(path, grown_to + 1) == wanted[grown_to] + Counter({(1_000, "s", None): 1})


def test_the_newest_version_alone_needs_few_files(store: DeltaStore, path: str) -> None:
    grown(store, path, 40)
    compact(path)
    newest = new_store().version(path)
    clean(path, newest)
    assert len(files_of(path)) == 1
    assert {f for f in os.listdir(Path(path) / LOG_DIRECTORY) if not f.startswith(".")} == {
        f"{newest:020d}.json",
        f"{newest:020d}.checkpoint.parquet",
        "_last_checkpoint",
    }


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_a_crash_while_deleting_leaves_a_readable_table(store: DeltaStore, path: str, share: float) -> None:
    grown(store, path, 30)
    newest = new_store().version(path)
    wanted = contents(path, newest)
    upkeep = upkeep_of(new_store(), path)
    assert upkeep.checkpoint(newest)
    excess = excess_of(path, newest)
    upkeep.delete_files(excess.files[: int(share * len(excess.files))], excess.since)
    ordered = sorted(excess.log, key=lambda f: f.name.lstrip("."))
    upkeep.delete_log_files(ordered[: int(share * len(ordered))])
    assert contents(path, newest) == wanted
    assert by_delta_rs(path, newest)
    clean(path, newest)
    assert contents(path, newest) == wanted


def test_what_was_current_within_the_retention_stays(store: DeltaStore, path: str) -> None:
    """The version that was current at the cutoff is in use until another one replaced it."""
    grown(store, path, 20)
    long_ago = time.time() - 7_200
    for file in Path(path).rglob("*"):
        os.utime(file, (long_ago, long_ago))
    for version in range(15, 21):
        os.utime(Path(path) / LOG_DIRECTORY / f"{version:020d}.json")
    wanted = contents(path, 14)
    excess = excess_of(path, 20, time.time() - 3_600)
    assert excess.since == 14
    upkeep_of(store, path).delete_files(excess.files, excess.since)
    assert contents(path, 14) == wanted


def test_files_without_a_commit_go_when_they_are_old(store: DeltaStore, path: str) -> None:
    append(store, path, 1)
    (Path(path) / "part-orphan.parquet").write_bytes(b"x")
    (Path(path) / "_reserved").write_bytes(b"x")
    assert excess_of(path, 1, time.time() - 60).files == ()
    assert [f.name for f in excess_of(path, 1).files] == ["part-orphan.parquet"]


def test_checksums_belong_to_their_files() -> None:
    files = [StoredFile(n, 1, 0.0) for n in ("a.parquet", ".a.parquet.crc", ".b.parquet.crc")]
    assert [f.name for f in unneeded_files(files, {"a.parquet"}, 1.0)] == [".b.parquet.crc"]


def log_file(name: str, modified: float = 0.0) -> StoredFile:
    return StoredFile(name, 1, modified)


def test_a_log_keeps_everything_from_the_checkpoint_of_the_oldest_version_in_use() -> None:
    names = [f"{v:020d}.json" for v in range(31)]
    names += [f"{v:020d}.checkpoint.parquet" for v in (10, 20, 30)]
    names += [f"{v:020d}.crc" for v in range(31)] + [f".{5:020d}.json.crc", f"{1:020d}.{9:020d}.compacted.json"]
    names += ["_last_checkpoint", "_sidecars"]

    def kept(since: int, last: int | None = 30) -> set[str]:
        files = [log_file(n) for n in names]
        gone = {f.name for f in unneeded_log(files, [10, 20, 30], since, last, 0.0)}
        return {n for n in names if n not in gone}

    assert kept(9) == set(names)
    assert kept(25) == {n for n in names if not n.lstrip(".")[0].isdigit() or int(n.lstrip(".")[:20]) >= 20}
    assert kept(30, last=20) == kept(25)
    assert kept(30, last=0) == set(names)


def test_drafts_of_commits_go_after_an_hour() -> None:
    draft = ".0b0e9a3c-0000-4000-8000-000000000000.draft"
    assert unneeded_log([log_file(draft, 10.0)], [], 5, None, 11.0)
    assert not unneeded_log([log_file(draft, 10.0)], [], 5, None, 9.0)


def test_a_clock_that_went_back_keeps_more() -> None:
    assert version_current_at({0: 10.0, 1: 50.0, 2: 20.0, 3: 60.0}, 30.0) == 0
    assert version_current_at({}, 30.0) is None
