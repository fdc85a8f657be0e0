"""Every query that the specification shows, created, changed under, refreshed and compared with PostgreSQL's answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "catalog"))  # for the module below, which is no test

import psycopg
import pytest
from lake_kit import open_lake
from postgres_server import new_schema_url
from spec_examples import World, batches, examples

from millstream import MillstreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    with open_lake(tmp_path / "lake") as lake, _postgres() as postgres:
        opened = World(lake, postgres)
        opened.load()
        yield opened


def _postgres() -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(new_schema_url(), autocommit=True)


def test_a_part_of_the_examples_is_followed_or_refused(world: World) -> None:
    _follow(world, everything=False)


@pytest.mark.long
def test_all_examples_are_followed_or_refused(world: World) -> None:
    _follow(world, everything=True)


def _follow(world: World, *, everything: bool) -> None:
    for example in examples(everything=everything):
        kind, _, code = example.expect.partition(" ")
        if kind != "refused":
            world.create(example)
            continue
        try:
            world.lake.ms.create_stream_table(
                example.name, example.query, refresh_mode="DIFFERENTIAL", dialect="postgres"
            )
            world.wrong.append(f"{example.title} ({example.name}) is not refused")
        except MillstreamError as e:
            if e.code != code or e.hint is None:
                world.wrong.append(f"{example.title} ({example.name}): {e}")
    world.compare()
    for statements in batches():
        for statement in statements:
            world.run(statement)
        world.refresh()
    world.compare()
    assert not world.wrong, "\n" + "\n".join(world.wrong)
