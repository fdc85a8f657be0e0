"""PostgreSQL's dialect of defining queries: a text in, a text of Spark's with the same meaning out.

Whatever is not on the lists of this package is refused by name; nothing is passed on in the hope that Spark means the
same.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.sql.postgres.dialect import parse_postgres
from millstream.sql.postgres.nodes import refuse_arguments, refuse_nodes
from millstream.sql.postgres.queries import Translator
from millstream.sql.postgres.unread import refuse_unread
from millstream.sql.sources import Analyzer, Sources

__all__ = ["Translation", "translate"]


@dataclass(frozen=True, slots=True)
class Translation:
    """A query in Spark's SQL, and what the user should know about how it was understood."""

    spark_text: str
    notices: tuple[str, ...] = ()


def translate(text: str, sources: Sources, analyzer: Analyzer) -> Translation:
    """Translate a query.

    Args:
        sources: the tables it may read, with Spark's types.
        analyzer: tells the columns of views.

    Raises:
        MillstreamError: SYNTAX_ERROR, UNSUPPORTED_SQL, UNKNOWN_TABLE, UNKNOWN_COLUMN, QUERY_INVALID; positions are in
            `text`.
    """
    tree = parse_postgres(text)
    refuse_arguments(tree, text)
    translator = Translator(text, sources, analyzer)
    spark_text, _ = translator.query(tree, None, {})
    refuse_nodes(tree, text)
    refuse_unread(text, tree)
    return Translation(spark_text, tuple(translator.notices))
