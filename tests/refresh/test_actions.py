"""What a refresh does and what it says about it: action, reason, counts, frontier, history."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, open_lake, refused
from millstream import Action, Code, Status
from millstream.results import InitiatedBy, RefreshStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(lake: Lake) -> Lake:
    lake.table(
        "orders", "id INT, customer STRING, amount DECIMAL(10,2)", "1, 'a', 5.00", "2, 'a', 7.50", "3, 'b', 1.00"
    )
    return lake


TOTALS = "SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer"


def version(lake: Lake, name: str) -> int:
    return int(lake.ms.sql(f"DESCRIBE HISTORY {name}").selectExpr("max(version)").head()[0])


def test_the_life_of_a_stream_table(orders: Lake) -> None:
    lake, started = orders, datetime.now(UTC)
    lake.stream("totals", TOTALS, "AUTO")
    first = lake.last("totals")
    assert (first.action, first.initiated_by, first.status) == (
        Action.FULL,
        InitiatedBy.INITIAL,
        RefreshStatus.COMPLETED,
    )
    assert first.reason.startswith("INITIAL: ")
    assert (first.rows_inserted, first.rows_updated, first.rows_deleted) == (2, 0, 0)

    lake.sql("UPDATE orders SET amount = 6.00 WHERE id = 1", "DELETE FROM orders WHERE id = 3")
    lake.insert("orders", "4, 'c', 9.99")
    result = lake.refresh("totals", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (1, 1, 1)
    assert result.reason.startswith("CHANGED: ")
    assert result.frontier == {"orders": version(lake, "orders")}
    record = lake.last("totals")
    assert record.initiated_by is InitiatedBy.MANUAL
    assert (record.rows_inserted, record.rows_updated, record.rows_deleted) == (1, 1, 1)
    assert record.details["jobs"] >= 1
    assert record.data_timestamp is not None
    assert started < record.data_timestamp <= datetime.now(UTC)

    (status,) = lake.ms.status()
    assert (status.name, status.status, status.is_populated, status.consecutive_errors) == (
        "totals",
        Status.ACTIVE,
        True,
        0,
    )
    assert status.data_timestamp == record.data_timestamp
    stale = lake.ms.staleness("totals")
    assert stale is not None
    assert 0 <= stale < 600
    (stats,) = lake.ms.refresh_stats()
    assert (stats.total_refreshes, stats.successful_refreshes, stats.failed_refreshes) == (2, 2, 0)
    assert (stats.total_rows_inserted, stats.total_rows_updated, stats.total_rows_deleted) == (3, 1, 1)
    assert stats.last_refresh_action is Action.DIFFERENTIAL
    assert [r.refresh_id for r in lake.ms.refresh_history("totals")] == sorted(
        (r.refresh_id for r in lake.ms.refresh_history()), reverse=True
    )


def test_no_data_starts_no_spark_job_and_moves_the_timestamp(orders: Lake) -> None:
    lake = orders
    lake.stream("totals", TOTALS, "AUTO")
    before = lake.last("totals")
    tracker = lake.ms.spark.sparkContext.statusTracker()
    jobs = len(tracker.getJobIdsForGroup(None))
    result = lake.ms.refresh_stream_table("totals")
    assert len(tracker.getJobIdsForGroup(None)) == jobs
    assert (result.action, result.rows_inserted, result.rows_updated, result.rows_deleted) == (Action.NO_DATA, 0, 0, 0)
    after = lake.last("totals")
    assert after.action is Action.NO_DATA
    assert after.data_timestamp is not None
    assert before.data_timestamp is not None
    assert after.data_timestamp > before.data_timestamp
    lake.assert_exact("totals")
    # what a commit leaves unchanged is no data either, and the frontier follows
    lake.sql("OPTIMIZE orders", "UPDATE orders SET amount = 0 WHERE id = 77")
    result = lake.refresh("totals", Action.NO_DATA)
    assert result.frontier == {"orders": version(lake, "orders")}


def test_appends_are_appended(orders: Lake) -> None:
    lake = orders
    lake.stream("large", "SELECT id, amount FROM orders WHERE amount > 4")
    lake.stream("pairs", "SELECT x.id AS a, y.id AS b FROM orders x JOIN orders y ON x.customer = y.customer")
    lake.insert("orders", "4, 'b', 10.00", "5, 'b', 0.01")
    result = lake.refresh("large", Action.APPEND_ONLY)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (1, 0, 0)
    assert lake.refresh("pairs", Action.APPEND_ONLY).rows_inserted == 8
    lake.insert("orders", "6, 'z', 0.02")
    assert lake.refresh("large", Action.APPEND_ONLY).rows_inserted == 0
    lake.sql("DELETE FROM orders WHERE id = 4")
    result = lake.refresh("large", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (0, 0, 1)


def test_counts_without_a_key_know_no_updates(orders: Lake) -> None:
    lake = orders
    lake.stream("plain", "SELECT customer, amount FROM orders")
    lake.sql("UPDATE orders SET amount = 8 WHERE id = 1")
    result = lake.refresh("plain", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (1, 0, 1)
    # the same values under another id: nothing the query shows has changed
    lake.sql("UPDATE orders SET id = 30 WHERE id = 3")
    result = lake.refresh("plain")
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (0, 0, 0)


def test_what_a_hidden_stage_does_not_show_ends_there(lake: Lake) -> None:
    """Partners of a semi join that are joined together are counted by their key; the key stays while one is left."""
    lake.table("t", "a INT", *(str(a) for a in range(100)))
    lake.table("u", "a INT, c INT", "1, 1", "1, 2", "2, 1")
    lake.table("v", "k INT", "1", "2")
    query = "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u JOIN v ON u.c = v.k WHERE u.a = t.a)"
    lake.stream("served", query, "DIFFERENTIAL STRICT")
    lake.sql("DELETE FROM u WHERE c = 2")
    result = lake.refresh("served", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (0, 0, 0)
    assert lake.last("served").details["rows_read"] < 100, "t was read"
    lake.sql("UPDATE u SET a = 3 WHERE a = 1")
    result = lake.refresh("served", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (1, 0, 1)
    assert lake.last("served").details["rows_read"] > 100


def test_counts_of_what_having_shows_and_hides(orders: Lake) -> None:
    lake = orders
    lake.stream("big", f"{TOTALS} HAVING SUM(amount) > 10")
    assert lake.last("big").rows_inserted == 1
    lake.insert("orders", "4, 'b', 20.00")
    result = lake.refresh("big", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (1, 0, 0)
    lake.sql("UPDATE orders SET amount = amount + 1 WHERE customer = 'b'", "DELETE FROM orders WHERE id = 2")
    result = lake.refresh("big", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (0, 1, 1)
    lake.sql("UPDATE orders SET amount = amount + 1 WHERE customer = 'a'")  # hidden before, hidden after
    result = lake.refresh("big")
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (0, 0, 0)
    lake.sql("DELETE FROM orders WHERE customer = 'b'")
    result = lake.refresh("big")
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (0, 0, 1)


def test_full_when_asked_for_and_in_mode_full(orders: Lake) -> None:
    lake = orders
    lake.stream("totals", TOTALS, "AUTO")
    lake.insert("orders", "4, 'c', 1.00")
    result = lake.refresh("totals", Action.FULL, mode="FULL")
    assert result.reason.startswith("REQUESTED: ")
    assert (result.rows_inserted, result.rows_deleted) == (3, 2)
    lake.stream("always", TOTALS, "FULL")
    assert lake.refresh("always", Action.NO_DATA).reason.startswith("UNCHANGED: ")
    lake.insert("orders", "5, 'd', 1.00")
    assert lake.refresh("always", Action.FULL).reason.startswith("MODE_FULL: ")
    assert lake.refresh("always", Action.FULL, mode="full").reason.startswith("REQUESTED: ")


@pytest.mark.parametrize(("ratio", "action", "code"), [(0.0, "DIFFERENTIAL", "CHANGED"), (1.0, "FULL", "RATIO_ALWAYS")])
def test_the_special_change_ratios(spark: SparkSession, tmp_path: Path, ratio: float, action: str, code: str) -> None:
    with open_lake(tmp_path, differential_max_change_ratio=ratio) as lake:
        lake.table("t", "a INT", *(str(i) for i in range(4)))
        lake.stream("s", "SELECT SUM(a) AS s FROM t", "AUTO")
        lake.sql("UPDATE t SET a = a + 1")
        assert lake.refresh("s", action).reason.startswith(f"{code}: ")
        lake.refresh("s", Action.NO_DATA)
        # only AUTO weighs
        lake.sql("UPDATE t SET a = a + 1")
        lake.refresh("s", Action.DIFFERENTIAL, mode="DIFFERENTIAL")


def test_strict_fails_instead_of_falling_back(orders: Lake) -> None:
    lake = orders
    lake.stream("totals", TOTALS, "DIFFERENTIAL STRICT")
    lake.insert("orders", "4, 'c', 1.00")
    lake.refresh("totals", Action.DIFFERENTIAL)
    contents = lake.rows("totals")
    lake.sql("ALTER TABLE orders SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    lake.insert("orders", "5, 'c', 1.00")
    with pytest.warns(match="change data feed of orders was switched on"), refused(Code.FULL_REQUIRED, "NO_DELTA"):
        lake.ms.refresh_stream_table("totals")
    assert lake.rows("totals") == contents
    assert lake.last("totals").status is RefreshStatus.FAILED
    assert lake.ms.status()[0].consecutive_errors == 1
    lake.refresh("totals", Action.FULL, mode="FULL")
    assert lake.ms.status()[0].consecutive_errors == 0
    lake.insert("orders", "6, 'c', 1.00")
    lake.refresh("totals", Action.DIFFERENTIAL)


def test_the_end_of_a_chain_brings_its_sources_along(orders: Lake) -> None:
    lake = orders
    lake.table("customers", "name STRING, country STRING", "'a', 'de'", "'b', 'fr'")
    lake.stream("named", "SELECT o.id, o.amount, c.country FROM orders o LEFT JOIN customers c ON o.customer = c.name")
    lake.stream("by_country", "SELECT country, SUM(amount) AS total FROM named GROUP BY country")
    lake.stream("top", "SELECT MAX(total) AS most FROM by_country")
    lake.sql("UPDATE customers SET country = 'de' WHERE name = 'b'")
    lake.insert("orders", "9, NULL, 100.00")
    result = lake.refresh("top", Action.DIFFERENTIAL)
    assert set(result.frontier) == {"orders", "customers"}
    for name in ("named", "by_country"):
        lake.assert_exact(name)
        assert lake.last(name).action is Action.DIFFERENTIAL
        assert lake.last(name).data_timestamp == lake.last("top").data_timestamp
    # a middle table that does not change stops the work
    lake.sql("UPDATE orders SET customer = 'nobody' WHERE id = 9")
    lake.refresh("top", Action.NO_DATA)
    lake.assert_exact("by_country")


def test_a_suspended_table_refuses_its_own_refresh_and_one_that_needs_it(orders: Lake) -> None:
    lake = orders
    lake.stream("totals", TOTALS)
    lake.stream("most", "SELECT MAX(total) AS m FROM totals")
    lake.stream("count", "SELECT COUNT(*) AS n FROM orders")
    lake.ms.alter_stream_table("totals", status="suspended")
    lake.insert("orders", "4, 'z', 50.00")
    for name in ("totals", "most"):
        with refused(Code.SUSPENDED, "totals"):
            lake.ms.refresh_stream_table(name)
    lake.refresh("count")
    assert {s.name: s.status for s in lake.ms.status()}["totals"] is Status.SUSPENDED
    lake.sql("ALTER STREAM TABLE totals SET STATUS ACTIVE")
    lake.refresh("most", Action.DIFFERENTIAL)
    lake.assert_exact("totals")


def test_a_failure_is_recorded_and_leaves_the_old_contents(orders: Lake) -> None:
    lake = orders
    lake.stream("ratios", "SELECT id, 100 / amount AS r FROM orders")
    contents = lake.rows("ratios")
    lake.insert("orders", "4, 'z', 0.00")
    for attempt in (1, 2, 3):
        with refused(Code.REFRESH_FAILED, "ratios", "by zero"):
            lake.ms.refresh_stream_table("ratios")
        assert lake.rows("ratios") == contents
        (status,) = lake.ms.status()
        assert status.consecutive_errors == attempt
    assert status.status is Status.ERROR
    failed = lake.last("ratios")
    assert failed.status is RefreshStatus.FAILED
    assert failed.error_message is not None
    assert "by zero" in failed.error_message
    lake.sql("DELETE FROM orders WHERE id = 4")
    lake.refresh("ratios")
    (status,) = lake.ms.status()
    assert (status.status, status.consecutive_errors) == (Status.ACTIVE, 0)


def test_altering(orders: Lake) -> None:
    lake = orders
    lake.stream("totals", TOTALS, "DIFFERENTIAL STRICT")
    lake.stream("most", "SELECT MAX(total) AS m FROM totals")
    lake.sql("ALTER STREAM TABLE totals SET SCHEDULE '5m'", "ALTER STREAM TABLE totals SET REFRESH MODE DIFFERENTIAL")
    status = {s.name: s for s in lake.ms.status()}["totals"]
    assert (status.schedule, status.refresh_mode) == ("5m", "DIFFERENTIAL")
    lake.refresh("totals", Action.NO_DATA)  # another mode of the same layout does not start over

    other = "SELECT customer, SUM(amount * 2) AS total FROM orders WHERE id > 0 GROUP BY customer"
    with refused(Code.INCOMPATIBLE_CHANGE, "most"):
        lake.ms.alter_stream_table("totals", query="SELECT customer FROM orders")
    lake.ms.alter_stream_table("totals", query=other.replace("amount * 2", "amount"))
    lake.queries["totals"] = other.replace("amount * 2", "amount")
    lake.assert_exact("totals")
    assert lake.last("totals").action is Action.REINITIALIZE
    assert lake.refresh("most", Action.REINITIALIZE).reason.startswith("QUERY_ALTERED")
    assert lake.last("totals").action is Action.NO_DATA
    lake.insert("orders", "5, 'a', 1.00")
    lake.refresh("most", Action.DIFFERENTIAL)

    # without readers the columns may change too
    lake.ms.drop_stream_table("most")
    del lake.queries["most"]
    lake.sql("ALTER STREAM TABLE totals AS SELECT id, customer FROM orders")
    lake.queries["totals"] = "SELECT id, customer FROM orders"
    lake.refresh("totals", Action.NO_DATA)
    assert lake.ms.table("totals").columns == ["id", "customer"]
    assert len(lake.stored) == 1
    lake.ms.alter_stream_table("totals", refresh_mode="FULL")
    lake.insert("orders", "7, 'a', 1.00")
    lake.refresh("totals", Action.FULL)
    assert len(lake.stored) == 1
