"""The text of a PostgreSQL view, read from outside of its database."""

from __future__ import annotations

from sqlglot import exp

from millstream.sql.postgres.dialect import parse_postgres


def qualified(text: str, database: str) -> str:
    """A view's query with the database's name before each table; names of one part are those of its WITH.

    >>> qualified("SELECT o.id FROM public.orders o", "shop")
    'SELECT o.id FROM "shop".public.orders o'

    Raises:
        MillstreamError: SYNTAX_ERROR.
    """
    text = text.strip().removesuffix(";")
    places = [
        table.parts[0].meta["start"]
        for table in parse_postgres(text).find_all(exp.Table)
        if isinstance(table.this, exp.Identifier) and len(table.parts) == 2
    ]
    for place in sorted(places, reverse=True):
        text = f'{text[:place]}"{database}".{text[place:]}'
    return text
