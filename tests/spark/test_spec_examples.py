"""Every query that the specification shows, created, changed under, refreshed and compared with PostgreSQL's answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "catalog"))  # for the module below, which is no test

import psycopg
import pytest
from lake_kit import open_lake
from postgres_server import new_schema_url
from spec_examples import World, batches, examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::millstream.service.notices.NoticeWarning"),  # of results that SQL leaves open
]


@pytest.mark.long
@pytest.mark.parametrize("everything", [False, True], ids=["some", "all"])
def test_examples_are_followed_or_refused(everything: bool, spark: SparkSession, tmp_path: Path) -> None:
    with open_lake(tmp_path / "lake") as lake, psycopg.connect(new_schema_url(), autocommit=True) as postgres:
        world = World(lake, postgres, examples(everything=everything))
        world.load()
        world.create()
        for statements in batches():
            world.change(statements)
            world.refresh()
        world.compare()
    assert not world.wrong, "\n" + "\n".join(world.wrong)
