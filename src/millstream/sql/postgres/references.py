"""The tables that a PostgreSQL query reads."""

from __future__ import annotations

from sqlglot import exp

from millstream.sql.postgres.dialect import parse_postgres
from millstream.sql.postgres.names import folded
from millstream.sql.text.table_exchange import real_tables


def table_names(text: str) -> tuple[tuple[str, ...], ...]:
    """The names, in parts, of all tables that a query reads, without the queries of its WITH.

    >>> table_names("WITH a AS (SELECT 1) SELECT * FROM a, shop.public.Orders")
    (('shop', 'public', 'orders'),)

    Raises:
        MillstreamError: SYNTAX_ERROR.
    """
    return tuple(tuple(folded(part) for part in table.parts) for table in real_tables(parse_postgres(text)))


def qualified(text: str, database: str) -> str:
    """The query of a view with the database's name before each table; names with one part refer to its WITH.

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
