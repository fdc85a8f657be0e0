"""Words that Spark reads as a time: `DATE 'today'`, `CAST('now' AS TIMESTAMP)`, `day = 'tomorrow'`.

They are the current time in disguise, of Spark's own clock. What they mean where they are compared with a column
depends on its type, which may as well be a string: there Spark is asked.
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


def has_moving_day(text: str) -> bool:
    """Whether a text has such a word as a string, whatever it is used for."""
    return any(t.token_type is TokenType.STRING and _STRING.fullmatch(t.text) for t in Spark().tokenize(text))


def moving_day_of(plan: str) -> str | None:
    """The first such word that a plan reads as a time."""
    found = _READ.search(plan)
    return found and (found.group(1) or found.group(2))


def is_moving_day(node: exp.Expr) -> bool:
    """Whether a node is a cast of such a word, or a literal of a type that Spark reads so."""
    if not isinstance(node, exp.Cast) or not isinstance(node.this, exp.Literal):
        return False
    is_time = node.to.this in exp.DataType.TEMPORAL_TYPES
    return is_time and node.this.is_string and _STRING.fullmatch(node.this.name) is not None


def moving_day(word: str, sql: str, node: exp.Expr | None = None) -> MillstreamError:
    """A VOLATILE_FUNCTION error for such a word."""
    return MillstreamError(
        Code.VOLATILE_FUNCTION,
        f"'{word}' as a date or timestamp is the time at which Spark happens to read it",
        position=(position_of(node) if node is not None else None) or position_of_words(f"'{word}'", sql),
        sql=sql,
        hint="call CURRENT_DATE or CURRENT_TIMESTAMP(), which are the time of a refresh's data",
    )
