"""Queries that ask for the current time, on Spark, with a clock that stands still until a test moves it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from kits.lake import bag, refused
from millstream import Action, Code
from millstream.ops.clock import filled_in
from millstream.results import RefreshStatus
from millstream.sql.text.table_exchange import bind_current_time, moment_literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from kits.lake import Lake

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:the current time is the data timestamp")]

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
STRICT = "DIFFERENTIAL STRICT"
ZONE = "spark.sql.session.timeZone"


class Clock:
    """The time that a test says it is."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def pass_time(self, **parts: float) -> None:
        self.now += timedelta(**parts)


@pytest.fixture
def zone(spark: SparkSession) -> Iterator[str]:
    """A time zone in which the day begins before that of UTC."""
    before = spark.conf.get(ZONE)
    yield "Europe/Berlin"
    spark.conf.set(ZONE, before)


@pytest.fixture
def clock(zone: str, lake: Lake) -> Iterator[Clock]:
    """The clock, and a table of events around noon; in the end each query is asked again, at the time of its data."""
    clock = Clock()
    lake.ms._clock = clock  # before Spark starts, which is given the clock
    lake.ms.spark.conf.set(ZONE, zone)
    hours = [9, 10, 10, 11, 12, 13, 14]
    rows = [f"{i}, {i % 3}, TIMESTAMP '2024-01-01 {hour}:30:00 UTC'" for i, hour in enumerate(hours)]
    lake.table("e", "id INT, k INT, at TIMESTAMP", *rows, "7, NULL, NULL", "2, 2, TIMESTAMP '2024-01-01 10:30:00 UTC'")
    yield clock
    for name, query in lake.queries.items():
        stamp = lake.last(name).data_timestamp
        assert stamp is not None
        lake.queries[name] = bind_current_time(query, stamp)


def ids(lake: Lake, name: str) -> Counter[Any]:
    return Counter(row[0] for row in lake.rows(name).elements())


