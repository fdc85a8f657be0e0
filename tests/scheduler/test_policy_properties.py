"""Properties of the policy over simulated machines: random graphs, schedules, durations, failures and clocks.

`kits.simulated_machine` checks in every simulation that no table is refreshed beside itself or twice in a pass, that
order respects the graph, and that slots are never exceeded.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.simulated_machine import Machine, Refreshed
from millstream.errors import Code
from millstream.results import Status
from millstream.scheduler.dag import Dag
from millstream.scheduler.schedule import Schedule
from millstream.scheduler.waits import WaitReason

DURATIONS = ["5s", "8s", "13s", "20s", "45s", "1m", "CALCULATED"]
SIMULATIONS = settings(max_examples=30)


@dataclass(frozen=True)
class Load:
    """Tables, schedules, and how long a refresh of each table takes."""

    sources: dict[str, list[str]]
    schedules: dict[str, str]
    seconds: dict[str, float]
    slots: int

    def machine(self, **options: object) -> Machine:
        return Machine(self.sources, self.schedules, lambda name, _: self.seconds[name], self.slots, **options)  # type: ignore[arg-type]

    def periods(self) -> dict[str, float]:
        """The effective durations."""
        dag = Dag.build(self.sources)
        effective = dag.effective_schedules({name: Schedule.parse(text) for name, text in self.schedules.items()})
        return {name: float(s.seconds) for name, s in effective.items() if s is not None and s.seconds is not None}


@st.composite
def loads(draw: st.DrawFn, schedules: list[str] = DURATIONS) -> Load:
    """Up to eight tables over three base tables, with refreshes of up to 8 s."""
    names = [f"t{i}" for i in range(draw(st.integers(1, 8)))]
    sources = {
        name: draw(st.lists(st.sampled_from([*names[:i], "x", "y", "z"]), min_size=1, max_size=3))
        for i, name in enumerate(names)
    }
    return Load(
        sources,
        {name: draw(st.sampled_from(schedules)) for name in names},
        {name: draw(st.floats(0.01, 8)) for name in names},
        draw(st.integers(1, 3)),
    )


@st.composite
def feasible_loads(draw: st.DrawFn) -> Load:
    """The same, with refreshes shortened until the slots are busy for a fifth of the time, and none blocks a slot."""
    load = draw(loads())
    dag, periods = Dag.build(load.sources), load.periods()
    cost = {name: sum(load.seconds[n] for n in dag.refresh_order([name])) for name in load.sources}
    share = sum(cost[name] / period for name, period in periods.items()) / (0.2 * load.slots)
    blocking = sum(load.seconds.values()) / (0.1 * min(periods.values(), default=1))
    factor = max(share, blocking, 1e-9)
    return Load(load.sources, load.schedules, {n: s / factor for n, s in load.seconds.items()}, load.slots)


def gaps(refreshes: list[Refreshed], until: float) -> list[float]:
    """The times between the frontiers of successful refreshes, from the start to the end of a simulation."""
    times = [0.0, *(r.frontier_at for r in refreshes if r.code is None), until]
    return [b - a for a, b in itertools.pairwise(times)]


@SIMULATIONS
@given(feasible_loads())
def test_a_feasible_schedule_is_kept(load: Load) -> None:
    machine = load.machine().run(400)
    late = [r for r in machine.refreshes if r.lateness is not None and r.lateness > 0]
    assert late == []
    assert [d.missed for _, d in machine.decisions if d.missed] == []
    for name in load.periods():
        assert machine.of(name)


@SIMULATIONS
@given(loads([*DURATIONS, "* * * * *", "*/10 * * * * *"]))
def test_no_table_starves_and_none_is_refreshed_all_the_time(load: Load) -> None:
    until = 600.0
    machine = load.machine().run(until)
    dag = machine.dag
    work = sum(load.seconds.values())
    for name, table in machine.tables.items():
        if table.schedule is None:
            continue
        period = table.schedule.seconds or 60
        path = sum(load.seconds[n] for n in dag.refresh_order([name]))
        bound = period + 4 * work + 2 * path  # its own time, its turn behind all others, and its rest
        assert max(gaps(machine.of(name), until)) <= bound
        alone = [r for r in machine.of(name) if not dag.downstream([name])]
        # it may be due while something it reads is being refreshed for another table, and then joins
        least = 0.7 * period - (path - load.seconds[name]) if table.schedule.seconds else load.seconds[name]
        assert all(b.frontier_at - a.frontier_at >= least - 0.01 for a, b in itertools.pairwise(alone))


@SIMULATIONS
@given(loads())
def test_the_tables_of_a_pass_are_due_or_read_by_due_ones_and_share_what_they_read(load: Load) -> None:
    machine = load.machine().run(120)
    dag = machine.dag
    for _, decision in machine.decisions:
        plans = [*decision.passes, *decision.queued]
        taken = [name for plan in plans for name in plan.tables]
        assert len(set(taken)) == len(taken)
        reached = [{n for name in plan.tables for n in (name, *dag.sources(name))} for plan in plans]
        assert all(not a & b for a, b in itertools.combinations(reached, 2))  # whatever is shared is in one pass
        for plan in plans:
            assert plan.due
            assert set(plan.tables) <= plan.due.union(dag.upstream(plan.due))
            assert set(plan.tables) >= dag.stream_tables.intersection(dag.upstream(plan.due))


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("number", [2, 3, 5, 7, 12])
def test_overload_is_shared_evenly(number: int, slots: int) -> None:
    """Tables of about equal cost, over separate sources, get equal shares, however many there are."""
    names = [f"t{i}" for i in range(number)]
    draws = random.Random(number)
    sources = {name: [f"x_{name}"] for name in names}
    machine = Machine(sources, dict.fromkeys(names, "5s"), lambda *_: draws.uniform(3.9, 4.1), slots).run(400)
    counts = [len(machine.of(name)) for name in names]
    assert max(counts) <= 1.1 * min(counts) + 1
    assert {m.table for _, d in machine.decisions for m in d.missed} == set(names)


def test_under_overload_a_long_schedule_is_kept_and_short_ones_are_late() -> None:
    machine = Machine(
        {f"t{i}": [f"x{i}"] for i in range(6)},
        {**{f"t{i}": "4s" for i in range(5)}, "t5": "2m"},
        lambda *_: 3.0,
    ).run(900)
    assert all(r.lateness is None or r.lateness <= 15 for r in machine.of("t5"))
    assert len(machine.of("t5")) >= 7
    counts = [len(machine.of(f"t{i}")) for i in range(5)]
    assert max(counts) <= 1.1 * min(counts) + 1


@SIMULATIONS
@given(feasible_loads(), st.data())
def test_failing_tables_do_not_delay_others(load: Load, data: st.DataObject) -> None:
    names = sorted(load.sources)
    failing = data.draw(st.sets(st.sampled_from(names), min_size=1))
    code = data.draw(st.sampled_from([Code.DATABASE_UNREACHABLE, Code.REFRESH_FAILED, Code.SOURCE_MISSING]))
    machine = load.machine(failure=lambda name, _: code if name in failing else None).run(200)
    sick = failing.union(machine.dag.downstream(failing))
    for name, period in load.periods().items():
        if name not in sick:
            assert all(r.lateness is None or r.lateness <= 0 for r in machine.of(name))
            assert max(gaps(machine.of(name), 200)) <= period
        elif name not in failing:
            assert all(r.code is not None for r in machine.of(name))  # it never read what had failed
            assert machine.decisions[-1][1].waiting[name].table in failing
    for name in failing:
        times = [r.ended for r in machine.of(name)]
        assert all(b - a >= 0.99 for a, b in itertools.pairwise(times))  # no storm


@SIMULATIONS
@given(feasible_loads(), st.floats(20, 60), st.floats(10, 100), st.data())
def test_tables_recover_when_a_failure_passes(load: Load, since: float, lasts: float, data: st.DataObject) -> None:
    failing = data.draw(st.sampled_from(sorted(load.sources)))
    until = since + lasts + 200
    machine = load.machine(
        failure=lambda name, at: Code.LOCK_TIMEOUT if name == failing and since <= at < since + lasts else None
    ).run(until)
    for name, period in load.periods().items():
        last = max(r.frontier_at for r in machine.of(name) if r.code is None)
        assert until - last <= period
    assert not any(machine.errors.values())


@SIMULATIONS
@given(
    loads([*DURATIONS, "* * * * *", "@hourly"]),
    st.lists(st.tuples(st.floats(30, 200), st.floats(-7200, 7200)), min_size=1, max_size=3),
)
def test_a_clock_that_jumps_neither_stalls_a_table_nor_causes_a_storm(
    load: Load, jumps: list[tuple[float, float]]
) -> None:
    until = 400.0
    machine = load.machine(jumps=tuple(jumps)).run(until)
    steady = load.machine().run(until)
    work = sum(load.seconds.values())
    for name, table in machine.tables.items():
        if table.schedule is None or table.schedule.seconds is None:
            continue
        path = sum(load.seconds[n] for n in machine.dag.refresh_order([name]))
        # 60 s until the loop notices that the clock has jumped
        assert max(gaps(machine.of(name), until)) <= table.schedule.seconds + 4 * work + 2 * path + 60
    extra = len(load.sources) ** 2 * (len(jumps) + 1)  # each table once per jump, with what it reads
    assert len(machine.refreshes) <= 1.5 * len(steady.refreshes) + extra


def test_cron_times_that_a_jump_skips_fire_once() -> None:
    machine = Machine({"a": ["x"]}, {"a": "* * * * *"}, lambda *_: 1.0, jumps=((30.0, 86400.0),)).run(200)
    times = [round(r.frontier_at) for r in machine.of("a")]
    assert times[0] == 0
    assert len([t for t in times if 30 <= t <= 60]) == 1
    assert all(50 <= b - a <= 70 for a, b in itertools.pairwise(times[1:]))


def test_idle_costs_nothing() -> None:
    machine = Machine(
        {f"t{i}": ["x"] for i in range(20)}, dict.fromkeys((f"t{i}" for i in range(20)), "1h"), lambda *_: 0.1
    )
    machine.run(1000)
    assert len([at for at, _ in machine.decisions if at > 5]) <= 1000 / 60 + 1
    never = Machine({"a": ["x"]}, {"a": "CALCULATED"}, lambda *_: 1.0).run(1000)
    assert (len(never.refreshes), len(never.decisions)) == (0, 17)


def test_a_transient_failure_counts_after_five_retries_and_ends_in_error() -> None:
    machine = Machine(
        {"bad": ["x"], "next": ["bad"], "other": ["x"]},
        dict.fromkeys(["bad", "next", "other"], "5s"),
        lambda *_: 0.1,
        failure=lambda name, _: Code.DATABASE_UNREACHABLE if name == "bad" else None,
    ).run(3000)
    assert len(machine.of("bad")) == 18
    assert machine.tables["bad"].status is Status.ERROR
    wait = machine.decisions[-1][1].waiting["next"]
    assert (wait.table, wait.reason) == ("bad", WaitReason.ERROR)
    assert max(gaps(machine.of("other"), 3000)) <= 5


def test_a_slow_table_leaves_the_rest_of_its_component_alone() -> None:
    machine = Machine(
        {"slow": ["x"], "above": ["slow"], "quick": ["x"]},
        {"slow": "1m", "above": "1m", "quick": "5s"},
        lambda name, _: 100.0 if name == "slow" else 0.1,
        slots=2,
    ).run(1000)
    assert max(gaps(machine.of("quick"), 1000)) <= 5
    assert len(machine.of("above")) >= 4
    assert {m.table for _, d in machine.decisions for m in d.missed} == {"slow", "above"}


def test_wrong_expectations_are_learned() -> None:
    machine = Machine({"a": ["x"]}, {"a": "10s"}, lambda *_: 2.5, is_measured=False).run(200)
    assert [r.lateness > 0 for r in machine.of("a")[1:] if r.lateness is not None] == [False] * (
        len(machine.of("a")) - 1
    )


@pytest.mark.parametrize("slots", [1, 2])
def test_many_tables_that_start_together_keep_their_deadlines(slots: int) -> None:
    names = [f"t{i}" for i in range(30)]
    for sources in ({n: ["x"] for n in names}, {n: [f"x_{n}"] for n in names}):
        machine = Machine(sources, dict.fromkeys(names, "30s"), lambda *_: 0.3, slots).run(300)
        assert [r for r in machine.refreshes if r.lateness is not None and r.lateness > 0] == []
        assert len(machine.refreshes) <= 30 * 300 / 30 * 1.45 + 30
