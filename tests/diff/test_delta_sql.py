"""The SQL of each delta rule, and of each stage that takes the place of one, on golden files.

The file of an operator shows the three views of its first occurrence in a query: `new`, `delta` and `old`; or, of an
operator with a stage, the steps of a refresh. CONTRIBUTING says how they are written again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kits.delta_sql import FOLDER, MAINTAINED, file_of, first, relation_of
from millstream.diff.difference import Difference
from millstream.diff.plan import Fixpoint
from millstream.diff.rules import RULES, NoRule
from millstream.diff.stages import split
from millstream.ops import Relation, render, walk
from millstream.ops.render import to_sql
from millstream.testing.golden import Case, assert_golden

STAGED = {entry.operator for entry in RULES if isinstance(entry, NoRule)}


def changed(case: Case) -> frozenset[str]:
    return frozenset(case.headers["changed"].split(", "))


def sql(title: str, relation: Relation | None) -> str:
    return f"-- {title}\n" + ("-- nothing" if relation is None else to_sql(render(relation), pretty=True))


def views(case: Case, operator: type[Relation]) -> Iterator[str]:
    difference = Difference(changed(case))
    node = first(operator, case.text)
    yield sql("new", difference.new(node))
    yield sql("delta", difference.delta(node))
    yield sql("old", difference.old(node))


def steps(case: Case, operator: type[Relation]) -> Iterator[str]:
    stage = next(s.stage for s in split(relation_of(case.text)) if any(type(n) is operator for n in walk(s.stage.body)))
    for step in stage.steps(changed(case)):
        condition = f", only if {step.only_if} asks for it" if step.only_if else ""
        if isinstance(step, Fixpoint):
            condition = f", unless {step.unless} asks for it" if step.unless else condition
            yield sql(f"{step.name}, first{condition}", step.seed.relation)
            yield sql(f"{step.name}, repeated{condition}", step.body.relation)
        else:
            yield sql(step.name + condition, step.relation)


@pytest.mark.parametrize("operator", MAINTAINED, ids=lambda operator: operator.__name__)
def test_the_sql_of_a_rule(operator: type[Relation]) -> None:
    shown = steps if operator in STAGED else views
    assert_golden(file_of(operator), lambda case: "\n".join(shown(case, operator)))


def test_there_is_no_file_without_an_operator() -> None:
    assert set(FOLDER.iterdir()) == {file_of(operator) for operator in MAINTAINED}
