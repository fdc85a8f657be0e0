"""Cron expressions where clocks are changed, against an oracle that looks at every second or minute there is."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import Code, MillstreamError
from millstream.scheduler.schedule import Schedule

# a day on which, or next to which, clocks were or will be changed
CHANGES = {
    "Europe/Berlin": ["2026-03-29", "2026-10-25"],
    "America/New_York": ["2026-03-08", "2026-11-01"],
    "Australia/Lord_Howe": ["2026-04-05", "2026-10-04"],  # by half an hour
    "America/Sao_Paulo": ["2018-02-18", "2018-11-04"],  # at midnight
    "Africa/Casablanca": ["2026-02-15", "2026-03-22"],
    "Asia/Kathmandu": ["2026-01-01"],  # never
    "Pacific/Apia": ["2011-12-30"],  # a day that never was
    "+05:30": ["2026-03-29"],
}
NUMBERS = {"minute": (0, 59), "hour": (0, 23), "second": (0, 59)}


def field(name: str) -> st.SearchStrategy[str]:
    low, high = NUMBERS[name]
    number = st.integers(low, min(high, 4) if name == "hour" else high)
    step = st.sampled_from([7, 10, 15, 20, 30] if name != "hour" else [1, 2, 3])
    span = st.tuples(number, number).filter(lambda p: p[0] < p[1]).map(lambda p: f"{p[0]}-{p[1]}")
    return st.one_of(
        number.map(str),
        st.lists(number, min_size=2, max_size=3, unique=True).map(lambda xs: ",".join(map(str, xs))),
        span,
        st.tuples(span, step).map(lambda p: f"{p[0]}/{p[1]}"),
        st.just("*"),
        step.map(lambda s: f"*/{s}"),
    )


def values(text: str, low: int, high: int) -> set[int]:
    """What a field of cron stands for."""
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = (str(low), "", str(high)) if span == "*" else span.partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def zone(name: str) -> ZoneInfo:
    return ZoneInfo(name) if "/" in name else ZoneInfo("Asia/Kolkata")


def expected(fields: list[str], name: str, begin: datetime, end: datetime) -> list[datetime]:
    """All times from `begin` to `end` at which an expression for every day fires, by looking at each there is."""
    second, minute, hour = ["0", *fields][-3:] if len(fields) == 2 else fields
    seconds, minutes, hours = values(second, 0, 59), values(minute, 0, 59), values(hour, 0, 23)

    def agrees(shown: datetime) -> bool:
        return shown.second in seconds and shown.minute in minutes and shown.hour in hours

    step = timedelta(seconds=1 if len(fields) == 3 else 60)
    moments = [begin + i * step for i in range((end - begin) // step + 1)]
    walls = [m.astimezone(zone(name)).replace(tzinfo=None, fold=0) for m in moments]
    if minute.startswith("*") or hour.startswith("*"):
        return [m for m, wall in zip(moments, walls, strict=True) if agrees(wall)]
    seen: set[datetime] = set()
    fires: list[datetime] = []
    for index, (moment, wall) in enumerate(zip(moments, walls, strict=True)):
        skipped: list[datetime] = []
        if index and wall - walls[index - 1] > step:
            skipped = [walls[index - 1] + step * i for i in range(1, (wall - walls[index - 1]) // step)]
        is_new = wall not in seen
        seen.add(wall)
        if (is_new and agrees(wall)) or any(agrees(s) for s in skipped):
            fires.append(moment)
    return fires


@settings(max_examples=60)
@given(st.data())
def test_it_fires_as_the_clock_on_the_wall_says(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CHANGES)))
    day = date.fromisoformat(data.draw(st.sampled_from(CHANGES[name])))
    has_seconds = data.draw(st.booleans())
    fields = [data.draw(field(f)) for f in (["second"] if has_seconds else []) + ["minute", "hour"]]
    begin = datetime.combine(day, time(0), UTC) - timedelta(hours=26)
    hours = 30 if not has_seconds else 6
    if has_seconds:  # around the change only: there are many seconds
        begin = changed(name, begin) - timedelta(hours=3)
    end = begin + timedelta(hours=hours + (0 if has_seconds else 30))
    schedule = Schedule.parse(" ".join([*fields, "*", "*", "*"]), time_zone=name)
    wanted = expected(fields, name, begin, end)
    found, last = [], begin - timedelta(seconds=1)
    while (due := schedule.next_due(last, last)) is not None and due <= end and len(found) < 300:
        assert due > last
        found.append(due)
        last = due
    most = 250
    if not fields[-2].startswith("*") and not fields[-1].startswith("*"):
        wanted = [w for w in wanted if w > begin + timedelta(hours=2)]  # what was shown before `begin` is not known
        most -= sum(f <= begin + timedelta(hours=2) for f in found)
        found = [f for f in found if f > begin + timedelta(hours=2)]
    assert found == wanted[: len(found)]
    assert len(found) >= min(len(wanted), most)


def changed(name: str, begin: datetime) -> datetime:
    """The first change of the clock after a moment, or some moment if there is none."""
    for minutes in range(60 * 60):
        moment = begin + timedelta(minutes=minutes)
        later = moment + timedelta(minutes=1)
        if moment.astimezone(zone(name)).utcoffset() != later.astimezone(zone(name)).utcoffset():
            return later
    return begin + timedelta(hours=26)


@given(
    st.sampled_from(["30 2 * * *", "0 30 2 * * *", "*/5 * * * *", "0 0 * * *", "@daily", "@hourly", "15 10 1-3 * * *"]),
    st.sampled_from(sorted(CHANGES)),
    st.integers(-2 * 86_400, 2 * 86_400),
)
@example("30 2 * * *", "Europe/Berlin", 86_400 + 3_600 + 600)  # while 02:10 is shown for the second time
def test_what_is_next_is_later(text: str, name: str, seconds: int) -> None:
    schedule = Schedule.parse(text, time_zone=name)
    for day in CHANGES[name]:
        last = datetime.combine(date.fromisoformat(day), time(0), UTC) + timedelta(seconds=seconds)
        due = schedule.next_due(last, last)
        assert due is not None
        assert due > last
        assert schedule.is_due(last, due)
        assert not schedule.is_due(last, due - timedelta(microseconds=1))


@pytest.mark.parametrize("text", ["30 2 * * *", "0 30 2 * * *"])
def test_once_where_it_comes_twice_and_after_the_gap_where_it_does_not_come(text: str) -> None:
    schedule = Schedule.parse(text, time_zone="Europe/Berlin")
    before = datetime(2026, 3, 28, 12, tzinfo=UTC)
    fired = schedule.next_due(before, before)
    assert fired == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    assert schedule.next_due(fired, fired) == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)
    fired = schedule.next_due(before, before)
    assert fired == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    for last in (fired, datetime(2026, 10, 25, 1, 10, tzinfo=UTC)):  # 02:10, for the second time
        assert schedule.next_due(last, last) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "hours"),
    [("+02:00", 2), ("-03:30", -3.5), ("UTC+1", 1), ("GMT-05:00", -5), ("Z", 0), ("GMT", 0), ("+0530", 5.5)],
)
def test_offsets_as_spark_writes_them(name: str, hours: float) -> None:
    last = datetime(2026, 1, 1, tzinfo=UTC)
    due = Schedule.parse("0 12 * * *", time_zone=name).next_due(last, last)
    assert due == datetime(2026, 1, 1, 12, tzinfo=UTC) - timedelta(hours=hours)


@pytest.mark.parametrize("name", ["+99:00", "Europe", "Nowhere/Town", "+", "UTC+", ""])
def test_what_is_no_time_zone(name: str) -> None:
    with pytest.raises(MillstreamError) as caught:
        Schedule.parse("@daily", time_zone=name)
    assert caught.value.code is Code.SETTING_INVALID
