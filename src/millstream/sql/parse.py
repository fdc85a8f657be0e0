"""Text to sqlglot tree, with errors that point at the place."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from millstream.errors import Code, MillstreamError, Position


def parse_query(text: str, dialect: str = "spark") -> exp.Query:
    """Parse one SELECT, WITH or set operation.

    Raises:
        MillstreamError: SYNTAX_ERROR with the position.
    """
    try:
        trees = [t for t in sqlglot.parse(text, dialect=dialect) if t is not None]
    except ParseError as e:
        first = e.errors[0] if e.errors else {}
        raise MillstreamError(
            Code.SYNTAX_ERROR,
            f"cannot parse the query: {_plain(str(first.get('description') or e))}",
            position=_error_position(first),
            sql=text,
        ) from e
    except TokenError as e:
        raise MillstreamError(Code.SYNTAX_ERROR, f"cannot parse the query: {e}", sql=text) from e
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise MillstreamError(
            Code.SYNTAX_ERROR, "a stream table is defined by exactly one SELECT", sql=text, hint="write SELECT ... or WITH ..."
        )
    return trees[0]


def position_of(node: exp.Expression) -> Position | None:
    """Where a node stands in the text, as far as the parser kept it."""
    for found in node.walk():
        if "line" in found.meta:
            meta = found.meta
            length = meta["end"] - meta["start"] + 1
            return Position(meta["line"], meta["col"] - length + 1, length)
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
