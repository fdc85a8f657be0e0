"""The refusals of the postgres dialect, with the construct's name and position."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp
from sqlglot.errors import TokenError

from millstream.errors import Code, MillstreamError, Position
from millstream.sql.parse import position_of, position_of_words
from millstream.sql.postgres.types import Type

DOCS = "docs/postgres-dialect.md lists what the postgres dialect supports"


def refused(what: str, node: exp.Expr, sql: str, hint: str | None = None) -> MillstreamError:
    """An UNSUPPORTED_SQL error: the construct exists in PostgreSQL, but we know no equivalent in Spark."""
    return MillstreamError(
        Code.UNSUPPORTED_SQL,
        f"{what} cannot be translated with PostgreSQL's meaning",
        position=_position_of_words(what, sql) or position_of(node),
        sql=sql,
        hint=f"{hint}; {DOCS}" if hint else DOCS,
    )


def _position_of_words(what: str, sql: str) -> Position | None:
    try:
        return position_of_words(what, sql)
    except TokenError:  # the search uses Spark's tokenizer, and PostgreSQL has other quotes
        return None


def wrong(
    what: str, node: exp.Expr, sql: str, code: Code = Code.QUERY_INVALID, hint: str | None = None
) -> MillstreamError:
    """An error in the query itself: PostgreSQL would refuse it too, or it names an object that does not exist."""
    return MillstreamError(code, what, position=position_of(node), sql=sql, hint=hint)


def refuse_unequal(types: Iterable[Type], what: str) -> None:
    """Refuse types whose values cannot be grouped: 1 and 1.0 are equal as jsonb, but not as the stored texts."""
    for type_ in types:
        if not type_.has_equality:
            hint = "use ->> to get a text, or cast it to text" if type_.is_json else "cast it to text"
            raise RefusalError(f"{what} of {type_}", hint)


def refuse_comparison(type_: Type) -> None:
    """Refuse to compare values of such types."""
    if not type_.has_equality:
        hint = "compare with ->> and a cast" if type_.is_json else "compare it as text: (...)::text"
        raise RefusalError(f"a comparison of {type_}", hint)


class RefusalError(Exception):
    """Raised by a rule, which does not know the position; its caller adds it."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
