"""A tick, and the begin of a capture, are cut short by SIGKILL at every boundary between their steps.

The next refresh makes everything right, once: contents are the database's own answer, no mirror has a tick twice, and
what was half-made is gone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.captured_lake import CapturedLake, open_captured, written
from kits.lake_process import LakeProcess
from kits.shops import Shop
from millstream import Action

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

CLEAN_UP, SOURCE = (f"millstream.capture.{name}" for name in ("stages.clean_up", "installation"))
PAIRS = "SELECT a.k, a.v AS av, b.v AS bv FROM shop.public.a a JOIN shop.public.b b ON a.k = b.k"
BOTH = "WITH x AS (UPDATE a SET v = v + 1) UPDATE b SET v = v + 1"


def _named(point: tuple[str, str, int]) -> str:
    return f"{point[1]} {point[0].rpartition(':')[2]} {point[2]}"


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[CapturedLake]:
    with open_captured(tmp_path / "lake", shop) as opened:
        opened.run(
            "CREATE TABLE a (k int PRIMARY KEY, v int, more text)",
            "CREATE TABLE b (k int, v int)",
            "INSERT INTO a VALUES (1, 10, 'x'), (2, 20, 'y')",
            "INSERT INTO b VALUES (1, 10), (2, 20), (2, 20)",
        )
        yield opened


def crash(lake: CapturedLake, spark: SparkSession, point: tuple[str, str, int], *call: object) -> None:
    with LakeProcess(lake.root, spark) as process:
        process.ask("die", *point)
        process.tell(*call)
        assert process.killed()


def assert_nothing_twice(lake: CapturedLake) -> None:
    """Each tick has committed at most once to a mirror, in growing order."""
    for log in lake.root.glob("mirrors/*/_delta_log"):
        made: list[tuple[str, int]] = []
        for file in sorted(log.glob("*.json")):
            actions = [json.loads(line) for line in file.read_text().splitlines()]
            made += [(a["txn"]["appId"], a["txn"]["version"]) for a in actions if "txn" in a]
        assert max(Counter(made).values(), default=1) == 1
        assert [n for _, n in made] == sorted(n for _, n in made)


@pytest.mark.parametrize(
    "point",
    [
        ("put_database", "before", 1),
        ("put_database", "after", 1),
        ("commit", "after", 1),
        ("commit", "after", 2),
        ("put_database", "before", 2),
        ("put_database", "after", 2),
        (f"{CLEAN_UP}:trim", "after", 1),
    ],
    ids=_named,
)
def test_a_tick_of_two_tables(lake: CapturedLake, spark: SparkSession, point: tuple[str, str, int]) -> None:
    lake.stream("pairs", PAIRS)
    lake.run(BOTH)
    crash(lake, spark, point, "refresh", "pairs")
    lake.run(BOTH, "DELETE FROM b WHERE ctid = (SELECT max(ctid) FROM b)")
    lake.refresh("pairs", Action.DIFFERENTIAL)
    assert_nothing_twice(lake)
    lake.run(BOTH)
    lake.refresh("pairs", Action.DIFFERENTIAL)
    assert_nothing_twice(lake)


@pytest.mark.parametrize(
    "point",
    [
        ("put_database", "after", 1),
        (f"{SOURCE}:install", "after", 1),
        ("commit", "after", 1),
        ("put_lake_object", "before", 1),
        ("put_lake_object", "after", 2),
        ("create_stream_table", "before", 1),
    ],
    ids=_named,
)
def test_a_creation(lake: CapturedLake, spark: SparkSession, point: tuple[str, str, int]) -> None:
    crash(lake, spark, point, "create", "pairs", PAIRS)
    assert lake.ms.status() == []
    lake.run(BOTH)
    lake.stream("pairs", PAIRS)
    lake.run(BOTH)
    lake.refresh("pairs", Action.DIFFERENTIAL)
    assert len(lake.mirrors) == 2
    lake.ms.drop_stream_table("pairs")
    assert (lake.mirrors, lake.made) == ([], [])


@pytest.mark.parametrize(
    "point", [("commit", "before", 2), ("commit", "after", 2), ("put_database", "before", 3)], ids=_named
)
def test_more_columns(lake: CapturedLake, spark: SparkSession, point: tuple[str, str, int]) -> None:
    lake.stream("narrow", "SELECT k, v FROM shop.public.a")
    lake.run(BOTH)
    crash(lake, spark, point, "create", "wide", "SELECT k, v, more FROM shop.public.a")
    lake.run("UPDATE a SET v = 7, more = 'z' WHERE k = 1", "INSERT INTO a VALUES (3, 3, 'w')")
    lake.refresh("narrow", Action.DIFFERENTIAL)
    lake.stream("wide", "SELECT k, v, more FROM shop.public.a")
    lake.run("UPDATE a SET more = 'q' WHERE k = 2")
    lake.refresh("wide", Action.DIFFERENTIAL)
    assert written(lake.refresh("narrow")) == 0
    assert_nothing_twice(lake)


def test_a_capture_that_nobody_reads_ends_with_the_next_tick(lake: CapturedLake, spark: SparkSession) -> None:
    lake.stream("kept", "SELECT k, v FROM shop.public.b")
    lake.stream("gone", "SELECT k, v FROM shop.public.a")
    crash(lake, spark, (f"{SOURCE}:remove", "before", 1), "drop", "gone")
    assert [t.name for t in lake.ms.status()] == ["kept"]
    assert len(lake.mirrors) == 2
    lake.run(BOTH)
    lake.refresh("kept", Action.DIFFERENTIAL)
    assert len(lake.mirrors) == 1
    left = lake.owner.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'a'::regclass").fetchone()
    assert left == (0,)
