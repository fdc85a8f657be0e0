"""The current time in expressions: for a whole refresh, it is the data timestamp.

A query uses CURRENT_TIMESTAMP(), and only in its filters and projections (`sql.rewrites.isolate_time`). The text that
runs has `:__ms_now`, the time of the refresh, or `:__ms_before`, the time of the contents it starts from. They are
parameters so that a text is built once; they are filled in as constants because Delta's parser has no parameters, and
because Spark compares constants with the statistics of files.
"""

from __future__ import annotations

import dataclasses
from typing import assert_never

from sqlglot import exp

from millstream.naming import RESERVED_PREFIX
from millstream.ops.operator import Item
from millstream.ops.relations import Relation
from millstream.ops.rowwise import Filter, Project

NOW = exp.Placeholder(this=f"{RESERVED_PREFIX}now")
BEFORE = exp.Placeholder(this=f"{RESERVED_PREFIX}before")


def reads_clock(subject: exp.Expr | Relation) -> bool:
    """Whether an expression, or an operator itself, uses the current time."""
    if isinstance(subject, exp.Expr):
        return subject.find(exp.CurrentTimestamp) is not None
    return isinstance(subject, Filter | Project) and any(reads_clock(e) for e in subject.expressions)


def at(expression: exp.Expr, moment: exp.Expr) -> exp.Expr:
    """The expression at a given time."""
    if not reads_clock(expression):
        return expression
    return expression.transform(lambda node: moment.copy() if isinstance(node, exp.CurrentTimestamp) else node)


def items_at(items: tuple[Item, ...], moment: exp.Expr) -> tuple[Item, ...]:
    """The items of a projection at a given time."""
    return tuple(Item(at(i.expression, moment), i.column) for i in items)


def now(relation: Relation) -> Relation:
    """The operator at the time of the refresh; its inputs stay as they are."""
    if not isinstance(relation, Filter | Project) or not reads_clock(relation):
        return relation
    match relation:
        case Filter():
            return dataclasses.replace(relation, predicate=at(relation.predicate, NOW))
        case Project():
            return dataclasses.replace(relation, items=items_at(relation.items, NOW))
    assert_never(relation)


def filled_in(text: str, now: str, before: str, dialect: str = "spark") -> str:
    """A text with the times, given in SQL, in place of its parameters."""
    return text.replace(NOW.sql(dialect), now).replace(BEFORE.sql(dialect), before)
