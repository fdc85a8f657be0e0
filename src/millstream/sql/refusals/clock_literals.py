"""Clock words, which Spark reads as a time: `DATE 'today'`, `CAST('now' AS TIMESTAMP)`, `day = 'tomorrow'`.

They stand for the current time of Spark's own clock. What a clock word means when compared with a column depends on the
column's type, which may be a string: there, Spark's plan decides.
"""

from __future__ import annotations

import re

from sqlglot import TokenType, exp
from sqlglot.dialects import Spark

from millstream.errors import Code, MillstreamError
from millstream.sql.parse import position_of, position_of_words

_WORD = r"(?:now|today|tomorrow|yesterday)"
_STRING = re.compile(rf"\s*{_WORD}(?:\s.*)?", re.IGNORECASE)
# in Spark's analysed plan
_READ = re.compile(
    rf"cast\(({_WORD})(?: [^()]*)? as (?:date|timestamp|timestamp_ntz)\)|to_(?:date|timestamp\w*)\(({_WORD})\b",
    re.IGNORECASE,
)


def has_clock_word(text: str) -> bool:
    """Whether a text has a clock word as a string, for any purpose."""
    return any(t.token_type is TokenType.STRING and _STRING.fullmatch(t.text) for t in Spark().tokenize(text))


def clock_word_in(plan: str) -> str | None:
    """The first clock word that a plan reads as a time."""
    found = _READ.search(plan)
    return found and (found.group(1) or found.group(2))


def is_clock_literal(node: exp.Expr) -> bool:
    """Whether a node is a clock word cast to a date or timestamp, or a literal of such a type."""
    if not isinstance(node, exp.Cast) or not isinstance(node.this, exp.Literal):
        return False
    is_time = node.to.this in exp.DataType.TEMPORAL_TYPES
    return is_time and node.this.is_string and _STRING.fullmatch(node.this.name) is not None


def clock_literal_error(word: str, sql: str, node: exp.Expr | None = None) -> MillstreamError:
    """A VOLATILE_FUNCTION error for a clock word."""
    return MillstreamError(
        Code.VOLATILE_FUNCTION,
        f"'{word}' as a date or timestamp depends on when Spark reads it",
        position=(position_of(node) if node is not None else None) or position_of_words(f"'{word}'", sql),
        sql=sql,
        hint="call CURRENT_DATE or CURRENT_TIMESTAMP(), which are the time of a refresh's data",
    )
