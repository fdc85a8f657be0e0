"""Settings are semantics: what a query meant when it was created it means at every refresh, whoever calls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from kits.lake import bag, open_lake, refused
from millstream import Action, Code

if TYPE_CHECKING:
    from kits.lake import Lake

pytestmark = pytest.mark.spark

ZONE, ANSI = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"


def test_the_time_zone_is_the_definitions(lake: Lake) -> None:
    conf = lake.ms.spark.conf
    lake.table("t", "ts TIMESTAMP, v INT", "TIMESTAMP '2024-01-01 20:00:00Z', 1", "TIMESTAMP '2024-01-02 01:00:00Z', 2")
    query = "SELECT CAST(ts AS DATE) AS d, hour(ts) AS h, SUM(v) AS s FROM t GROUP BY CAST(ts AS DATE), hour(ts)"
    conf.set(ZONE, "Asia/Tokyo")
    lake.stream("tokyo", query)
    conf.set(ZONE, "America/New_York")
    lake.stream("new_york", query)
    conf.set(ZONE, "UTC")
    for statement in ("INSERT INTO t VALUES (TIMESTAMP '2024-01-01 23:30:00Z', 4)", "DELETE FROM t WHERE v = 1"):
        lake.sql(statement)
        for name, zone in (("tokyo", "Asia/Tokyo"), ("new_york", "America/New_York")):
            assert lake.ms.refresh_stream_table(name).action is Action.DIFFERENTIAL
            assert lake.ms.verify(name).ok
            conf.set(ZONE, zone)
            expected = bag(lake.ms.spark.sql(query))
            conf.set(ZONE, "UTC")
            assert bag(lake.ms.table(name)) == expected
    assert conf.get(ZONE) == "UTC"
    # nor does the zone of another lake's file matter
    lake.ms.close()
    with open_lake(lake.root, time_zone="Europe/Paris") as other:
        other.insert("t", "TIMESTAMP '2024-01-01 23:45:00Z', 8")
        other.ms.refresh_stream_table("tokyo")
        assert other.ms.verify("tokyo").ok
        assert ((datetime(2024, 1, 2).date(), 8, 12)) in bag(other.ms.table("tokyo"))


def test_ansi_mode_is_the_definitions(lake: Lake) -> None:
    conf = lake.ms.spark.conf
    lake.table("t", "a STRING", "'1'", "'2'")
    query = "SELECT CAST(a AS INT) AS n FROM t"
    lake.stream("strict_", query)
    conf.set(ANSI, "false")
    lake.stream("lenient", query)
    conf.set(ANSI, "true")
    lake.insert("t", "'three'")
    assert lake.ms.refresh_stream_table("lenient").action is Action.APPEND_ONLY
    assert lake.ms.verify("lenient").ok
    assert bag(lake.ms.table("lenient")) == {(1,): 1, (2,): 1, (None,): 1}
    conf.set(ANSI, "false")
    with refused(Code.REFRESH_FAILED, "three"):
        lake.ms.refresh_stream_table("strict_")
    conf.set(ANSI, "true")
    # the settings are stored, not kept in this process; and altering something else does not change them
    lake.ms.alter_stream_table("lenient", refresh_mode="FULL")
    with open_lake(lake.root) as other:
        other.insert("t", "'four'")
        assert other.ms.refresh_stream_table("lenient").action is Action.FULL
        assert other.ms.verify("lenient").ok
        assert bag(other.ms.table("lenient"))[(None,)] == 2


def test_types_follow_the_settings_at_creation(lake: Lake) -> None:
    """Division and sums have other types, and other NULLs, without ANSI: also right after another table's refresh."""
    lake.table("t", "a INT, b INT", "1, 0", "4, 2")
    lake.stream("first_", "SELECT COUNT(*) AS n FROM t")
    lake.ms.spark.conf.set(ANSI, "false")
    lake.stream("quotients", "SELECT a / b AS q, a % b AS r FROM t")
    lake.ms.spark.conf.set(ANSI, "true")
    lake.insert("t", "5, 0")
    lake.ms.refresh_stream_table("first_")
    lake.ms.refresh_stream_table("quotients")
    assert lake.ms.verify("quotients").ok
    assert bag(lake.ms.table("quotients")) == {(None, None): 2, (2.0, 0): 1}


def test_the_current_time_is_the_data_timestamp(lake: Lake) -> None:
    lake.table("t", "id INT, due TIMESTAMP", "1, TIMESTAMP '2000-01-01'", "2, TIMESTAMP '2999-01-01'")
    lake.sql("CREATE VIEW overdue AS SELECT id FROM t WHERE due < current_timestamp()")
    ages = "between refreshes nothing ages in or out"
    with pytest.warns(match=ages):
        lake.stream("stamped", "SELECT id, now() AS ts, current_date() AS d FROM t", "AUTO", initialize=False)
    with pytest.warns(match="each refresh recomputes the table"):
        lake.stream("through_view", "SELECT COUNT(*) AS n FROM overdue", "FULL")
    for name in ("stamped", "through_view"):
        assert any(ages in reason for reason in lake.ms.explain(name).reasons)
    before = datetime.now(UTC) - timedelta(seconds=1)
    result = lake.ms.refresh_stream_table("stamped")
    assert result.action is Action.FULL
    assert lake.ms.verify("stamped").ok
    record = lake.last("stamped")
    assert record.data_timestamp is not None
    stamps = [row["ts"].timestamp() for row in lake.ms.table("stamped").collect()]
    assert stamps == pytest.approx([record.data_timestamp.timestamp()] * 2, abs=1e-5)
    assert record.data_timestamp > before
    # nothing has changed but the time
    for name, done in {"stamped": (Action.DIFFERENTIAL, "AGED"), "through_view": (Action.FULL, "CURRENT_TIME")}.items():
        result = lake.ms.refresh_stream_table(name)
        assert (result.action, result.reason.split(":")[0]) == done
        assert lake.ms.verify(name).ok
    later = {row["ts"].timestamp() for row in lake.ms.table("stamped").collect()}
    assert max(later) > max(stamps)
