"""Every operator has an answer, or a declared refusal, wherever the sources ask which operator a relation is.

`DISPATCHERS` lists the functions that answer for all operators, or for a family of them. `PREDICATES` lists those that
ask for some operators only, with the reason why all others may be treated alike. A scan of the sources finds a function
that is in neither.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any, get_args

import pytest
from sqlglot import exp

from kits.delta_sql import MAINTAINED, example_of
from kits.dispatches import dispatches
from millstream.diff import circular, describe, narrow, stages, turnover
from millstream.diff.bounds import Bounds
from millstream.diff.difference import Difference
from millstream.diff.rules import RULES, NoRule, rule_of
from millstream.ops import (
    Column,
    InnerJoin,
    OneRow,
    Opaque,
    Recursion,
    Relation,
    Table,
    Window,
    clock,
)
from millstream.ops.expressions import col, compare
from millstream.ops.known import Known
from millstream.ops.operator import Operator
from millstream.ops.relations import OPERATORS
from millstream.ops.standalone import standalone
from millstream.ops.tree import format_tree
from millstream.sql.lowering import recursion

# packages whose names are functions, too
rendering = import_module("millstream.ops.render")
isolating = import_module("millstream.sql.rewrites.isolate_time")
opening = import_module("millstream.sql.rewrites.pull_up_projections")
inner = import_module("millstream.sql.rewrites.outer_to_inner")

KEYS = Table("keys", (Column("k", "int"),))

EXAMPLES: dict[type[Relation], Relation] = {Table: KEYS, **{o: example_of(o) for o in MAINTAINED}}
ALL = frozenset(EXAMPLES)
STAGED = frozenset(entry.operator for entry in RULES if isinstance(entry, NoRule))


def gains() -> turnover.Turnover:
    return turnover.Turnover(Difference(frozenset({"t"})), "__ms_recursion", KEYS)


@dataclass(frozen=True)
class Dispatcher:
    """A call with an operator, those it refuses with an error of its own, and those its signature takes."""

    call: Callable[[Any], object]
    refuses: frozenset[type[Relation]] = frozenset()
    takes: frozenset[type[Relation]] = ALL


DISPATCHERS: dict[str, Dispatcher] = {
    "millstream.ops.clock.now": Dispatcher(clock.now),
    "millstream.ops.render.render": Dispatcher(rendering.render, frozenset({Recursion})),
    "millstream.ops.render._body": Dispatcher(rendering._body, frozenset({Recursion})),
    "millstream.ops.render._source": Dispatcher(lambda node: rendering._source(node, "l"), frozenset({Recursion})),
    "millstream.diff.bounds.Bounds.of": Dispatcher(
        lambda node: (Bounds(frozenset(), frozenset()).of(node, [node.columns[0].name]),)
    ),
    "millstream.diff.circular._obstacle_at": Dispatcher(lambda node: (circular._obstacle_at(node),)),
    "millstream.diff.narrow._Narrowing.visit": Dispatcher(narrow._Narrowing(frozenset()).visit),
    "millstream.diff.narrow._Narrowing._restricted": Dispatcher(
        lambda node: narrow._Narrowing(frozenset())._restricted(
            node, KEYS, compare(exp.EQ, col(node.columns[0].name), col("k"))
        )
    ),
    "millstream.diff.stages._peel": Dispatcher(stages._peel),
    "millstream.diff.stages._Hidden.below.replaced": Dispatcher(stages._Hidden({}).below),
    "millstream.diff.stages._Hidden._keeping_partition": Dispatcher(
        stages._Hidden({})._keeping_partition, takes=frozenset({Window})
    ),
    "millstream.diff.turnover.Turnover._gain": Dispatcher(
        lambda node: gains()._gain(node), ALL - set(get_args(turnover.PATH))
    ),
    "millstream.diff.turnover.Turnover._loss": Dispatcher(
        lambda node: gains()._loss(node), ALL - set(get_args(turnover.PATH))
    ),
    "millstream.diff.turnover.Turnover._alike": Dispatcher(
        lambda node: gains()._alike(node, gains().gained), takes=frozenset(get_args(turnover._Alike))
    ),
    "millstream.sql.lowering.recursion._problem": Dispatcher(
        lambda node: (recursion._problem(node, "__ms_recursion"),)
    ),
    "millstream.sql.rewrites.isolate_time._isolated": Dispatcher(lambda node: isolating._isolated(node, count(1))),
    "millstream.sql.rewrites.outer_to_inner.outer_to_inner.rebuilt": Dispatcher(inner.outer_to_inner),
    # the examples of a filter and of a projection have no join below them
    "millstream.sql.rewrites.pull_up_projections._opened": Dispatcher(opening._opened, ALL - {InnerJoin, OneRow}),
}
"""By the name of the function."""

CALLERS: dict[str, Dispatcher] = {
    "the table of rules": Dispatcher(rule_of),
    "the delta": Dispatcher(lambda node: (Difference(frozenset({"t"})).delta(node),), STAGED),
    "the new value": Dispatcher(Difference(frozenset({"t"})).new),
    "explain": Dispatcher(lambda node: describe._tree(node, 0), STAGED),
    "the whole query in SQL": Dispatcher(standalone),
    "the tree": Dispatcher(format_tree),
}
"""What asks a table or the operator itself, and so needs no dispatch of its own."""

PREDICATES = {
    "millstream.diff.bag._subtracts": "scans are the inputs; all operators but a union may count a row twice",
    "millstream.diff.bounds.Bounds._is_at_hand": "only joins and large tables cost more than a pass over small tables",
    "millstream.diff.narrow._Narrowing._asked_for": "only a join is cheaper over fewer rows than probing its result",
    "millstream.diff.narrow._comes_from_changes": "the two places where few rows come from",
    "millstream.diff.recursive._restricted": "any other operator is joined as it is, which is right if slower",
    "millstream.diff.share._is_worth_keeping": "a matter of cost: an operator that is not costly is computed again",
    "millstream.diff.stages._peel_recursion": "asks for a recursion below projections",
    "millstream.diff.stages._window_of": "asks for a window below filters and projections",
    "millstream.diff.stages._Hidden._with_counted_partners": "asks whether there is a join",
    "millstream.diff.stages._is_cheap": "a matter of cost: the result of any other operator is stored",
    "millstream.diff.turnover.has_rules": "asks for the operators with rules; the others are recomputed",
    "millstream.diff.turnover.Turnover.now": "any other operator is itself over new inputs",
    "millstream.ops.clock.reads_clock": "a rewrite leaves the current time to filters and projections",
    "millstream.sql.lowering.scalar_subqueries._has_one_row": "asks for a global aggregate below projections",
    "millstream.sql.refusals.validate.validate": "asks for the operators with calls of functions over several rows",
    "millstream.sql.result_types.describe_relation.leaf": "the relations that become tables, all others are rendered",
    "millstream.sql.rewrites.isolate_time._Sides._moved": "the joins whose conditions decide about rows of one side",
    "millstream.sql.rewrites.pull_up_projections._is_own_join": "asks for an inner join below filters and projections",
    "millstream.sql.rewrites.pull_up_projections._is_one_row": "asks for a constant row below filters and projections",
}

ARGUMENTS: dict[str, Callable[[Relation], tuple[object, ...]]] = {
    "is_small": lambda node: (frozenset({"new_t"}),),
    "known": lambda node: ({"t": Known(frozenset({"a"}))},),
    "needs": lambda node: (frozenset({node.columns[0].name}),),
    "over": lambda node: (node.children,),
    "pruned": lambda node: ({c.name for c in node.columns}, node.children),
}
"""What the facts that are methods are asked with."""
FACTS = sorted(name for name in vars(Operator) if not name.startswith("_"))

PAIRS = [
    pytest.param(dispatcher, operator, id=f"{operator.__name__}, {name}")
    for name, dispatcher in (DISPATCHERS | CALLERS).items()
    for operator in OPERATORS
    if operator in dispatcher.takes
]
operators = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)


def test_there_is_an_example_of_each_operator() -> None:
    assert set(EXAMPLES) == set(OPERATORS)


def test_the_closed_set_holds_all_operators() -> None:
    def leaves(kind: type) -> set[type]:
        return {kind}.union(*(leaves(below) for below in kind.__subclasses__()))

    made = {kind for kind in leaves(Operator) if not inspect.isabstract(kind) and kind is not Opaque}
    assert made == set(OPERATORS)


@pytest.mark.parametrize(("dispatcher", "operator"), PAIRS)
def test_an_operator_is_answered_or_refused(dispatcher: Dispatcher, operator: type[Relation]) -> None:
    if operator in dispatcher.refuses:
        with pytest.raises(TypeError, match=r"no delta rule|no rule|is no"):
            dispatcher.call(EXAMPLES[operator])
    else:
        assert dispatcher.call(EXAMPLES[operator]) is not None


@operators
@pytest.mark.parametrize("fact", FACTS)
def test_an_operator_knows_its_facts(fact: str, operator: type[Relation]) -> None:
    example = EXAMPLES[operator]
    answer = getattr(example, fact)
    if callable(answer):
        answer = answer(*ARGUMENTS[fact](example))
    assert answer is not None


@operators
def test_an_operator_has_one_entry_in_the_table_of_rules(operator: type[Relation]) -> None:
    (entry,) = (entry for entry in RULES if entry.operator is operator)
    assert not isinstance(entry, NoRule) or entry.reason


def test_each_function_that_asks_for_operators_is_listed() -> None:
    found = {dispatch.name for dispatch in dispatches()}
    assert found == DISPATCHERS.keys() | PREDICATES.keys()


def test_mypy_proves_each_dispatcher_complete() -> None:
    proved = {dispatch.name for dispatch in dispatches() if dispatch.ends_in_assert_never}
    assert proved == DISPATCHERS.keys()
