"""Schedules of stream tables: in the time zone of the definition, and left out. And what a refresh logs."""

from __future__ import annotations

import logging
from datetime import UTC, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from kits.lake import Lake, refused
from millstream import Code

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.spark
SUMS = "SELECT k, SUM(v) AS s FROM t GROUP BY k"
ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def t(lake: Lake) -> Iterator[Lake]:
    lake.table("t", "k STRING, v INT", "'a', 1")
    yield lake
    lake.ms.spark.conf.set(ZONE, "UTC")


def test_a_schedule_that_is_left_out(t: Lake) -> None:
    t.ms.create_stream_table("s", SUMS, schedule=None)
    assert t.ms.status()[0].schedule == "CALCULATED"
    assert t.ms.next_due("s") is None
    t.ms.create_stream_table("above", "SELECT MAX(s) AS m FROM s", schedule="5m")
    assert t.ms.next_due("s") is not None  # by what reads it
    t.ms.alter_stream_table("above", schedule=None, refresh_mode="FULL")
    t.ms.replace_stream_table("s", SUMS, schedule=None)
    assert {s.name: s.schedule for s in t.ms.status()} == {"s": "CALCULATED", "above": "5m"}
    with refused(Code.SCHEDULE_INVALID):
        t.ms.create_stream_table("no", SUMS, schedule="")


def test_cron_goes_by_the_time_zone_of_the_definition(t: Lake) -> None:
    zones: dict[str, tzinfo] = {
        "Europe/Berlin": ZoneInfo("Europe/Berlin"),
        "+05:30": timezone(timedelta(hours=5, minutes=30)),
    }
    for number, (name, zone) in enumerate(zones.items()):
        t.ms.spark.conf.set(ZONE, name)
        t.ms.create_stream_table(f"s{number}", SUMS, schedule="0 6 * * *")
        t.ms.spark.conf.set(ZONE, "Asia/Tokyo")  # of another session, later
        stamp = t.ms.status()[number].data_timestamp
        assert stamp is not None
        local = stamp.astimezone(zone)
        six = local.replace(hour=6, minute=0, second=0, microsecond=0)
        due = t.ms.next_due(f"s{number}")
        assert due == (six if six > local else six + timedelta(days=1)).astimezone(UTC)
        assert dict(t.ms.sql(f"DESCRIBE STREAM TABLE s{number}").collect())["# Next due"] == str(due)
    t.ms.alter_stream_table("s0", status="SUSPENDED")
    assert t.ms.next_due("s0") is None


def test_a_time_zone_that_only_java_knows(t: Lake) -> None:
    t.ms.spark.conf.set(ZONE, "SystemV/PST8")
    with refused(Code.SETTING_INVALID, "SystemV/PST8"):
        t.ms.create_stream_table("s", SUMS, schedule="@daily")
    t.ms.create_stream_table("s", SUMS, schedule="5m")
    with refused(Code.SETTING_INVALID):
        t.ms.alter_stream_table("s", schedule="@daily")
    t.ms.refresh_stats()


def test_what_is_done_is_logged_with_how_long_it_took(t: Lake, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "millstream"):
        t.ms.create_stream_table("s", SUMS, refresh_mode="DIFFERENTIAL")
        t.insert("t", "'b', 2")
        t.ms.refresh_stream_table("s")
        t.ms.replace_stream_table("s", "SELECT k, v AS s FROM t")
    said = [(r.name, r.getMessage()) for r in caplog.records if r.name != "millstream.service.connecting"]
    assert [name.rpartition(".")[2] for name, _ in said] == ["runner", "runner", "runner", "replacing"]
    assert all(" ms" in text and "s:" in text for _, text in said)
    assert "DIFFERENTIAL in" in said[1][1]
    phases = [r.getMessage() for r in caplog.records if r.name == "millstream.service.connecting"]
    assert "computing the change of s" in phases
