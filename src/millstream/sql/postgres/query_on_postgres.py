"""A query in PostgreSQL's dialect for PostgreSQL itself to run: the user's own text over other tables.

It works on the text, not on a tree that is printed again. So PostgreSQL's answer is independent: a mistake of our
parser affects only the translation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from sqlglot import Token, TokenType, exp

from millstream.sql.postgres.dialect import parse_postgres, tokens_of
from millstream.sql.postgres.names import folded
from millstream.sql.text.table_exchange import real_tables

_NOT_REPEATABLE = {"random", "gen_random_uuid"}
_OF_THE_SESSION = (
    exp.CurrentUser,
    exp.SessionUser,
    exp.CurrentRole,
    exp.CurrentCatalog,
    exp.CurrentSchema,
)
_CLOCKS = {
    "now": "{0}",
    "transaction_timestamp": "{0}",
    "statement_timestamp": "{0}",
    "current_timestamp": "{0}",
    "current_date": "CAST({0} AS date)",
    "localtimestamp": "CAST({0} AS timestamp)",
}
_WITHOUT_PARENTHESES = {"current_timestamp", "current_date", "localtimestamp"}
_BEFORE_NAMES = {TokenType.DOT, TokenType.ALIAS}
_LISTS = {"array_agg", "json_agg", "jsonb_agg", "string_agg"}
_OPEN_CALLS = {
    *_LISTS, "any_value", "first_value", "json_arrayagg", "json_object_agg", "json_objectagg", "jsonb_object_agg",
    "lag", "last_value", "lead", "mode", "nth_value", "ntile", "row_number",
}  # fmt: skip
_OPEN_CLAUSES = {"fetch", "limit", "offset", "rows"}


def over_tables(text: str, table: Callable[[tuple[str, ...]], str], moment: datetime) -> str:
    """The text over other tables, at a fixed time, with lists in our order where the text leaves it open.

    Args:
        table: the SQL that replaces the table of that name, e.g. a query in parentheses.

    Raises:
        MillstreamError: SYNTAX_ERROR.
    """
    text = _without_semicolon(text)
    for start in [t.start for t in reversed(tokens_of(text)) if _is_word(t, _LISTS)]:
        text = _with_order(text, start)
    changes = [*_tables(text, table), *_clocks(text, moment)]
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def quoted(name: str) -> str:
    """A name, quoted for PostgreSQL.

    >>> quoted('a"b')
    '"a""b"'
    """
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def unanswerable(text: str) -> str | None:
    """A part of a query whose result differs between calls or sessions, or that is user-defined; None without one.

    >>> unanswerable("SELECT random() FROM t"), unanswerable("SELECT * FROM public.unnest(a)")
    ('random() returns another value each time', 'public.unnest is not a built-in function of PostgreSQL')
    >>> unanswerable("SELECT lower(a) FROM t")
    """
    for node in parse_postgres(text).walk():
        if isinstance(node, _OF_THE_SESSION):
            return f"{node.sql(dialect='postgres')} returns another value in each session"
        if isinstance(node, exp.Operator):
            return "OPERATOR(...) may be a user-defined operator"
        if isinstance(node, exp.Anonymous) and str(node.this).lower() in _NOT_REPEATABLE:
            return f"{str(node.this).lower()}() returns another value each time"
        schema = _schema_of_function(node)
        if schema is not None and folded(schema) != "pg_catalog":
            name = node.this.name if isinstance(node, exp.Table) else node.expression.name
            return f"{folded(schema)}.{name} is not a built-in function of PostgreSQL"
    return None


def open_constructs(text: str) -> list[str]:
    """The words in a query whose result may depend on an order that SQL leaves open.

    >>> open_constructs("SELECT a, rank() OVER (ORDER BY b) FROM t ORDER BY a LIMIT 3")
    ['LIMIT']
    """
    tokens = tokens_of(text)
    called = [one for one, two in itertools.pairwise(tokens) if two.token_type is TokenType.L_PAREN]
    found = {t.text.lower() for t in called if _is_word(t, _OPEN_CALLS)}
    found |= {t.text.lower() for t in tokens if _is_word(t, _OPEN_CLAUSES)}
    if any(d.args.get("on") for d in parse_postgres(text).find_all(exp.Distinct)):
        found.add("distinct on")
    return sorted(word.upper() for word in found)


def _schema_of_function(node: exp.Expr) -> exp.Expr | None:
    """The schema that qualifies the name of a function."""
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
        schema: exp.Expr = node.this
        return schema
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Func):
        found: exp.Expr | None = node.args.get("db")
        return found
    return None


def _without_semicolon(text: str) -> str:
    end = next((t.start for t in tokens_of(text) if t.token_type is TokenType.SEMICOLON), len(text))
    return text[:end]


def _is_word(token: Token, words: set[str]) -> bool:
    is_quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER, TokenType.BYTE_STRING)
    return not is_quoted and token.text.lower() in words


# Tables


def _tables(text: str, table: Callable[[tuple[str, ...]], str]) -> Iterator[tuple[int, int, str]]:
    tree = parse_postgres(text)
    unnamed: set[tuple[str, ...]] = set()
    for node in real_tables(tree):
        parts = tuple(folded(part) for part in node.parts)
        new = table(parts)
        if not node.alias:
            new += f" AS {quoted(parts[-1])}"
            unnamed.add(parts)
        yield node.parts[0].meta["start"], node.parts[-1].meta["end"] + 1, new
    for column in tree.find_all(exp.Column):  # `schema.table.column`: from now on, only the alias exists
        names = tuple(folded(part) for part in column.parts)
        for parts in unnamed:
            if 1 < len(parts) < len(names) and names[: len(parts)] == parts:
                yield column.parts[0].meta["start"], column.parts[len(parts) - 1].meta["start"], ""


# The current time


def _clocks(text: str, moment: datetime) -> Iterator[tuple[int, int, str]]:
    """Replacements for the current time: a scalar subquery keeps the name of a column without an alias."""
    literal = f"TIMESTAMPTZ '{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00'"
    tokens = tokens_of(text)
    for i, token in enumerate(tokens):
        word = token.text.lower()
        if not _is_word(token, set(_CLOCKS)) or (i > 0 and tokens[i - 1].token_type is TokenType.ALIAS):
            continue
        is_qualified = i > 0 and tokens[i - 1].token_type is TokenType.DOT
        is_called = [t.text for t in tokens[i + 1 : i + 3]] == ["(", ")"]
        if not is_called and (is_qualified or word not in _WITHOUT_PARENTHESES):
            continue
        start = tokens[i - 2].start if is_qualified else token.start  # pg_catalog.now()
        end = tokens[i + 2].end if is_called else token.end
        yield start, end + 1, f"(SELECT {_CLOCKS[word].format(literal)} AS {word})"


# Lists


def _with_order(text: str, start: int) -> str:
    """The text with the list aggregate at `start` in our order: that of its ORDER BY, if any, then that of its values.

    >>> _with_order("SELECT array_agg(a), 1", 7), _with_order("SELECT string_agg(a, ',' ORDER BY b)", 7)
    ('SELECT array_agg(a ORDER BY a), 1', "SELECT string_agg(a, ',' ORDER BY b, a ASC NULLS FIRST)")
    """
    tokens = tokens_of(text)
    name = next(i for i, t in enumerate(tokens) if t.start == start)
    if name + 1 >= len(tokens) or tokens[name + 1].token_type is not TokenType.L_PAREN:
        return text
    last = _closing(tokens, name + 1)
    inside = _outermost(tokens, name + 2, last)
    behind = last + 1
    if behind < len(tokens) and tokens[behind].text.upper() == "FILTER":
        behind = _closing(tokens, behind + 1) + 1
    is_window = behind < len(tokens) and tokens[behind].text.upper() == "OVER"
    if is_window or not inside or any(t.token_type is TokenType.DISTINCT for t in inside):
        return text
    ends = (TokenType.COMMA, TokenType.ORDER_BY)
    end = next((t.start for t in inside if t.token_type in ends), tokens[last].start)
    value = text[tokens[name + 2].start : end].rstrip()
    is_ordered = any(t.token_type is TokenType.ORDER_BY for t in inside)
    more = f", {value} ASC NULLS FIRST" if is_ordered else f" ORDER BY {value}"
    return text[: tokens[last].start] + more + text[tokens[last].start :]


def _closing(tokens: list[Token], opening: int) -> int:
    """The index of the closing parenthesis that matches an opening one."""
    depth = 0
    for i in range(opening, len(tokens)):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(tokens[i].token_type, 0)
        if depth == 0:
            return i
    raise AssertionError("the text was parsed before")


def _outermost(tokens: list[Token], first: int, last: int) -> list[Token]:
    """The tokens between two indexes that are not inside further parentheses or brackets."""
    found, depth = [], 0
    for token in tokens[first:last]:
        if token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET):
            depth -= 1
        if depth == 0:
            found.append(token)
        if token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET):
            depth += 1
    return found
