"""Small builders of Spark queries."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millstream.sql.postgres.spark_builders import Node, quoted_name


def select(items: Sequence[Node], *sources: exp.Expr) -> exp.Select:
    """`SELECT item, ... FROM source`."""
    query = exp.Select(expressions=list(items))
    if sources:
        query.set("from_", exp.From(this=sources[0]))
    return query


def select_from(items: Sequence[Node], rows: exp.Select) -> exp.Select:
    """A select list over the FROM and WHERE of another SELECT."""
    kept = {clause: rows.args[clause] for clause in ("from_", "joins", "where") if rows.args.get(clause)}
    return exp.Select(expressions=list(items), **kept)


def aliased(node: Node, alias: exp.Identifier) -> exp.Alias:
    """`node AS alias`."""
    return exp.Alias(this=node, alias=alias)


def titled(node: Node, title: str) -> exp.Alias:
    """A column of a select list."""
    return aliased(node, quoted_name(title))


def table_alias(alias: exp.Identifier, columns: Sequence[exp.Identifier] = ()) -> exp.TableAlias:
    """`alias(column, ...)`."""
    return exp.TableAlias(this=alias, columns=list(columns)) if columns else exp.TableAlias(this=alias)


def source(query: exp.Query, alias: exp.Identifier, columns: Sequence[exp.Identifier] = ()) -> exp.Subquery:
    """`(query) AS alias(column, ...)`, as an item of FROM."""
    return exp.Subquery(this=query, alias=table_alias(alias, columns))


def union_all(queries: Sequence[exp.Query]) -> exp.Query:
    """The rows of one or more queries."""
    result = queries[0]
    for query in queries[1:]:
        result = exp.Union(this=result, expression=query, distinct=False)
    return result


def ordered(node: Node, *, descending: bool, nulls_first: bool) -> exp.Ordered:
    """`node ASC | DESC NULLS FIRST | LAST`."""
    return exp.Ordered(this=node, desc=descending, nulls_first=nulls_first)
