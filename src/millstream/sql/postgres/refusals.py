"""What the postgres dialect refuses, by name and place."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp
from sqlglot.errors import TokenError

from millstream.errors import Code, MillstreamError, Position
from millstream.sql.parse import position_of, position_of_words
from millstream.sql.postgres.types import Type

DOCS = "docs/postgres-dialect.md lists what the postgres dialect takes"


def refused(what: str, node: exp.Expr, sql: str, hint: str | None = None) -> MillstreamError:
    """An UNSUPPORTED_SQL error: the construct is PostgreSQL's, and we know no equal of it in Spark."""
    return MillstreamError(
        Code.UNSUPPORTED_SQL,
        f"{what} cannot be given PostgreSQL's meaning",
        position=_position_of_words(what, sql) or position_of(node),
        sql=sql,
        hint=f"{hint}; {DOCS}" if hint else DOCS,
    )


def _position_of_words(what: str, sql: str) -> Position | None:
    try:
        return position_of_words(what, sql)
    except TokenError:  # it is Spark's tokenizer that looks, and PostgreSQL has other quotes
        return None


def wrong(
    what: str, node: exp.Expr, sql: str, code: Code = Code.QUERY_INVALID, hint: str | None = None
) -> MillstreamError:
    """An error of the query itself: PostgreSQL would refuse it too, or it names what does not exist."""
    return MillstreamError(code, what, position=position_of(node), sql=sql, hint=hint)


def refuse_unequal(types: Iterable[Type], what: str) -> None:
    """Where values are grouped by equality: 1 and 1.0 are equal as jsonb, but not as the texts that stand for them."""
    for type_ in types:
        if not type_.has_equality:
            hint = "use ->> to get a text, or cast it to text" if type_.is_json else "cast it to text"
            raise RefusalError(f"{what} of {type_}", hint)


def refuse_comparison(type_: Type) -> None:
    """The same, where two values are compared."""
    if not type_.has_equality:
        hint = "compare with ->> and a cast" if type_.is_json else "compare it as text: (...)::text"
        raise RefusalError(f"a comparison of {type_}", hint)


class RefusalError(Exception):
    """Raised by a rule, which knows no place; its caller adds the place."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
