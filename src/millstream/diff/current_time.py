"""The delta rules of a filter and of a projection that ask for the current time.

Semantics: the time is that of the refresh's data, one moment for the whole query. A row may come, go or look different
    because time has passed, without anybody changing it.
Delta rule: with `op_t` the operator at a time, `delta(op(x)) = op_before(delta(x)) + (op_now - op_before)(new(x))`. Of
    a filter the second term are the rows whose predicate is true at one of the two times only; of a projection those
    with a column that differs, as they are now and, taken away, as they were.
State kept: none; the time of the contents is recorded with them. What is computed from the groups of an aggregation, or
    from a window, by the current time is a stage of its own over these.
Cost: one look at the input at each refresh, also where nothing in it has changed. A column compared with the time is a
    range of that column, which is pushed down to the scan. A projection like `now() - at` differs in every row.
NULL and duplicate behaviour: a predicate that is NULL at one time and true at the other counts as a change.
Falls back when: never.
"""

from __future__ import annotations

from sqlglot import exp

from millstream.diff.base import Difference
from millstream.diff.zset import negate, plus
from millstream.ops import Filter, Item, Project, Relation
from millstream.ops.clock import BEFORE, NOW, at, items_at, tells_time
from millstream.ops.expressions import ONE, all_of, any_of, cast, conjuncts, is_null, keep, not_, same, when, wrapped
from millstream.ops.relations import WEIGHT_COLUMN

STRATEGIES: dict[type[Relation], str] = {
    Filter: "filter of the delta, and rows that time brings in or out",
    Project: "projection of the delta, and rows that time makes look different",
}


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
        rows = _looking_different(difference.new(relation.input), relation.items)
        parts += [
            Project(rows, items_at(relation.items, NOW)),
            negate(Project(rows, items_at(relation.items, BEFORE))),
        ]
    return plus(parts) if parts else None


def _passed(rows: Relation, predicate: exp.Expr) -> Relation:
    """The rows that time brings in, and with the weight -1 those that it takes out."""
    parts = conjuncts(predicate)
    timed = all_of(p for p in parts if tells_time(p))
    now, before = at(timed, NOW), at(timed, BEFORE)
    # written such that Spark knows a range where there is one: it does not look into COALESCE or <=>
    either = any_of([all_of([now, _is_not(before)]), all_of([before, _is_not(now)])])
    passed = Filter(rows, all_of([*(p for p in parts if not tells_time(p)), either]), few=True)
    weight = when(now, ONE, exp.Neg(this=ONE))
    return Project(passed, (*keep(rows.columns), Item(cast(weight, "bigint"), WEIGHT_COLUMN)))


def _is_not(predicate: exp.Expr) -> exp.Expr:
    return any_of([not_(predicate), is_null(wrapped(predicate))])


def _looking_different(rows: Relation, items: tuple[Item, ...]) -> Relation:
    timed = [item for item in items if tells_time(item.expression)]
    different = [_differs(item) for item in timed]
    # what is true or false seldom changes with time, a duration always does
    return Filter(rows, any_of(different), few=all(item.column.type == "boolean" for item in timed))


def _differs(item: Item) -> exp.Expr:
    if "map<" in item.column.type or "variant" in item.column.type:
        return exp.true()  # their values cannot be compared
    return not_(same(wrapped(at(item.expression, NOW)), wrapped(at(item.expression, BEFORE))))
