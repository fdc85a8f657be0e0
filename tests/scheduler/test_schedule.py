"""Schedules: what is read, what is refused, and when a table is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import Code, MillstreamError
from millstream.scheduler.schedule import MAX_DURATION_SECONDS, Schedule, ScheduleKind

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)).map(lambda d: d.replace(tzinfo=UTC))


def refusal(text: str, **kwargs: int) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        Schedule.parse(text, **kwargs)
    assert caught.value.code == Code.SCHEDULE_INVALID
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1w", 604800), ("1h30m", 5400), ("2m30s", 150)],
)
def test_durations(text: str, seconds: int) -> None:
    assert Schedule.parse(f" {text} ") == Schedule(ScheduleKind.DURATION, text, seconds=seconds)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("100ms", 0.1), ("1s1ms", 1.001), ("1m1ms", 60.001), ("1500ms", 1.5)]
)
def test_milliseconds_where_they_are_allowed(text: str, seconds: float) -> None:
    assert Schedule.parse(text, min_seconds=0.1).seconds == seconds
    assert Schedule.parse(text, min_seconds=0.1).text == text


@pytest.mark.parametrize("text", ["99ms", "0ms", "0s0ms", "5ms5ms", "5MS", "0.5s", "1000000000000ms1ms"])
def test_milliseconds_that_are_refused(text: str) -> None:
    refusal(text, min_seconds=0.1)


@given(st.permutations(list(UNITS)), st.lists(st.integers(0, 10_000), min_size=1, max_size=5))
def test_any_units_once_in_any_order_add_up(units: list[str], numbers: list[int]) -> None:
    parts = list(zip(numbers, units, strict=False))
    seconds = sum(number * UNITS[unit] for number, unit in parts)
    text = "".join(f"{number}{unit}" for number, unit in parts)
    if 1 <= seconds <= MAX_DURATION_SECONDS:
        assert Schedule.parse(text).seconds == seconds
    else:
        refusal(text)


def test_calculated_is_read_in_any_case() -> None:
    assert Schedule.parse("calculated") == Schedule(ScheduleKind.CALCULATED, "CALCULATED")


@pytest.mark.parametrize(
    ("text", "cron"),
    [
        ("*/5 * * * *", "*/5 * * * *"),
        ("0 */5 * * * *", "0 */5 * * * *"),
        ("0  6 * * MON-FRI", "0 6 * * MON-FRI"),
        ("@hourly", "0 * * * *"),
        ("@Daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_cron_expressions_and_aliases(text: str, cron: str) -> None:
    schedule = Schedule.parse(text)
    assert (schedule.kind, schedule.text, schedule.cron, schedule.seconds) == (ScheduleKind.CRON, text, cron, None)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "duration"),
        ("soon", "duration"),
        ("60", "'60s'"),
        ("5M", "'5m'"),
        ("1.5h", "whole numbers"),
        ("500ms", "min_schedule_seconds"),
        ("1h1h", "at most once"),
        ("1h 30m", "duration"),
        ("-5m", "duration"),
        ("5m;DROP", "duration"),
        ("٣m", "duration"),
        ("@reboot", "@hourly"),
        ("* * * *", "5 or 6 fields"),
        ("* * * * * * *", "5 or 6 fields"),
        ("61 * * * *", "minute hour"),
        ("* * * * 9", "minute hour"),
        ("0 0 30 2 *", "minute hour"),
        ("0 0 * 2 FRI#9", "minute hour"),
        ("0 0 * * MON#2/2", "minute hour"),
        ("0 0 ? * *", "cron"),
        ("0s", "min_schedule_seconds"),
        ("5201w", "suspend"),
        ("9" * 30 + "s", "duration"),
    ],
)
def test_what_is_no_schedule_is_refused_with_a_way_out(text: str, hint: str) -> None:
    assert hint in (refusal(text).hint or "")


def test_the_shortest_schedule_holds_for_durations_only() -> None:
    assert "60s" in refusal("59s", min_seconds=60).message
    assert Schedule.parse("1m", min_seconds=60).seconds == 60
    assert Schedule.parse("* * * * * *", min_seconds=60).kind == ScheduleKind.CRON


CRON_LIKE = st.lists(st.text("0123579*/,-#LWMON", min_size=1, max_size=6), min_size=5, max_size=6).map(" ".join)


@given(st.one_of(st.text(), st.text("0123456789wdhms @", max_size=20), CRON_LIKE))
def test_any_text_is_a_schedule_or_a_coded_error(text: str) -> None:
    try:
        schedule = Schedule.parse(text)
    except MillstreamError as e:
        if e.code != Code.SCHEDULE_INVALID:
            raise
        return
    assert schedule == Schedule.parse(schedule.text)
    assert schedule.next_due(None, NOW) in (NOW, None)


def test_a_duration_counts_from_the_last_refresh() -> None:
    schedule = Schedule.parse("1m")
    last = NOW - timedelta(seconds=59)
    assert not schedule.is_due(last, NOW)
    assert schedule.next_due(last, NOW) == NOW + timedelta(seconds=1)
    assert schedule.deadline(last) == NOW + timedelta(seconds=1)
    assert schedule.is_due(last, NOW + timedelta(seconds=1))
    assert schedule.next_due(last, NOW + timedelta(hours=1)) == NOW + timedelta(hours=1)  # overdue


def test_cron_fires_at_fixed_times_and_makes_up_for_one_missed() -> None:
    schedule = Schedule.parse("0 6 * * 1-5")
    friday = datetime(2026, 2, 27, 6, 0, 0, 1, tzinfo=UTC)
    monday = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
    assert schedule.next_due(friday, NOW) == monday
    assert not schedule.is_due(friday, monday - timedelta(microseconds=1))
    assert schedule.is_due(friday, monday)
    assert schedule.is_due(friday, monday + timedelta(days=10))
    assert not schedule.is_due(monday, monday)  # done
    assert schedule.deadline(friday) is None


def test_cron_with_seconds() -> None:
    schedule = Schedule.parse("*/15 * * * * *")
    assert schedule.next_due(NOW, NOW) == NOW + timedelta(seconds=15)
    assert schedule.next_due(NOW + timedelta(seconds=14.5), NOW) == NOW + timedelta(seconds=15)


def test_cron_follows_the_clock_on_the_wall() -> None:
    schedule = Schedule.parse("30 2 * * *", time_zone="Europe/Berlin")
    winter, summer = datetime(2026, 1, 10, 12, tzinfo=UTC), datetime(2026, 7, 10, 12, tzinfo=UTC)
    assert schedule.next_due(winter, winter) == datetime(2026, 1, 11, 1, 30, tzinfo=UTC)
    assert schedule.next_due(summer, summer) == datetime(2026, 7, 11, 0, 30, tzinfo=UTC)
    # 2026-03-29 has no 02:30 in Berlin: it fires when the hour is over, and once.
    before = datetime(2026, 3, 28, 12, tzinfo=UTC)
    fired = schedule.next_due(before, before)
    assert fired == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    assert schedule.next_due(fired, fired) == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    # 2026-10-25 has 02:30 twice: it fires once.
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)
    fired = schedule.next_due(before, before)
    assert fired == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert schedule.next_due(fired, fired) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_an_unknown_time_zone() -> None:
    for zone in ("Nowhere/Town", "../etc/passwd", ""):
        with pytest.raises(MillstreamError) as caught:
            Schedule.parse("@daily", time_zone=zone)
        assert caught.value.code == Code.SETTING_INVALID


def test_calculated_is_never_due_by_itself() -> None:
    schedule = Schedule.parse("CALCULATED")
    assert schedule.next_due(NOW, NOW) is schedule.next_due(None, NOW) is schedule.deadline(NOW) is None
    assert not schedule.is_due(None, NOW)


@pytest.mark.parametrize("text", ["5m", "@hourly"])
def test_what_was_never_refreshed_is_due(text: str) -> None:
    assert Schedule.parse(text).is_due(None, NOW)


@given(
    st.sampled_from(["1s", "7m", "1h30m", "2d", "* * * * *", "*/7 3 * * *", "*/20 * * * * *", "0 0 29 2 *", "@weekly"]),
    st.sampled_from(["UTC", "America/New_York", "Asia/Kathmandu"]),
    MOMENTS,
    MOMENTS,
)
def test_due_exactly_when_the_next_time_has_come(text: str, zone: str, last: datetime, now: datetime) -> None:
    schedule = Schedule.parse(text, time_zone=zone)
    due = schedule.next_due(last, now)
    assert due is not None
    assert due >= now
    assert schedule.is_due(last, now) == (due == now)
    alone = schedule.next_due(last, last)
    assert alone is not None
    assert alone > last
    assert schedule.is_due(last, alone)
    assert not schedule.is_due(last, alone - timedelta(microseconds=1))
