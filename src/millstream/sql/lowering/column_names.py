"""The names that Spark gives to expressions without an alias, where another part of the query may refer to them.

Spark makes a name from the text an expression is written in (`nvl(a, 0)`, `(a + 1)`, `count(1)` for COUNT(*)), with
exceptions (a cast column keeps its name). So we ask Spark, with the text the user wrote: printed from the parsed tree,
`nvl` would be `coalesce`. The compiler asks for the names of the whole query together with its types.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millstream.naming import quote
from millstream.sql.lowering.context import Context, Ctes, MadeNames
from millstream.sql.lowering.scope import Visible
from millstream.sql.parse import span_of, text_of
from millstream.sql.sources import Source
from millstream.sql.text.table_exchange import TableReference, exchange_tables


def own_name(item: exp.Expr) -> str:
    """The name of an item of a SELECT list, as far as the item itself determines it."""
    if item.alias or isinstance(item, exp.Column | exp.Dot):
        return item.alias_or_name
    if isinstance(item, exp.Cast) and isinstance(item.this, exp.Column | exp.Dot):
        return item.this.name
    return item.sql(dialect="spark").lower()


def named(names: Sequence[str], select: exp.Select, ctes: Ctes, context: Context) -> list[str]:
    """The columns of a SELECT under the names Spark gives them, if an outer query can refer to them."""
    if any(_is_unnamed(item) for item in select.expressions) and _is_read(select, context):
        asked = _asked(select, ctes, context)
        if asked is not None and len(asked) == len(names):
            if (span := span_of(select)) is not None:
                context.made_names[span] = asked
            return list(asked)
    return list(names)


def with_names(query: exp.Query, names: MadeNames) -> exp.Query:
    """The query with aliases where Spark generated names: from the printed text it would generate others."""
    query = query.copy()
    for select in query.find_all(exp.Select):
        made = names.get(span_of(select) or (0, 0))
        stars = [position for position, item in enumerate(select.expressions) if item.is_star]
        if made is None or len(stars) > 1:
            continue
        for position, item in enumerate(select.expressions):
            if _is_unnamed(item):
                name = made[position - len(select.expressions)] if stars and position > stars[0] else made[position]
                item.replace(exp.alias_(item.copy(), name, quoted=True))
    return query


def _is_unnamed(item: exp.Expr) -> bool:
    return not item.alias and not item.is_star and not isinstance(item, exp.Column | exp.Aliases)


def _is_read(select: exp.Select, context: Context) -> bool:
    """Whether the SELECT is in a FROM clause, in a CTE or in a view."""
    around = select.find_ancestor(exp.CTE, exp.Subquery)
    if isinstance(around, exp.Subquery):
        return isinstance(around.parent, exp.From | exp.Join | exp.Lateral | exp.CTE | exp.Query)
    return around is not None or context.depth > 0


def _asked(select: exp.Select, ctes: Ctes, context: Context) -> tuple[str, ...] | None:
    """Spark's names for the SELECT alone; None if it refers to an outer query."""
    text = text_of(select, context.sql)
    if text is None:
        return None
    known: dict[str, str] = {}
    try:
        text = exchange_tables(text, lambda r: known.setdefault(".".join(r.parts), _empty(r, ctes, context)))
    except KeyError:
        return None
    return context.analyzer.names(text)


def _empty(reference: TableReference, ctes: Ctes, context: Context) -> str:
    """A table, view or CTE without its rows."""
    name = reference.parts[0].lower()
    if len(reference.parts) == 1 and name in ctes:
        columns: Sequence[Visible] = ctes[name].visible
    else:
        found = context.sources.find(reference.parts)
        if found is None:
            raise KeyError(name)
        if isinstance(found, Source):
            columns = [Visible(c.name, c) for c in found.columns]
        else:
            columns = context.views[found.id].visible
    items = ", ".join(f"CAST(NULL AS {v.column.type}) AS {quote(v.name)}" for v in columns)
    return f"(SELECT {items})"
