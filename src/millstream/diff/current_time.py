"""The delta rules of a filter and of a projection that use the current time.

Semantics: the time is the refresh's data timestamp, the same for the whole query. A row may appear, disappear or have
    other values because time has passed, without a change of any input.
Delta rule: with `op_t` the operator at a time, `delta(op(x)) = op_before(delta(x)) + (op_now - op_before)(new(x))`. For
    a filter, the second term holds the rows whose predicate is true at only one of the two times; for a projection,
    the rows with a column that differs: added as they are now, removed as they were.
State kept: none; the time of the contents is recorded with them. A filter or projection that uses the current time
    over an aggregation or a window is a separate stage.
Cost: each refresh reads the input, even if nothing in it has changed. A comparison of a column with the time becomes a
    range of that column, which is pushed down to the scan. A projection like `now() - at` differs in every row.
NULL and duplicate behaviour: a predicate that is NULL at one time and true at the other counts as a change.
Falls back when: never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.diff.zset import negate, plus
from millstream.ops import Filter, Item, Project, Relation
from millstream.ops.clock import BEFORE, NOW, at, items_at, reads_clock
from millstream.ops.expressions import ONE, all_of, any_of, cast, conjuncts, is_null, keep, not_, same, when, wrapped
from millstream.ops.relations import WEIGHT_COLUMN

if TYPE_CHECKING:
    from millstream.diff.difference import Difference


def filter_(difference: Difference, relation: Filter) -> Relation | None:
    """See the module."""
    parts: list[Relation] = []
    if (change := difference.delta(relation.input)) is not None:
        parts.append(Filter(change, at(relation.predicate, difference.before)))
    if difference.time_moved:
        parts.append(_passed(difference.new(relation.input), relation.predicate))
    return plus(parts) if parts else None


def project(difference: Difference, relation: Project) -> Relation | None:
    """See the module."""
    parts: list[Relation] = []
    if (change := difference.delta(relation.input)) is not None:
        parts.append(Project(change, (*items_at(relation.items, difference.before), *keep([WEIGHT_COLUMN]))))
    if difference.time_moved:
        rows = _differing(difference.new(relation.input), relation.items)
        parts += [
            Project(rows, items_at(relation.items, NOW)),
            negate(Project(rows, items_at(relation.items, BEFORE))),
        ]
    return plus(parts) if parts else None


def _passed(rows: Relation, predicate: exp.Expr) -> Relation:
    """The rows that enter as time passes, and with weight -1 the rows that leave."""
    parts = conjuncts(predicate)
    timed = all_of(p for p in parts if reads_clock(p))
    now, before = at(timed, NOW), at(timed, BEFORE)
    # written so that Spark recognises a range: it does not look into COALESCE or <=>
    either = any_of([all_of([now, _is_not(before)]), all_of([before, _is_not(now)])])
    passed = Filter(rows, all_of([*(p for p in parts if not reads_clock(p)), either]), few=True)
    weight = when(now, ONE, exp.Neg(this=ONE))
    return Project(passed, (*keep(rows.columns), Item(cast(weight, "bigint"), WEIGHT_COLUMN)))


def _is_not(predicate: exp.Expr) -> exp.Expr:
    return any_of([not_(predicate), is_null(wrapped(predicate))])


def _differing(rows: Relation, items: tuple[Item, ...]) -> Relation:
    timed = [item for item in items if reads_clock(item.expression)]
    different = [_differs(item) for item in timed]
    # a boolean seldom changes with time, a duration always does
    return Filter(rows, any_of(different), few=all(item.column.type == "boolean" for item in timed))


def _differs(item: Item) -> exp.Expr:
    if "map<" in item.column.type or "variant" in item.column.type:
        return exp.true()  # their values cannot be compared
    return not_(same(wrapped(at(item.expression, NOW)), wrapped(at(item.expression, BEFORE))))
