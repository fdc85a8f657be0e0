"""When sources are looked at: by simulated clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from millstream.service.daemon.watch_plan import LONGEST_PAUSE, Looked, plan_looks

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
EVERY = timedelta(seconds=10)


def test_a_source_that_was_never_looked_at_is_due() -> None:
    assert plan_looks(["shop"], {}, EVERY, NOON).due == ("shop",)


def test_a_look_that_is_running_is_not_joined_by_another() -> None:
    plan = plan_looks(["shop"], {"shop": Looked(NOON - 9 * EVERY).begun()}, EVERY, NOON)
    assert plan.due == ()


def test_a_clock_that_is_set_back() -> None:
    looked = Looked(NOON + timedelta(days=1), failures=3)
    assert plan_looks(["shop"], {"shop": looked}, EVERY, NOON).due == ("shop",)


def test_looks_that_fail_become_rarer_and_recover() -> None:
    looked, now, pauses = Looked(), NOON, list[float]()
    for _ in range(5):
        looked = looked.ended(now, has_failed=True)
        at = plan_looks([], {}, EVERY, now).wake_at
        while not plan_looks(["shop"], {"shop": looked}, EVERY, at).due:
            at += timedelta(seconds=1)
        pauses.append((at - now).total_seconds())
        now = at
    assert pauses == [20, 40, 60, 60, 60]
    looked = looked.ended(now, has_failed=False)
    assert plan_looks(["shop"], {"shop": looked}, EVERY, now).wake_at == now + EVERY


@given(
    st.dictionaries(
        st.sampled_from("abcde"),
        st.builds(
            Looked,
            st.none() | st.integers(-200, 200).map(lambda s: NOON + timedelta(seconds=s)),
            st.integers(0, 40),
            st.booleans(),
        ),
    ),
    st.integers(1, 3600),
)
def test_no_source_is_forgotten(looked: dict[str, Looked], seconds: int) -> None:
    """Each source is running, due, or due within the longest pause; and one never depends on another."""
    every = timedelta(seconds=seconds)
    plan = plan_looks("abcde", looked, every, NOON)
    assert NOON < plan.wake_at <= NOON + every
    for name in "abcde":
        alone = plan_looks([name], looked, every, NOON)
        assert (name in plan.due) == (name in alone.due)
        if name not in plan.due and not looked[name].is_running:
            later = NOON + max(every, LONGEST_PAUSE)
            assert plan_looks([name], looked, every, later).due == (name,)
