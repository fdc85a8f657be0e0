"""The operators of a query's stages, each with how it is maintained and when that gives way to a recomputation.

Both come from the rules: the strategy they are registered with, and what their modules say of falling back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from millstream.diff import current_time, keyed, partition, recursive
from millstream.diff.base import RULES, STRATEGIES
from millstream.diff.keyed import KeyedStage
from millstream.diff.partition import PartitionStage
from millstream.diff.recursive import RecursiveStage
from millstream.diff.stages import PUBLIC, NamedStage
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
)
from millstream.ops.clock import tells_time
from millstream.results import OperatorPlan


def operators(stages: Sequence[NamedStage]) -> tuple[OperatorPlan, ...]:
    """The operator tree of each stage, in the order the stages are refreshed."""
    return tuple(line for named in stages for line in _stage(named))


def title(named: NamedStage) -> str:
    """What a stage is called."""
    return "result" if named.name == PUBLIC else f"hidden {named.name.removeprefix('__ms_')}"


def falls_back_when(module: str) -> str:
    """What the docstring of a rule's module says of it."""
    text = sys.modules[module].__doc__ or ""
    found = re.search(r"^Falls back when: (.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found.group(1).split()) if found else ""


def _stage(named: NamedStage) -> list[OperatorPlan]:
    stage = named.stage
    lines = [OperatorPlan(0, title(named), "stored by key" if isinstance(stage, KeyedStage) else "stored as rows")]
    if isinstance(stage, PartitionStage):
        return lines + _partitioned(stage.body, 1)
    if isinstance(stage, RecursiveStage):
        kind = "UNION" if stage.body.distinct else "UNION ALL"
        strategies, fallback = " or ".join(stage.strategies), falls_back_when(recursive.__name__)
        lines.append(OperatorPlan(1, f"recursion, {kind}", strategies, fallback))
        return lines + _tree(stage.body.base, 2) + _tree(stage.body.step, 2)
    if not isinstance(stage, KeyedStage):
        return lines + _tree(stage.body, 1)
    keys = ", ".join(i.column.name for i in stage.body.keys) or "all rows"
    fallback = falls_back_when(keyed.__name__)
    lines.append(OperatorPlan(1, f"aggregate by {keys}", "touched groups merged with their stored state", fallback))
    for item, call in zip(stage.body.calls, stage.calls, strict=True):
        lines.append(OperatorPlan(2, item.expression.sql(dialect="spark"), call.strategy, fallback))
    return lines + _tree(stage.body.input, 2)


def _partitioned(relation: Relation, depth: int) -> list[OperatorPlan]:
    """The operators of a stage that computes touched partitions again, down to its window."""
    if not isinstance(relation, Window):
        line = OperatorPlan(depth, _describe(relation), "of the rows of touched partitions")
        return [line, *_partitioned(relation.children[0], depth + 1)]
    keys = ", ".join(relation.partition) or "all rows"
    fallback = falls_back_when(partition.__name__)
    lines = [OperatorPlan(depth, f"window by {keys}", "touched partitions computed again", fallback)]
    lines += [OperatorPlan(depth + 1, i.expression.sql(dialect="spark"), "") for i in relation.calls]
    return lines + _tree(relation.input, depth + 1)


def _tree(relation: Relation, depth: int) -> list[OperatorPlan]:
    rule = RULES.get(type(relation))
    fallback = falls_back_when(rule.__module__) if rule is not None else ""
    strategies = current_time.STRATEGIES if tells_time(relation) else STRATEGIES
    line = OperatorPlan(depth, _describe(relation), strategies.get(type(relation), ""), fallback)
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
