"""What a served table reads of a stream table's storage, without Spark."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from kits.stage_feed import StoredStage, weights
from millstream.catalog import Catalog
from millstream.catalog.models import StreamTable


@pytest.fixture
def stage(tmp_path: Path) -> StoredStage:
    return StoredStage(tmp_path / "stage")


@pytest.fixture
def table(tmp_path: Path, stage: StoredStage) -> StreamTable:
    with Catalog.open(tmp_path) as catalog:
        return catalog.create_stream_table(stage.new_table)


def at(table: StreamTable, version: int) -> StreamTable:
    return replace(table, stages=tuple(replace(s, version=version) for s in table.stages))


def test_a_delta_lies_between_two_versions(stage: StoredStage, table: StreamTable) -> None:
    first, last = stage.add((1, "a")), stage.add((2, None), (2, None))
    delta = stage.feed(at(table, last)).delta(first)
    assert isinstance(delta, pa.Table)
    assert weights(delta) == Counter({(2, None): 2})


def test_more_changes_than_fit_into_memory_come_in_pieces(
    stage: StoredStage, table: StreamTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.serving.table_server._MAX_COLLECTED_ROWS", 3)
    monkeypatch.setattr("millstream.serving.table_server._BATCH_ROWS", 3)
    first, second = stage.add((1, "a")), stage.add((2, "b"), (3, "c"), (4, "d"))
    last = stage.add((5, "e"))
    assert isinstance(stage.feed(at(table, second)).delta(first), pa.Table)
    large = stage.feed(at(table, last)).delta(first)
    assert not isinstance(large, pa.Table | str)
    pieces = [weights(piece) for piece in large]
    assert [piece.total() for piece in pieces] == [3, 1]
    assert sum(pieces, Counter()) == Counter([(2, "b"), (3, "c"), (4, "d"), (5, "e")])


def test_a_version_of_a_restored_lake_is_another_one(stage: StoredStage, table: StreamTable, tmp_path: Path) -> None:
    first = stage.add((1, "a"))
    shutil.copytree(stage.directory, tmp_path / "copy")
    second = stage.add((2, "b"))
    feed = stage.feed(at(table, second))
    known = feed.commit_id(first), feed.commit_id(second)
    shutil.rmtree(stage.directory)
    shutil.move(tmp_path / "copy", stage.directory)
    stage.refreshes -= 1
    stage.reopened()
    assert stage.add((3, "c")) == second
    feed = stage.feed(at(table, second))
    assert feed.commit_id(first) == known[0] is not None
    assert feed.commit_id(second) not in (None, *known)
    assert feed.commit_id(second + 1) is None
