"""Translates defining queries in PostgreSQL's dialect to Spark query trees with the same meaning.

A construct that is not on the lists of this package is refused by name; nothing is passed on in the hope that Spark
means the same. Rules build trees (`spark_builders`, `spark_queries`); the whole query is printed once, at the end. The
users of that text parse it again: Spark analyses it, the catalog records it, and the lowering needs positions in a
text, which a tree built here does not have. So calls may stay `Anonymous` nodes here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from millstream.sql.parse import print_query
from millstream.sql.postgres.dialect import parse_postgres
from millstream.sql.postgres.nodes import refuse_arguments, refuse_nodes
from millstream.sql.postgres.queries import Translator
from millstream.sql.postgres.unread_words import refuse_unread
from millstream.sql.sources import Analyzer, Sources

__all__ = ["Translation", "translate"]


@dataclass(frozen=True)
class Translation:
    """A Spark query, and what the user should know about how the PostgreSQL query was understood."""

    query: exp.Query
    notices: tuple[str, ...] = ()

    @cached_property
    def spark_text(self) -> str:
        """The query as text."""
        return print_query(self.query)


def translate(text: str, sources: Sources, analyzer: Analyzer) -> Translation:
    """Translate a query.

    Args:
        sources: the tables it may read, with Spark's types.
        analyzer: describes the columns of views.

    Raises:
        MillstreamError: SYNTAX_ERROR, UNSUPPORTED_SQL, UNKNOWN_TABLE, UNKNOWN_COLUMN, QUERY_INVALID; positions are in
            `text`.
    """
    tree = parse_postgres(text)
    refuse_arguments(tree, text)
    translator = Translator(text, sources, analyzer)
    query, _ = translator.query(tree, None, {})
    refuse_nodes(tree, text)
    refuse_unread(text, tree)
    return Translation(query.copy(), tuple(translator.notices))