def test_rows_age_in_and_out(lake: Lake, clock: Clock) -> None:
    with pytest.warns(match="between refreshes nothing ages in or out, so that the result is as old as the schedule"):
        lake.stream("recent", "SELECT id, at FROM e WHERE at > now() - INTERVAL 2 HOURS AND at <= now()", STRICT)
    assert ids(lake, "recent") == Counter([1, 2, 2, 3])
    # only the time moves
    clock.pass_time(hours=1)
    result = lake.refresh("recent", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (1, 0, 3)
    assert result.reason.startswith("AGED: ")
    assert ids(lake, "recent") == Counter([3, 4])
    # nothing ages
    clock.pass_time(minutes=1)
    result = lake.refresh("recent", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_deleted) == (0, 0)
    assert lake.last("recent").data_timestamp == clock.now
    # both
    lake.insert("e", "8, 0, TIMESTAMP '2024-01-01 12:45:00 UTC'", "9, 0, TIMESTAMP '2024-01-01 11:45:00 UTC'")
    lake.sql("DELETE FROM e WHERE id = 4")
    clock.pass_time(minutes=59)
    result = lake.refresh("recent", Action.DIFFERENTIAL)
    assert result.reason.startswith("CHANGED: about 3 rows, and the time")
    assert ids(lake, "recent") == Counter([5, 8])
    # a clock that is set right
    clock.pass_time(hours=-2)
    lake.refresh("recent", Action.DIFFERENTIAL)
    assert ids(lake, "recent") == Counter([1, 2, 2, 3, 9])


QUERIES = {
    "stamped": "SELECT id, now() AS ts, current_date() AS d, localtimestamp() AS l, unix_timestamp() AS u FROM e",
    "labelled": "SELECT id, CASE WHEN at > current_timestamp THEN 'next' ELSE 'past' END AS label FROM e",
    "hourly": "SELECT k, COUNT(*) AS n, MAX(id) AS m FROM e WHERE at > now() - INTERVAL 3 HOURS GROUP BY k",
    "active": "SELECT k, MAX(at) AS last FROM e GROUP BY k HAVING MAX(at) > now() - INTERVAL 1 HOUR",
    "counted": "SELECT COUNT(*) FILTER (WHERE at > now()) AS n, date_diff(curdate(), DATE '2023-12-31') AS days FROM e",
    "paired": "SELECT a.id, b.id AS other FROM e a LEFT JOIN e b ON a.k = b.k AND a.id <> b.id AND b.at > now()",
    "without": "SELECT id FROM e a WHERE NOT EXISTS (SELECT 1 FROM e b WHERE b.k = a.k AND b.at > now())",
    "ranked": "SELECT id, ROW_NUMBER() OVER (PARTITION BY k ORDER BY id) AS n FROM e WHERE at <= now()",
    "placed": "SELECT id, SUM(CASE WHEN at > now() THEN 1 END) OVER (PARTITION BY k) AS n FROM e",
    "today": "SELECT id FROM e WHERE CAST(at AS DATE) = current_date UNION ALL SELECT -id FROM e WHERE at > now()",
    "reached": "WITH RECURSIVE q AS (SELECT id FROM e WHERE at > now() UNION SELECT e.k FROM q JOIN e ON e.id = q.id "
    "AND e.at < now()) SELECT id FROM q",
}


@pytest.mark.filterwarnings("ignore:ROW_NUMBER has no fixed result")
def test_every_place_of_the_time(lake: Lake, clock: Clock) -> None:
    for name, query in QUERIES.items():
        lake.stream(name, query, STRICT)
    clock.pass_time(hours=1, microseconds=1)
    lake.refresh_all(Action.DIFFERENTIAL)
    lake.sql("UPDATE e SET at = at + INTERVAL 3 HOURS WHERE id IN (1, 2)", "DELETE FROM e WHERE id = 3")
    # 23:00 in UTC is the next day in Berlin
    clock.now = datetime(2024, 1, 1, 23, 0, tzinfo=UTC)
    lake.refresh_all(Action.DIFFERENTIAL)
    assert {row["d"] for row in lake.ms.table("stamped").collect()} == {date(2024, 1, 2)}
    assert not any(i >= 0 for i in ids(lake, "today"))
    del lake.queries["reached"]  # which Spark itself does not run


def test_what_reads_it_and_what_it_reads(lake: Lake, clock: Clock) -> None:
    lake.sql("CREATE VIEW upcoming AS SELECT id, k, at FROM e WHERE at > current_timestamp()")
    oracle = "SELECT k, MIN(at) AS at FROM e WHERE at > now() GROUP BY k"
    lake.stream("next_", "SELECT k, MIN(at) AS at FROM upcoming GROUP BY k", STRICT, oracle=oracle)
    lake.stream("above", "SELECT n.k, n.at, e.id FROM next_ n JOIN e ON e.k = n.k WHERE e.at < now()", STRICT)
    clock.pass_time(hours=1)
    lake.refresh("above", Action.DIFFERENTIAL)
    lake.assert_exact("next_")
    assert lake.last("next_").data_timestamp == lake.last("above").data_timestamp == clock.now


def test_in_the_dialect_of_postgres(lake: Lake, clock: Clock) -> None:
    query = "SELECT id, at::date = CURRENT_DATE AS t, LOCALTIMESTAMP AS l FROM e WHERE at > now() - interval '1 hour'"
    lake.ms.create_stream_table("pg", query, refresh_mode=STRICT, dialect="postgres")
    clock.pass_time(hours=2)
    assert lake.ms.refresh_stream_table("pg").action is Action.DIFFERENTIAL
    assert lake.ms.verify("pg").ok
    assert ids(lake, "pg") == Counter([5, 6])


def test_an_interrupted_refresh_is_completed_at_its_own_time(
    lake: Lake, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = "SELECT k, COUNT(*) AS n, MAX(at) AS last FROM e WHERE at <= now() GROUP BY k"
    lake.stream("staged", f"SELECT k, n FROM ({below}) WHERE last > now() - INTERVAL 90 MINUTES", STRICT)
    store = lake.ms._runtime.workers.here().store
    apply, made = store.apply, []

    def dying(*args: Any, **kwargs: Any) -> Any:
        if made:
            raise KeyboardInterrupt
        made.append(apply(*args, **kwargs))
        return made[0]

    monkeypatch.setattr(store, "apply", dying)
    clock.pass_time(hours=1)
    interrupted = clock.now
    with pytest.raises(KeyboardInterrupt):
        lake.ms.refresh_stream_table("staged")
    monkeypatch.undo()
    clock.pass_time(hours=2)
    lake.refresh("staged", Action.DIFFERENTIAL)
    resumed = lake.ms.refresh_history("staged", 2)[1]
    assert (resumed.status, resumed.data_timestamp) == (RefreshStatus.COMPLETED, interrupted)
    assert resumed.reason is not None
    assert resumed.reason.startswith("RESUMED: ")
    assert lake.last("staged").data_timestamp == clock.now


def test_auto_and_full(lake: Lake, clock: Clock) -> None:
    lake.stream("auto", QUERIES["hourly"], "AUTO")
    lake.stream("whole", QUERIES["hourly"], "FULL")
    clock.pass_time(hours=1)
    lake.refresh("auto", Action.DIFFERENTIAL)
    assert lake.refresh("whole", Action.FULL).reason.startswith("CURRENT_TIME: ")
    assert bag(lake.ms.table("auto")) == bag(lake.ms.table("whole"))
    with pytest.warns(match="recomputed at each refresh: UNSUPPORTED_SQL: the current time as a parameter"):
        lake.stream("quantile", "SELECT PERCENTILE(id, HOUR(now()) / 24.0) AS p FROM e", "AUTO")
    clock.pass_time(hours=1)
    assert lake.refresh("quantile", Action.FULL).reason.startswith("CURRENT_TIME: ")
    with refused(Code.UNSUPPORTED_SQL, "the current time as a parameter"):
        lake.stream("no", "SELECT PERCENTILE(id, HOUR(now()) / 24.0) AS p FROM e", STRICT)


def test_only_the_range_that_ages_is_read(lake: Lake, clock: Clock) -> None:
    """The comparison reaches the scan as constants."""
    lake.stream("recent", "SELECT id FROM e WHERE at > now() - INTERVAL 2 HOURS", STRICT)
    (step,) = [text for name, text in lake.ms.explain("recent").steps if name == "net"]
    lake.ms.table("e").createOrReplaceTempView("new_e")
    lake.ms.sql("CREATE OR REPLACE TEMPORARY VIEW delta_e AS SELECT *, 1L AS __ms_w FROM e WHERE false")
    step = filled_in(step, *(moment_literal(moment) for moment in (clock.now, clock.now - timedelta(hours=1))))
    plan = str(lake.ms.spark.sql(f"EXPLAIN {step}").collect()[0][0])
    assert "GreaterThan(at,2024-01-01" in plan
    assert "LessThanOrEqual(at,2024-01-01" in plan
