"""How a query is maintained, in words and in SQL: the same operators and steps that a refresh runs."""

from __future__ import annotations

from millstream.cycles import Cycle
from millstream.diff.circular import Member
from millstream.diff.describe import operators, title
from millstream.diff.plan import FRONTIER, AnyStep, Step
from millstream.lake import Compiled
from millstream.ops import Relation, render
from millstream.ops.render import to_sql
from millstream.reasons import Reason
from millstream.results import Explanation, OperatorPlan, RefreshMode


def explanation(
    compiled: Compiled, mode: RefreshMode, name: str | None = None, cycle: Cycle = frozenset()
) -> Explanation:
    """The operator tree, the strategy of each operator, and the steps of a refresh in which every input changed.

    Args:
        cycle: the stream tables, itself included, that it reads in a cycle.
    """
    plans = operators(compiled.stages)
    steps: list[tuple[str, str]] = []
    for named in compiled.stages:
        prefix = "" if len(compiled.stages) == 1 else f"{title(named)}: "
        for step in named.stage.steps(frozenset(named.inputs)):
            steps += [(prefix + when, to_sql(render(relation), pretty=True)) for when, relation in _queries(step)]
    if not compiled.stages:
        plans = (OperatorPlan(0, "query", "recomputed at each refresh"),)
        steps = [("full", compiled.query)]
    elif compiled.original is not None:
        steps.insert(0, (f"the query, translated from {compiled.dialect}", compiled.query))
    if cycle and name is not None:
        steps = [*_rounds(compiled, name, cycle), *steps]
    return Explanation(
        name=name,
        refresh_mode=mode,
        supported=compiled.is_incremental,
        operators=plans,
        steps=tuple(steps),
        reasons=(*compiled.reasons, *compiled.notices, *([_together(cycle)] if cycle else [])),
        columns=tuple((c.name, c.type) for c in compiled.columns),
        fallbacks=_fallbacks(compiled, mode),
    )


def _together(cycle: Cycle) -> str:
    return (
        f"circular: the stream tables {', '.join(sorted(cycle))} are refreshed together, to the smallest contents that "
        "satisfy all their queries; from empty if rows were taken away, otherwise from what they have stored"
    )


def _rounds(compiled: Compiled, name: str, cycle: Cycle) -> list[tuple[str, str]]:
    """The queries that find what a member of a cycle will hold, before it is refreshed as usual."""
    assert compiled.relation is not None, "a member of a cycle is maintained by deltas"
    member = Member(name, compiled.relation, compiled.columns)
    found = [("first round, from empty", member.over_empty())]
    outside = frozenset(compiled.sources) - cycle
    for when, changed in (("first round, from what is stored", outside), ("further rounds", cycle)):
        if (step := member.gained(frozenset(changed))) is not None:
            found.append((when, step))
    return [(f"the cycle, {when}", to_sql(render(step.relation), pretty=True)) for when, step in found]


def _queries(step: AnyStep) -> list[tuple[str, Relation]]:
    """The queries of a step and when they run."""
    condition = f" (only if {step.only_if} asks for it)" if step.only_if else ""
    if isinstance(step, Step):
        return [(step.name + condition, step.relation)]
    condition = f" (unless {step.unless} asks for more)" if step.unless else condition
    return [
        (f"{step.name}, at first{condition}", step.seed.relation),
        (f"{step.name}, repeated while {FRONTIER} has rows{condition}", step.body.relation),
    ]


def _fallbacks(compiled: Compiled, mode: RefreshMode) -> tuple[tuple[str, str], ...]:
    """The reasons for which a refresh in that mode recomputes the whole query."""
    if mode is RefreshMode.FULL:
        found = [Reason.MODE_FULL]
    elif compiled.follows_time and not compiled.is_incremental:
        found = [Reason.CURRENT_TIME]
    elif not compiled.is_incremental:
        found = [Reason.NOT_INCREMENTAL]
    elif mode is RefreshMode.DIFFERENTIAL_STRICT:
        found = []
    else:
        found = [r for r in Reason if r.is_fallback and (mode is RefreshMode.AUTO or not r.is_by_cost)]
    return tuple((str(r), r.explanation) for r in found)
