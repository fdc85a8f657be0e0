"""The current time in expressions: one moment for a whole refresh, that of its data.

A query says CURRENT_TIMESTAMP(), and only its filters and projections do. What runs says `:__ms_now`, the time of the
refresh, or `:__ms_before`, that of the contents it starts from: parameters, so that a text is made once and Spark plans
with constants, which it compares with the statistics of files. We fill them in: Delta's parser has no parameters.
"""

from __future__ import annotations

import dataclasses

from sqlglot import exp

from millstream.naming import RESERVED_PREFIX
from millstream.ops.relations import Filter, Item, Project, Relation

NOW = exp.Placeholder(this=f"{RESERVED_PREFIX}now")
BEFORE = exp.Placeholder(this=f"{RESERVED_PREFIX}before")


def tells_time(subject: exp.Expr | Relation) -> bool:
    """Whether an expression, or an operator itself, asks for the current time."""
    match subject:
        case Filter():
            return tells_time(subject.predicate)
        case Project():
            return any(tells_time(item.expression) for item in subject.items)
        case Relation():
            return False
    return subject.find(exp.CurrentTimestamp) is not None


def at(expression: exp.Expr, moment: exp.Expr) -> exp.Expr:
    """The expression at a moment."""
    if not tells_time(expression):
        return expression
    return expression.transform(lambda node: moment.copy() if isinstance(node, exp.CurrentTimestamp) else node)


def items_at(items: tuple[Item, ...], moment: exp.Expr) -> tuple[Item, ...]:
    """The items of a projection at a moment."""
    return tuple(Item(at(i.expression, moment), i.column) for i in items)


def now(relation: Relation) -> Relation:
    """The operator at the time of the refresh; its inputs stay as they are."""
    if not tells_time(relation):
        return relation
    if isinstance(relation, Filter):
        return dataclasses.replace(relation, predicate=at(relation.predicate, NOW))
    assert isinstance(relation, Project)
    return dataclasses.replace(relation, items=items_at(relation.items, NOW))


def filled_in(text: str, now: str, before: str, dialect: str = "spark") -> str:
    """A text with the times, given in SQL, in place of its parameters."""
    return text.replace(NOW.sql(dialect), now).replace(BEFORE.sql(dialect), before)
