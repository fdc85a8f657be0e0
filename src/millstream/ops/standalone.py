"""A whole query of operators as one SQL text, with its recursions as common table expressions."""

from __future__ import annotations

from sqlglot import exp

from millstream.ops.leaves import Table
from millstream.ops.relations import Relation
from millstream.ops.render import render
from millstream.ops.unions import Recursion
from millstream.ops.walk import transform


def standalone(relation: Relation) -> exp.Query:
    """The query that computes a relation over its sources."""
    recursions: list[exp.CTE] = []

    def named(node: Relation) -> Relation:
        if not isinstance(node, Recursion):
            return node
        union = exp.Union(this=render(node.base), expression=render(node.step), distinct=node.distinct)
        columns = [exp.to_identifier(c.name, quoted=True) for c in node.output]
        alias = exp.TableAlias(this=exp.to_identifier(node.reference, quoted=True), columns=columns)
        recursions.append(exp.CTE(this=union, alias=alias))
        return Table(node.reference, node.output)

    query = render(transform(relation, named))
    if recursions:
        query.set("with_", exp.With(expressions=recursions, recursive=True))
    return query
