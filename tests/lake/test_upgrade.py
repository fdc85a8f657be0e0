"""Lakes that older versions wrote are upgraded, refreshed, moved, and refreshed again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import bag, open_lake, refused
from kits.old_lakes import unpack
from millstream import Action, Code, Millstream, Status
from millstream.results import RefreshStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_PLACED = "orders o JOIN customers c ON o.customer = c.name"
_SPENT = f"(SELECT c.region, c.name, SUM(o.amount) AS spent FROM {_PLACED} GROUP BY c.region, c.name)"
QUERIES = {
    "amounts": "SELECT amount FROM orders",
    "as_postgres": "SELECT customer, CAST(RINT(SUM(amount)) AS INT) AS total FROM orders GROUP BY customer",
    "buyers": "SELECT DISTINCT customer FROM orders",
    "largest": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 2",
    "of_view": "SELECT customer, amount * 1.2D AS taxed FROM orders WHERE amount > 6",
    "placed": f"SELECT o.id, c.region, o.amount FROM {_PLACED}",
    "rated": f"SELECT o.id, o.amount * r.rate AS cost FROM {_PLACED} JOIN rates r ON c.region = r.region",
    "recomputed": "SELECT customer, amount FROM orders WHERE amount > 1",
    "regions": f"SELECT region, COUNT(*) AS customers, MAX(spent) AS most FROM {_SPENT} GROUP BY region",
    "regions_above": f"SELECT region, MAX(spent) AS most FROM {_SPENT} GROUP BY region HAVING most > 1",
    "reports.by_region": f"SELECT c.region, SUM(o.amount) AS total FROM {_PLACED} GROUP BY c.region",
    "totals": "SELECT customer, SUM(amount) AS total, COUNT(*) AS n FROM orders GROUP BY customer",
}
"""The stream tables that are refreshed, and their queries over the lake's own tables."""
RECOMPUTED = {"rated", "recomputed"}


def refresh(ms: Millstream) -> None:
    """Refresh what can be refreshed: by deltas, but for what is in mode FULL."""
    for name in QUERIES:
        mode = None if name in RECOMPUTED else "DIFFERENTIAL"  # AUTO may choose FULL where that was measured as faster
        result = ms.refresh_stream_table(name, mode=mode)
        assert (result.action is Action.FULL) == (name in RECOMPUTED), f"{name}: {result.action} ({result.reason})"
        assert result.action is not Action.REINITIALIZE, f"{name}: {result.reason}"


# all migrations since v3 run after those of v2, too
@pytest.mark.parametrize("version", ["v2", pytest.param("v3", marks=pytest.mark.long)])
def test_it_is_upgraded_refreshed_moved_and_refreshed_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("SHOP_URL", "postgresql://nobody@127.0.0.1:1/gone")
    first, second = tmp_path / "first" / "lake", tmp_path / "another place"
    unpack(version, first)
    with open_lake(first) as lake:
        ms = lake.ms
        statuses = {s.name: s for s in ms.status()}
        assert statuses.keys() == {*QUERIES, "asleep", "paid", *({"numbers"} if version == "v3" else ())}
        assert {n for n, s in statuses.items() if s.status is not Status.ACTIVE} == {"asleep"}
        assert all(s.is_populated for s in statuses.values())
        assert len(ms.refresh_history(limit=100)) > 40
        assert [(s.table, s.readers) for s in ms.sources()] == [("shop.public.payments", ("paid",))]
        ms.sql("INSERT INTO orders VALUES (8, 'ann', 40.0), (9, 'fay', 3.0)")
        ms.sql("INSERT INTO customers VALUES ('fay', 'east')")
        refresh(ms)
        assert [name for name in QUERIES if not ms.verify(name).ok] == []
        recovered = [r for r in ms.refresh_history("amounts", 3) if (r.reason or "").startswith("RECOVERED")]
        assert [r.status for r in recovered] == [RefreshStatus.COMPLETED]
        assert ms.table("paid").count() == 2, "what was captured before is still read"
        with refused(Code.DATABASE_UNREACHABLE):
            ms.refresh_stream_table("paid")
    first.rename(second)
    with open_lake(second) as lake:
        ms = lake.ms
        ms.sql("DELETE FROM orders WHERE id = 9")
        ms.sql("UPDATE orders SET amount = 0.5 WHERE id = 6")
        refresh(ms)
        assert [name for name, query in QUERIES.items() if bag(ms.table(name)) != bag(ms.sql(query))] == []
        ms.alter_stream_table("asleep", status="ACTIVE")
        assert ms.refresh_stream_table("asleep").action is Action.DIFFERENTIAL
        assert ms.verify("asleep").ok
    assert not first.exists()
