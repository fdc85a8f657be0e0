"""Every query that the specification shows, created, changed under, refreshed and compared with PostgreSQL's answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from kits.catalog_server import new_schema_url
from kits.lake import open_lake
from kits.spec_examples import World, batches, examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::millstream.notices.NoticeWarning"),  # of results that SQL leaves open
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
