"""How a query is maintained, in words and in SQL: the same operators and steps that a refresh runs."""

from __future__ import annotations

from millstream.diff.base import STRATEGIES
from millstream.diff.keyed import KeyedStage
from millstream.diff.partition import PartitionStage
from millstream.diff.plan import FRONTIER, AnyStep, Step
from millstream.diff.recursive import RecursiveStage
from millstream.diff.stages import PUBLIC, NamedStage
from millstream.lake import Compiled
from millstream.naming import RECURSION
from millstream.ops import (
    Aggregate,
    AntiJoin,
    Filter,
    InnerJoin,
    OuterJoin,
    Project,
    Relation,
    Repeat,
    Scan,
    SemiJoin,
    Window,
    render,
)
from millstream.ops.render import to_sql
from millstream.results import Explanation, OperatorPlan, RefreshMode


def explanation(compiled: Compiled, mode: RefreshMode, name: str | None = None) -> Explanation:
    """The operator tree, the strategy of each operator, and the steps of a refresh in which every input changed."""
    operators: list[OperatorPlan] = []
    steps: list[tuple[str, str]] = []
    for named in compiled.stages:
        operators += _stage(named)
        prefix = "" if len(compiled.stages) == 1 else f"{_title(named)}: "
        for step in named.stage.steps(frozenset(named.inputs)):
            steps += [(prefix + title, to_sql(render(relation), pretty=True)) for title, relation in _queries(step)]
    if not compiled.stages:
        operators = [OperatorPlan(0, "query", "recomputed at each refresh")]
        steps = [("full", compiled.query)]
    elif compiled.original is not None:
        steps.insert(0, (f"the query, translated from {compiled.dialect}", compiled.query))
    return Explanation(
        name=name,
        refresh_mode=mode,
        supported=compiled.is_incremental,
        operators=tuple(operators),
        steps=tuple(steps),
        reasons=(*compiled.reasons, *compiled.notices),
        columns=tuple((c.name, c.type) for c in compiled.columns),
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


def _title(named: NamedStage) -> str:
    return "result" if named.name == PUBLIC else f"hidden {named.name.removeprefix('__ms_')}"


def _stage(named: NamedStage) -> list[OperatorPlan]:
    stage = named.stage
    lines = [OperatorPlan(0, _title(named), "stored by key" if isinstance(stage, KeyedStage) else "stored as rows")]
    if isinstance(stage, PartitionStage):
        return lines + _partitioned(stage.body, 1)
    if isinstance(stage, RecursiveStage):
        kind = "UNION" if stage.body.distinct else "UNION ALL"
        lines.append(OperatorPlan(1, f"recursion, {kind}", " or ".join(stage.strategies)))
        return lines + _tree(stage.body.base, 2) + _tree(stage.body.step, 2)
    if not isinstance(stage, KeyedStage):
        return lines + _tree(stage.body, 1)
    keys = ", ".join(i.column.name for i in stage.body.keys) or "all rows"
    lines.append(OperatorPlan(1, f"aggregate by {keys}", "touched groups merged with their stored state"))
    for item, call in zip(stage.body.calls, stage.calls, strict=True):
        lines.append(OperatorPlan(2, item.expression.sql(dialect="spark"), call.strategy))
    return lines + _tree(stage.body.input, 2)


def _partitioned(relation: Relation, depth: int) -> list[OperatorPlan]:
    """The operators of a stage that computes touched partitions again, down to its window."""
    if not isinstance(relation, Window):
        line = OperatorPlan(depth, _describe(relation), "of the rows of touched partitions")
        return [line, *_partitioned(relation.children[0], depth + 1)]
    keys = ", ".join(relation.partition) or "all rows"
    lines = [OperatorPlan(depth, f"window by {keys}", "touched partitions computed again")]
    lines += [OperatorPlan(depth + 1, i.expression.sql(dialect="spark"), "") for i in relation.calls]
    return lines + _tree(relation.input, depth + 1)


def _tree(relation: Relation, depth: int) -> list[OperatorPlan]:
    line = OperatorPlan(depth, _describe(relation), STRATEGIES.get(type(relation), ""))
    return [line, *(o for child in relation.children for o in _tree(child, depth + 1))]


def _describe(relation: Relation) -> str:
    match relation:
        case Scan() if relation.source.startswith(RECURSION):
            return "the rows found last"
        case Scan():
            return f"scan {relation.source} ({', '.join(relation.origin)})"
        case Filter():
            return f"filter {relation.predicate.sql(dialect='spark')}"
        case Project():
            return f"project {', '.join(c.name for c in relation.schema)}"
        case InnerJoin():
            conditions = " AND ".join(c.sql(dialect="spark") for c in relation.conditions)
            return f"inner join of {len(relation.inputs)}" + (f" on {conditions}" if conditions else "")
        case OuterJoin():
            return f"{relation.kind} outer join on {relation.condition.sql(dialect='spark')}"
        case SemiJoin() | AntiJoin():
            word = "with" if isinstance(relation, SemiJoin) else "without"
            return f"rows {word} a partner on {relation.condition.sql(dialect='spark')}"
        case Aggregate():
            return "aggregate"
        case Repeat():
            return f"rows repeated {relation.count.sql(dialect='spark')} times"
    return type(relation).__name__.lower()
