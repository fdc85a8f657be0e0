"""PostgreSQL's dialect of defining queries: a text in, a tree of Spark's with the same meaning out.

A construct that is not on the lists of this package is refused by name; nothing is passed on in the hope that Spark
means the same. Rules put together trees (`spark_builders`, `spark_queries`); the whole is printed once, at the end. The
consumers take that text and parse it once, at their door: Spark analyses it, the catalog records it, and the lowering
needs places in a text, which a tree that was built does not have. So calls may stay `Anonymous` nodes here.
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
    """A query of Spark's, and what the user should know about how it was understood."""

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
