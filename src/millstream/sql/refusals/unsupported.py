"""Refusals of SQL that cannot be maintained, and of invalid SQL: with name, position and suggestion."""

from __future__ import annotations

import re

from sqlglot import exp

from millstream.errors import Code, MillstreamError
from millstream.sql.parse import position_of, position_of_words
from millstream.sql.refusals.suggestions import suggestion_for

RECOMPUTE = "REFRESH MODE FULL (or AUTO) accepts the query and recomputes it at each refresh"


def unsupported(what: str, node: exp.Expr, sql: str, hint: str | None = None) -> MillstreamError:
    """An UNSUPPORTED_SQL error for a construct; if `what` starts with keywords of the text, it points at them."""
    hint = hint or suggestion_for(what)
    return MillstreamError(
        Code.UNSUPPORTED_SQL,
        f"{what} cannot be maintained incrementally",
        position=position_of_words(_keywords(what), sql) or position_of(node),
        sql=sql,
        hint=f"{hint}; {RECOMPUTE}" if hint else RECOMPUTE,
    )


def _keywords(what: str) -> str:
    """The words in capitals that a description starts with.

    >>> _keywords("LIMIT without ORDER BY"), _keywords("a subquery")
    ('LIMIT', '')
    """
    found = re.match(r"[A-Z_]+(?: [A-Z_]+)*(?= |$)", what)
    return found.group() if found else ""


def invalid(what: str, node: exp.Expr, sql: str, hint: str | None = None) -> MillstreamError:
    """A QUERY_INVALID error."""
    return MillstreamError(Code.QUERY_INVALID, what, position=position_of(node), sql=sql, hint=hint)


def depends_on_time(name: str, node: exp.Expr, sql: str) -> MillstreamError:
    """A VOLATILE_FUNCTION error for a function of the current time that does not use a refresh's data timestamp."""
    return MillstreamError(
        Code.VOLATILE_FUNCTION,
        f"{name} is not the data timestamp of a refresh, so its changes cannot be followed",
        position=position_of(node) or position_of_words(name.upper(), sql),
        sql=sql,
        hint=f"compute it from CURRENT_TIMESTAMP(); {RECOMPUTE}",
    )


def volatile(name: str, node: exp.Expr, sql: str) -> MillstreamError:
    """A VOLATILE_FUNCTION error."""
    return MillstreamError(
        Code.VOLATILE_FUNCTION,
        f"{name} may return another result for the same row, so its changes cannot be followed",
        position=position_of(node) or position_of_words(name.upper(), sql),
        sql=sql,
        hint=f"compute it when the source row is written; {RECOMPUTE}",
    )
