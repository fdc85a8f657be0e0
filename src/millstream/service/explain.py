"""How a query is maintained, in words and in SQL: the same operators and steps that a refresh runs."""

from __future__ import annotations

from millstream.diff.describe import operators, title
from millstream.diff.plan import FRONTIER, AnyStep, Step
from millstream.lake import Compiled
from millstream.ops import Relation, render
from millstream.ops.render import to_sql
from millstream.reasons import Reason
from millstream.results import Explanation, OperatorPlan, RefreshMode


def explanation(compiled: Compiled, mode: RefreshMode, name: str | None = None) -> Explanation:
    """The operator tree, the strategy of each operator, and the steps of a refresh in which every input changed."""
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
    return Explanation(
        name=name,
        refresh_mode=mode,
        supported=compiled.is_incremental,
        operators=plans,
        steps=tuple(steps),
        reasons=(*compiled.reasons, *compiled.notices),
        columns=tuple((c.name, c.type) for c in compiled.columns),
        fallbacks=_fallbacks(compiled, mode),
    )


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
