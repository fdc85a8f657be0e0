"""A process is killed by SIGKILL while it refreshes tables that are served: the next refresh makes everything right.

`totals` reads `pairs`, and both are served into the database whose tables they come from: `pairs`, which has
duplicates, by the places of its rows, and `totals` by its key. Mirrors, stream tables and served tables hold what the
database itself says; a change that was applied twice, or not at all, would show in each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kits.captured_lake import CapturedLake, open_captured, plain
from kits.lake_process import LakeProcess
from kits.shops import MILLSTREAM, Shop
from millstream import Action
from millstream.engine.storage import DeltaStore
from millstream.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

WRITER = "millstream.sinks.postgres.table_writer:TableWriter"
RECORDED, COMMITTED = f"{WRITER}._record", f"{WRITER}.apply"
PAIRS = "SELECT a.v AS av, b.v AS bv FROM shop.public.a a JOIN shop.public.b b ON a.k = b.k"
TOTALS = "SELECT bv, COUNT(*) AS n, SUM(av) AS total FROM {} GROUP BY bv"
WRITES = (
    "UPDATE a SET v = v + 1 WHERE k = 1",
    "WITH x AS (INSERT INTO a VALUES (3, 30)) INSERT INTO b VALUES (3, 30), (3, 30), (1, 10)",
    "DELETE FROM b WHERE ctid = (SELECT max(ctid) FROM b WHERE k = 2)",
)


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[CapturedLake]:
    with open_captured(tmp_path / "lake", shop) as opened:
        opened.run(
            f"GRANT CREATE ON SCHEMA public TO {MILLSTREAM}",
            "CREATE TABLE a (k int PRIMARY KEY, v int)",
            "CREATE TABLE b (k int, v int)",
            "INSERT INTO a VALUES (1, 10), (2, 20)",
            "INSERT INTO b VALUES (1, 10), (2, 20), (2, 20), (2, 20), (2, 30)",
        )
        for name, query in (("pairs", PAIRS), ("totals", TOTALS.format("pairs"))):
            opened.ms.create_stream_table(
                name, query, refresh_mode="DIFFERENTIAL", dialect="postgres", serve_to=f"shop.public.{name}"
            )
        opened.queries.update(pairs=PAIRS, totals=TOTALS.format(f"({PAIRS}) AS pairs"))
        yield opened


def asked(lake: CapturedLake, query: str) -> Counter[Any]:
    """The database's own answer."""
    with lake.shop.server.superuser(lake.shop.name) as superuser:
        return Counter(plain(row) for row in superuser.execute(query.encode()))


def assert_exact(lake: CapturedLake) -> None:
    """Mirrors, stream tables and served tables hold what PostgreSQL says."""
    store = DeltaStore(None, Settings())  # type: ignore[arg-type]
    for capture in lake.ms._catalog.captures():
        assert capture.version is not None
        rows = store.rows(capture.path, capture.version, 1000)
        assert rows is not None
        names = [name for name, _, _ in capture.columns]
        mirrored = Counter(plain(row[name] for name in names) for row in rows.to_pylist())
        assert mirrored == asked(lake, f"SELECT {', '.join(names)} FROM {capture.table}"), capture.table
    for name in ("pairs", "totals"):
        lake.assert_exact(name)
        assert asked(lake, f"SELECT * FROM {name}") == asked(lake, lake.queries[name].replace("shop.", "")), name


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(("commit", "after", 3), id="pairs committed and not recorded"),
        pytest.param(("complete_refresh", "after", 1), id="pairs recorded and not served"),
        pytest.param((RECORDED, "after", 1), id="pairs served before COMMIT"),
        pytest.param((COMMITTED, "after", 1), id="pairs served after COMMIT"),
        pytest.param(("complete_refresh", "after", 2), id="totals recorded and not served"),
        pytest.param((RECORDED, "after", 2), id="totals served before COMMIT"),
        pytest.param((COMMITTED, "after", 2), id="totals served after COMMIT"),
    ],
)
def test_killed_while_served_tables_are_refreshed(
    lake: CapturedLake, spark: SparkSession, point: tuple[str, str, int]
) -> None:
    before = {name: asked(lake, f"SELECT * FROM {name}") for name in ("pairs", "totals")}
    lake.run(*WRITES)
    wanted = {name: asked(lake, lake.queries[name].replace("shop.", "")) for name in before}
    with LakeProcess(lake.root, spark) as process:
        process.ask("die", *point)
        process.tell("refresh", "totals")
        assert process.killed()

    # the process died where it should: what is served is the old or the new, whole
    step, _, nth = point
    done = (["pairs"] if nth == 2 or step == COMMITTED else []) + (
        ["totals"] if point == (COMMITTED, "after", 2) else []
    )
    for name, old in before.items():
        assert old != wanted[name]
        assert asked(lake, f"SELECT * FROM {name}") == (wanted[name] if name in done else old), name

    lake.run("INSERT INTO b VALUES (2, 20), (2, 40)", "UPDATE a SET v = v + 1")
    lake.refresh("totals", Action.DIFFERENTIAL)
    assert_exact(lake)
    lake.run(*(w.replace("3, 30", "4, 40") for w in WRITES))
    lake.refresh("totals", Action.DIFFERENTIAL)
    assert_exact(lake)
    modes = asked(lake, "SELECT served_table, mode FROM millstream.served_tables")
    assert modes == Counter([("pairs", "DIFFERENTIAL"), ("totals", "DIFFERENTIAL")])


def test_killed_and_nothing_more_is_written(lake: CapturedLake, spark: SparkSession) -> None:
    """The refresh after it has no data to read, and serves all the same."""
    lake.run(*WRITES)
    with LakeProcess(lake.root, spark) as process:
        process.ask("die", "complete_refresh", "after", 1)
        process.tell("refresh", "pairs")
        assert process.killed()
    lake.refresh("pairs", Action.NO_DATA)
    assert asked(lake, "SELECT * FROM pairs") == asked(lake, PAIRS.replace("shop.", ""))
