"""Text to sqlglot tree, with errors that have a position."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

from millstream.errors import Code, MillstreamError, Position
from millstream.sql.aggregate_names import BY_NAME

_LIST_START, _SPAN = "list_start", "span"


class _Spark4(Spark):
    """Spark as it is since version 4.

    A doubled quote in a string is a quote; before, it ended one string and began the next. QUALIFY is part of the
    language, and needs no rewriting. Aggregates that would be printed as another function are kept by their names.
    """

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[list[str]] = [*Spark.Tokenizer.STRING_ESCAPES, "'"]

    class Parser(SparkParser):
        """Records the span of each SELECT, without DISTINCT, because Spark names columns by their text."""

        FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {**SparkParser.FUNCTIONS, **BY_NAME}
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
            name: parser for name, parser in SparkParser.FUNCTION_PARSERS.items() if name not in BY_NAME
        }

        def _parse_projections(self) -> tuple[list[exp.Expr], list[exp.Expr] | None]:
            start = self._curr.start
            items, exclude = super()._parse_projections()
            if items:
                items[0].meta[_LIST_START] = start
            return items, exclude

        def _parse_query_modifiers(self, this: Any) -> Any:
            this = super()._parse_query_modifiers(this)
            if isinstance(this, exp.Select) and this.expressions and _SPAN not in this.meta:
                start = this.expressions[0].meta.pop(_LIST_START, None)
                if start is not None:
                    this.meta[_SPAN] = (start, self._prev.end + 1)
            return this

    class Generator(SparkGenerator):
        TRANSFORMS: ClassVar[dict[Any, Any]] = {k: v for k, v in SparkGenerator.TRANSFORMS.items() if k != exp.Select}


_DIALECTS = {"spark": _Spark4}


def parse_query(text: str, dialect: str = "spark") -> exp.Query:
    """Parse one SELECT, WITH or set operation.

    Raises:
        MillstreamError: SYNTAX_ERROR with the position.
    """
    try:
        trees = [t for t in sqlglot.parse(text, dialect=_DIALECTS.get(dialect, dialect)) if t is not None]
    except (ParseError, TokenError) as e:
        raise syntax_error(e, text) from e
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise MillstreamError(
            Code.SYNTAX_ERROR,
            "a stream table is defined by exactly one SELECT",
            sql=text,
            hint="write SELECT ... or WITH ...",
        )
    return trees[0]


def parse_anything(text: str) -> exp.Expr | None:
    """One Spark statement as a tree; None if the parser does not parse it."""
    try:
        trees = [t for t in sqlglot.parse(text, dialect=_Spark4) if t is not None]
    except (ParseError, TokenError):
        return None
    return trees[0] if len(trees) == 1 and not isinstance(trees[0], exp.Command) else None


def print_query(query: exp.Query) -> str:
    """A Spark query as text."""
    return query.sql(dialect=_Spark4, comments=False)


def syntax_error(error: ParseError | TokenError, text: str) -> MillstreamError:
    """The parser's error with its position."""
    if isinstance(error, TokenError):
        return MillstreamError(Code.SYNTAX_ERROR, f"cannot parse the query: {error}", sql=text)
    first = error.errors[0] if error.errors else {}
    return MillstreamError(
        Code.SYNTAX_ERROR,
        f"cannot parse the query: {_plain(str(first.get('description') or error))}",
        position=_error_position(first),
        sql=text,
    )


def bare_query(query: exp.Expr) -> exp.Expr:
    """A query without the parentheses around it, if these contain nothing else.

    >>> bare_query(parse_query("((SELECT a FROM b))")).sql(), bare_query(parse_query("(SELECT a FROM b) LIMIT 1")).sql()
    ('SELECT a FROM b', '(SELECT a FROM b) LIMIT 1')
    """
    while isinstance(query, exp.Subquery) and not any(v for name, v in query.args.items() if name != "this"):
        query = query.this
    return query


def text_of(select: exp.Select, sql: str) -> str | None:
    """A SELECT as the user wrote it, from its list to its last clause; None if it does not come from the text.

    >>> text_of(parse_query(sql := "SELECT nvl(a, 0) FROM c WHERE b UNION SELECT 1").this, sql)
    'SELECT nvl(a, 0) FROM c WHERE b'
    """
    span = span_of(select)
    return f"SELECT {sql[span[0] : span[1]]}" if span is not None else None


def span_of(select: exp.Select) -> tuple[int, int] | None:
    """Where the text of a SELECT begins and ends."""
    return select.meta.get(_SPAN)


def position_of(node: exp.Expr) -> Position | None:
    """Where a node is in the text, if the parser recorded it."""
    meta = place_of(node)
    if not meta:
        return None
    length = meta["end"] - meta["start"] + 1
    return Position(meta["line"], max(1, meta["col"] - length + 1), length)


def start_of(node: exp.Expr) -> Position | None:
    """The position of the first part of a node whose place the parser recorded."""
    placed = [found for found in node.walk() if "line" in found.meta]
    return position_of(min(placed, key=lambda found: int(found.meta["start"]))) if placed else None


def place_of(node: exp.Expr) -> dict[str, int]:
    """The parser's own record of a node's place, covering all parts of a name; empty if there is none."""
    parts = node.parts if isinstance(node, exp.Column | exp.Table) else ()
    if parts and all("line" in part.meta for part in (parts[0], parts[-1])):
        return {**parts[-1].meta, "start": parts[0].meta["start"]}
    return next((found.meta for found in node.walk() if "line" in found.meta), {})


def position_of_words(words: str, sql: str) -> Position | None:
    """Where keywords first occur in the text, outside strings and comments; None if `words` is not in capitals.

    >>> str(position_of_words("GROUP BY", "SELECT 'GROUP BY' FROM t\\nGROUP BY a"))
    'line 2, column 1'
    """
    if not words or words != words.upper():
        return None
    starts = {token.start for token in sqlglot.tokenize(sql, read="spark")}
    for found in re.finditer(r"\s+".join(map(re.escape, words.split())), sql, re.IGNORECASE):
        if found.start() in starts:
            line_start = sql.rfind("\n", 0, found.start()) + 1
            line = sql.count("\n", 0, found.start()) + 1
            return Position(line, found.start() - line_start + 1, len(found.group().split("\n")[0]))
    return None


def _error_position(error: dict[str, object]) -> Position | None:
    line, end = error.get("line"), error.get("col")
    if not isinstance(line, int) or not isinstance(end, int):
        return None
    length = len(str(error.get("highlight") or "")) or 1
    return Position(line, max(1, end - length + 1), length)


def _plain(description: str) -> str:
    """The parser's message without the dump of its token objects."""
    return description.split(" but got <Token")[0].split(" missing for <class")[0]
