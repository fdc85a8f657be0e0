"""The query's own text with its tables exchanged: what `FULL` without a delta plan and `verify` run.

Working on the text, not on a tree printed again, keeps every literal and function as the user wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlglot import TokenType, exp
from sqlglot.dialects import Spark

from millstream.naming import quote
from millstream.sql.parse import parse_query
from millstream.sql.validate import is_current_time


@dataclass(frozen=True, slots=True)
class TableReference:
    """A table named in a text: its parts, and the characters they stand at (`end` is behind the last)."""

    parts: tuple[str, ...]
    start: int
    end: int
    has_alias: bool


def table_references(text: str) -> tuple[TableReference, ...]:
    """The tables a query reads, in the order they stand there; names of CTEs are not among them."""
    found = [_reference(table) for table in _real_tables(parse_query(text))]
    return tuple(sorted(found, key=lambda r: r.start))


def exchange_tables(text: str, replacement: Callable[[TableReference], str]) -> str:
    """Replace each table by other SQL; where it had no alias, columns may still be qualified by its name.

    >>> exchange_tables("SELECT orders.id FROM orders", lambda r: "v1")
    'SELECT orders.id FROM v1 AS `orders`'
    """
    changes = [(start, end, "") for start, end in _schemas_of_columns(text)]
    for reference in table_references(text):
        new = replacement(reference)
        if not reference.has_alias:
            new += f" AS {quote(reference.parts[-1])}"
        changes.append((reference.start, reference.end, new))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _schemas_of_columns(text: str) -> Iterator[tuple[int, int]]:
    """Where `schema.` stands in `schema.table.column`: only the table's alias is known once it is exchanged."""
    tables = {tuple(p.lower() for p in r.parts) for r in table_references(text) if len(r.parts) > 1 and not r.has_alias}
    for column in parse_query(text).find_all(exp.Column):
        parts = [part.name.lower() for part in column.parts]
        for table in tables:
            if len(parts) > len(table) and tuple(parts[: len(table)]) == table:
                yield column.parts[0].meta["start"], column.parts[len(table) - 1].meta["start"]
                break


def words(text: str) -> set[str]:
    """The words of a text in lower case, quoted ones without their quotes; strings are none.

    >>> sorted(words("SELECT f(a) -- g(b)")), sorted(words("RETURN `My f`('x')"))
    (['a', 'f', 'select'], ['my f', 'return'])
    """
    tokens = Spark().tokenize(text)
    return {t.text.lower() for t in tokens if t.token_type is not TokenType.STRING and t.text.strip("()")}


def uses_current_time(text: str) -> bool:
    """Whether a query calls a function of the current time."""
    return any(is_current_time(node) for node in parse_query(text).walk())


def _real_tables(tree: exp.Query) -> Iterator[exp.Table]:
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier) and not _names_a_cte(table):
            yield table


def _names_a_cte(table: exp.Table) -> bool:
    if len(table.parts) > 1:
        return False
    name, node = table.name.lower(), table.parent
    child: exp.Expr = table
    while node is not None:
        visible: list[exp.Expr] = []
        if isinstance(node, exp.With):
            # inside a CTE only the ones before it are visible, and itself if it is recursive
            position = next(i for i, cte in enumerate(node.expressions) if cte is child)
            visible = node.expressions[: position + 1 if node.args.get("recursive") else position]
        elif node.args.get("with_") is not None and node.args["with_"] is not child:
            visible = node.args["with_"].expressions
        if any(cte.alias.lower() == name for cte in visible):
            return True
        child, node = node, node.parent
    return False


def _reference(table: exp.Table) -> TableReference:
    first, last = table.parts[0], table.parts[-1]
    return TableReference(
        tuple(part.name for part in table.parts), first.meta["start"], last.meta["end"] + 1, bool(table.alias)
    )


_TIMESTAMP_WORDS = {"current_timestamp", "now"}
_DATE_WORDS = {"current_date", "curdate"}


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_literal(moment: datetime) -> str:
    """A moment as a constant of Spark's SQL, whatever the session's time zone.

    >>> moment_literal(EPOCH + timedelta(seconds=1))
    'TIMESTAMP_MICROS(1000000)'
    """
    return f"TIMESTAMP_MICROS({(moment - EPOCH) // timedelta(microseconds=1)})"


def bind_current_time(text: str, moment: datetime) -> str:
    """Replace functions of the current time by the time of a refresh.

    >>> bind_current_time("SELECT now(), 'now()' FROM t", EPOCH)
    "SELECT TIMESTAMP_MICROS(0), 'now()' FROM t"
    >>> bind_current_time("SELECT `now`(), t.current_date, a AS current_date, current_date FROM t", EPOCH)
    'SELECT TIMESTAMP_MICROS(0), t.current_date, a AS current_date, CAST(TIMESTAMP_MICROS(0) AS DATE) FROM t'
    """
    tokens = Spark().tokenize(text)
    for i in range(len(tokens) - 1, -1, -1):
        replacement = _time_literal(tokens[i].text.lower(), moment_literal(moment))
        called = [t.text for t in tokens[i + 1 : i + 3]] == ["(", ")"]
        if replacement is None or tokens[i].token_type is TokenType.STRING:
            continue
        # the name of a column, or of an alias
        is_name = tokens[i].token_type is TokenType.IDENTIFIER or (i > 0 and tokens[i - 1].token_type in _BEFORE_NAMES)
        if not called and (is_name or tokens[i].text.lower() not in _WITHOUT_PARENTHESES):
            continue
        end = tokens[i + 2].end if called else tokens[i].end
        text = text[: tokens[i].start] + replacement + text[end + 1 :]
    return text


_BEFORE_NAMES = {TokenType.DOT, TokenType.ALIAS}
# the last as the parser prints it; to Spark it would be a column
_WITHOUT_PARENTHESES = {"current_timestamp", "current_date", "localtimestamp"}


def _time_literal(word: str, now: str) -> str | None:
    if word in _TIMESTAMP_WORDS:
        return now
    if word in _DATE_WORDS:
        return f"CAST({now} AS DATE)"
    if word == "localtimestamp":
        return f"CAST({now} AS TIMESTAMP_NTZ)"
    return f"UNIX_TIMESTAMP({now})" if word == "unix_timestamp" else None
