"""What a served table reads of a stream table's storage, without Spark."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from stage_kit import StoredStage, weights

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


def test_more_changes_than_fit_into_memory_are_no_delta(
    stage: StoredStage, table: StreamTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.refresh.serving._MAX_COLLECTED_ROWS", 3)
    first, second = stage.add((1, "a")), stage.add((2, "b"), (3, "c"), (4, "d"))
    last = stage.add((5, "e"))
    assert isinstance(stage.feed(at(table, second)).delta(first), pa.Table)
    assert stage.feed(at(table, last)).delta(first) == "LARGE_DELTA: 4 changes"
