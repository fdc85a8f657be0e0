"""What other readers of Delta tables see of a stored stream table: delta-rs, Polars and DuckDB.

The page that says so is docs/adr/0003-direct-commits.md. They honour deletion vectors, so the stored rows are the right
ones; what is stored is not in every shape what the view shows. DuckDB's own extension is not to be had for the version
that the tests use, so DuckDB reads what delta-rs hands it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from kits.lake import Lake, open_lake
from kits.paths import DOCS
from millstream.naming import RESERVED_PREFIX, VISIBLE, TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::millstream.notices.MillstreamWarning"),
]
PAGE = DOCS / "adr" / "0003-direct-commits.md"


@dataclass(frozen=True)
class Seen:
    """What a reader of the stored table sees.

    Args:
        row: the shape's row of the page's table.
        has_helpers: columns besides those of the query.
        has_more_rows: rows that the view hides.
    """

    row: str
    query: str
    has_helpers: bool = False
    has_more_rows: bool = False


BAG, WINDOW, GROUPS = "filters, projections, joins", "windows", "GROUP BY"
SHAPES = {
    "filtered": Seen(BAG, "SELECT id, v FROM t WHERE v > 10"),
    "duplicates": Seen(BAG, "SELECT k FROM t WHERE v > 10"),
    "inner_join": Seen(BAG, "SELECT t.id, u.name FROM t JOIN u ON t.k = u.k"),
    "outer_join": Seen(BAG, "SELECT t.id, u.name FROM t FULL JOIN u ON t.k = u.k"),
    "exists": Seen(BAG, "SELECT k, name FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.k = u.k AND t.v > 20)"),
    "union_all": Seen(BAG, "SELECT k FROM t UNION ALL SELECT k FROM u"),
    "over_groups": Seen(
        BAG, "SELECT u.name, s.n FROM u JOIN (SELECT k, COUNT(*) AS n FROM t GROUP BY k) s ON s.k = u.k"
    ),
    "recursion": Seen(
        BAG,
        "WITH RECURSIVE r(k) AS (SELECT k FROM u WHERE k = 1 UNION SELECT u.k FROM r JOIN u ON u.k = r.k + 1) "
        "SELECT k FROM r",
    ),
    "top_n": Seen(BAG, "SELECT id, v FROM t ORDER BY v DESC, id LIMIT 4"),
    "window": Seen(WINDOW, "SELECT id, SUM(v) OVER (PARTITION BY k ORDER BY id) AS running FROM t", has_helpers=True),
    "groups": Seen(GROUPS, "SELECT k, COUNT(*) AS n, SUM(v) AS s, MAX(v) AS m FROM t GROUP BY k", has_helpers=True),
    "distinct": Seen(GROUPS, "SELECT DISTINCT k, v % 2 AS odd FROM t", has_helpers=True),
    "union": Seen(GROUPS, "SELECT k FROM t UNION SELECT k FROM u", has_helpers=True),
    "having": Seen(
        "HAVING",
        "SELECT k, COUNT(*) AS n FROM t GROUP BY k HAVING COUNT(*) > 4",
        has_helpers=True,
        has_more_rows=True,
    ),
}


def by_delta_rs(path: str) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all())


def by_polars(path: str) -> pa.Table:
    return pl.read_delta(path).to_arrow()


def by_duckdb(path: str) -> pa.Table:
    handed = by_delta_rs(path)
    with duckdb.connect() as connection:
        connection.register("handed", handed)
        return connection.sql("SELECT * FROM handed").to_arrow_table()


READERS: dict[str, Callable[[str], pa.Table]] = {"delta-rs": by_delta_rs, "polars": by_polars, "duckdb": by_duckdb}


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Every shape, changed by deltas."""
    with open_lake(tmp_path_factory.mktemp("others") / "lake") as opened:
        opened.is_compared_at_end = True
        opened.table("t", "id INT, k INT, v INT")
        opened.table("u", "k INT, name STRING", "1, 'a'", "2, 'b'", "3, 'c'", "9, 'x'", "2, 'b'")
        opened.sql("INSERT INTO t SELECT id, id % 6, id * 7 % 31 FROM range(1, 31)")
        for name, seen in SHAPES.items():
            opened.ms.create_stream_table(name, seen.query, refresh_mode="DIFFERENTIAL")
        opened.sql(
            "UPDATE t SET v = v + 5 WHERE id % 5 = 0",
            "DELETE FROM t WHERE id IN (3, 9, 15, 4)",
            "INSERT INTO t VALUES (100, 7, 50)",
            "DELETE FROM u WHERE k = 3",
            "INSERT INTO u VALUES (4, 'd')",
        )
        for name in SHAPES:
            assert opened.ms.refresh_stream_table(name).action == "DIFFERENTIAL"
        yield opened


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def test_what_other_readers_see(lake: Lake) -> None:
    found, with_vectors = {}, set()
    for name in SHAPES:
        table = lake.ms._catalog.get(TableName.parse(name))
        path, outputs = table.public_stage.path, table.definition.body.outputs
        log = [json.loads(line) for f in Path(path).glob("_delta_log/*.json") for line in f.read_text().splitlines()]
        if any(action.get("add", {}).get("deletionVector") for action in log):
            with_vectors.add(name)
        wanted = Counter(tuple(row) for row in lake.ms.table(name).collect())
        for reader, read in READERS.items():
            stored = read(path)
            helpers = [c for c in stored.column_names if c not in outputs]
            shown = stored
            if VISIBLE in stored.column_names:
                shown = stored.filter(stored[VISIBLE])
            assert bag(shown.select(outputs)) == wanted, f"{name} by {reader}"
            found[name, reader] = (
                (bool(helpers) or any(o.startswith(RESERVED_PREFIX) for o in outputs)),
                (stored.num_rows > wanted.total()),
            )
    assert found == {(n, r): (seen.has_helpers, seen.has_more_rows) for n, seen in SHAPES.items() for r in READERS}
    assert {"filtered", "inner_join", "having"} <= with_vectors, "there were dead rows to be left out"


def test_the_page_says_so() -> None:
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+ \| [^|]+?) \|$", PAGE.read_text(), re.MULTILINE))
    for seen in SHAPES.values():
        [said] = [text for shape, text in rows.items() if seen.row in shape]
        columns, shown = said.split(" | ")
        assert ("helper" in columns) == seen.has_helpers, seen
        assert ("more" in shown) == seen.has_more_rows, seen


def test_who_does_not_know_deletion_vectors_refuses(lake: Lake) -> None:
    path = lake.ms._catalog.get(TableName.parse("filtered")).public_stage.path
    with pytest.raises(Exception, match="deletionVectors"):
        DeltaTable(path).to_pyarrow_table()
