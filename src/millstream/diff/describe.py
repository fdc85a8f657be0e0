"""The operators of a query's stages, with the strategy that maintains each, and when it falls back to recomputation.

Both come from the rules: the strategy from their table, the fallback from "Falls back when" in their modules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import assert_never

from millstream.diff import keyed, partition, recursive
from millstream.diff.bag import BagStage
from millstream.diff.keyed import KeyedStage
from millstream.diff.partition import PartitionStage
from millstream.diff.recursive import RecursiveStage
from millstream.diff.rules import NoRule, rule_of
from millstream.diff.stages import PUBLIC, NamedStage
from millstream.ops import Relation, Window
from millstream.ops.clock import reads_clock
from millstream.results import OperatorPlan


def operators(stages: Sequence[NamedStage]) -> tuple[OperatorPlan, ...]:
    """The operator tree of each stage, in the order the stages are refreshed."""
    return tuple(line for named in stages for line in _stage(named))


def title(named: NamedStage) -> str:
    """The name of a stage in `explain`."""
    return "result" if named.name == PUBLIC else f"hidden {named.name.removeprefix('__ms_')}"


def falls_back_when(module: str) -> str:
    """The text under "Falls back when" in the docstring of a rule's module."""
    text = sys.modules[module].__doc__ or ""
    found = re.search(r"^Falls back when: (.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found.group(1).split()) if found else ""


def _stage(named: NamedStage) -> list[OperatorPlan]:
    stage, name = named.stage, title(named)
    match stage:
        case BagStage():
            return [OperatorPlan(0, name, "stored as rows"), *_tree(stage.body, 1)]
        case PartitionStage():
            return [OperatorPlan(0, name, "stored as rows"), *_partitioned(stage.body, 1)]
        case RecursiveStage():
            strategies, fallback = " or ".join(stage.strategies), falls_back_when(recursive.__name__)
            line = OperatorPlan(1, stage.body.label, strategies, fallback)
            below = _tree(stage.body.base, 2) + _tree(stage.body.step, 2)
            return [OperatorPlan(0, name, "stored as rows"), line, *below]
        case KeyedStage():
            return [OperatorPlan(0, name, "stored by key"), *_grouped(stage)]
    assert_never(stage)


def _grouped(stage: KeyedStage) -> list[OperatorPlan]:
    fallback = falls_back_when(keyed.__name__)
    lines = [OperatorPlan(1, stage.body.label, "touched groups merged with their stored state", fallback)]
    for item, call in zip(stage.body.calls, stage.calls, strict=True):
        lines.append(OperatorPlan(2, item.expression.sql(dialect="spark"), call.strategy, fallback))
    return lines + _tree(stage.body.input, 2)


def _partitioned(relation: Relation, depth: int) -> list[OperatorPlan]:
    """The operators of a stage that computes touched partitions again, down to its window."""
    if not isinstance(relation, Window):
        line = OperatorPlan(depth, relation.label, "of the rows of touched partitions")
        return [line, *_partitioned(relation.children[0], depth + 1)]
    fallback = falls_back_when(partition.__name__)
    lines = [OperatorPlan(depth, relation.label, "touched partitions computed again", fallback)]
    lines += [OperatorPlan(depth + 1, i.expression.sql(dialect="spark"), "") for i in relation.calls]
    return lines + _tree(relation.input, depth + 1)


def _tree(relation: Relation, depth: int) -> list[OperatorPlan]:
    rule = rule_of(relation)
    if isinstance(rule, NoRule):
        raise TypeError(f"{rule.operator.__name__} has no delta rule inside a stage: {rule.reason}")
    strategy = rule.strategy_with_clock if reads_clock(relation) else rule.strategy
    line = OperatorPlan(depth, relation.label, strategy, falls_back_when(rule.delta.__module__))
    return [line, *(o for child in relation.children for o in _tree(child, depth + 1))]
