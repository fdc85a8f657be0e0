"""`SERVE TO database.schema.table [WITH (owner = app, grants = 'reader, PUBLIC', user_triggers = 'off')]`."""

from __future__ import annotations

from sqlglot import TokenType

from millstream.sql.statements.model import ServeClause
from millstream.sql.statements.scanner import Scanner, word_of

SERVE_FORM = (
    "SERVE TO database.schema.table [WITH (owner = 'role', grants = 'role, …', user_triggers = 'auto' | 'off')]"
)
_OPTIONS = ("owner", "grants", "user_triggers")


def serve_clause(s: Scanner) -> ServeClause:
    """Read what follows the words SERVE TO."""
    to = _served_name(s)
    after = s.peek(1)
    if not s.at("WITH") or after is None or after.token_type is not TokenType.L_PAREN:
        return ServeClause(to)  # WITH NO DATA is another clause
    s.index += 2
    given: dict[str, str] = {}
    while True:
        free = [name for name in _OPTIONS if name not in given]
        name = word_of(s.peek()).lower()
        if name not in free:
            s.fail(" or ".join(free) if free else "a closing parenthesis")
        s.index += 1
        if s.accept_type(TokenType.EQ) is None:
            s.fail("=")
        value = s.accept_type(TokenType.STRING) or s.accept_type(TokenType.VAR)
        if value is None:
            s.fail("a value in quotes")
        given[name] = value.text.strip()
        if not given[name] or "" in _listed(given[name]):
            s.index -= 1
            s.fail("a value that is not empty")
        if s.accept_type(TokenType.R_PAREN):
            break
        if s.accept_type(TokenType.COMMA) is None:
            s.fail("a comma or a closing parenthesis")
    grants = _listed(given["grants"]) if "grants" in given else ()
    return ServeClause(to, given.get("owner"), grants, given.get("user_triggers"))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _served_name(s: Scanner) -> str:
    """A table of an attached database; each part as written, including its quotes."""
    tokens = s.name(quotes='`"')
    if not 2 <= len(tokens) <= 3:
        s.fail("a table of an attached database, such as shop.public.totals")
    return ".".join(s.text[t.start : t.end + 1] for t in tokens)
