"""The calls of an Aggregate, as the families of functions request them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sqlglot import exp

from millstream.ops.expressions import all_of, is_not_null
from millstream.sql.lowering.context import Context

# The functions that delta rules or other engines distinguish; the rest are called by name.
_CLASSES: dict[str, type[exp.AggFunc]] = {
    "COUNT": exp.Count,
    "SUM": exp.Sum,
    "AVG": exp.Avg,
    "MIN": exp.Min,
    "MAX": exp.Max,
    "COLLECT_LIST": exp.ArrayAgg,
    "COLLECT_SET": exp.ArrayUniqueAgg,
}

Shape = Callable[[exp.Expr], exp.Expr]


class Calls(Protocol):
    """The calls of one grouped SELECT, as the families see them."""

    @property
    def context(self) -> Context:
        """The text, and what is known about it."""

    def type_of(self, expression: exp.Expr) -> str:
        """The type of an expression over the rows of a group."""

    def call(
        self,
        name: str,
        *arguments: exp.Expr,
        condition: exp.Expr | None = None,
        distinct: bool = False,
        order: Sequence[exp.Ordered] = (),
        shape: Shape | None = None,
    ) -> exp.Expr:
        """The column of a call, made once for equal calls.

        Args:
            name: Spark's name for the function.
            arguments: expressions over the rows of a group; all but the first may be constants.
            condition: which rows count.
            distinct: whether equal arguments count once.
            order: the keys of WITHIN GROUP.
            shape: wraps the call in an expression that becomes part of it.
        """


def build(name: str, arguments: Sequence[exp.Expr], *, distinct: bool = False) -> exp.AggFunc:
    """A call by the name of its function."""
    known = _CLASSES.get(name)
    if distinct:
        arguments = [exp.Distinct(expressions=list(arguments))]
    if known is None:
        return exp.AnonymousAggFunc(this=name, expressions=list(arguments))
    if known is exp.ArrayAgg:
        return known(this=arguments[0], nulls_excluded=True)
    return known(this=arguments[0])


def both(condition: exp.Expr | None, *more: exp.Expr) -> exp.Expr:
    """A FILTER's condition and further conditions."""
    return all_of([exp.paren(c, copy=False) for c in (*((condition,) if condition is not None else ()), *more)])


def present(*arguments: exp.Expr) -> exp.Expr:
    """Whether none of the arguments is NULL."""
    return all_of(is_not_null(exp.paren(a, copy=False)) for a in arguments)
