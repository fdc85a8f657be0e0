"""The user's text with other tables: what `FULL` without a delta plan and `verify` run.

Working on the text, not on a printed tree, keeps every literal and function as the user wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlglot import TokenType, exp
from sqlglot.dialects import Spark

from millstream.naming import quote
from millstream.sql.parse import parse_anything, parse_query
from millstream.sql.refusals.validate import is_current_time

_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(?:(?:EXTENDED|CODEGEN|COST|FORMATTED)\s+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableReference:
    """A table named in a text: its parts, and their span (`end` is after the last character)."""

    parts: tuple[str, ...]
    start: int
    end: int
    has_alias: bool


def table_references(text: str) -> tuple[TableReference, ...]:
    """The tables that a query reads, in the order of the text, without the names of CTEs."""
    found = [_reference(table) for table in real_tables(parse_query(text))]
    return tuple(sorted(found, key=lambda r: r.start))


def exchange_tables(text: str, replacement: Callable[[TableReference], str]) -> str:
    """Replace each table with other SQL; if it had no alias, columns may still be qualified with its name.

    >>> exchange_tables("SELECT orders.id FROM orders", lambda r: "v1")
    'SELECT orders.id FROM v1 AS `orders`'
    """
    return _exchanged(text, parse_query(text), replacement)


def exchange_tables_read(text: str, replacement: Callable[[TableReference], str | None]) -> str:
    """Replace tables that a statement of any kind reads; a statement that the parser does not parse stays as it is.

    A replacement of None keeps the table.

    >>> exchange_tables_read("INSERT INTO a SELECT * FROM b", lambda r: "v1" if r.parts == ("b",) else None)
    'INSERT INTO a SELECT * FROM v1 AS `b`'
    """
    explain = _EXPLAIN.match(text)
    head, rest = (text[: explain.end()], text[explain.end() :]) if explain else ("", text)
    tree = parse_anything(rest)
    return head + _exchanged(rest, tree, replacement) if tree is not None else text


def _exchanged(text: str, tree: exp.Expr, replacement: Callable[[TableReference], str | None]) -> str:
    changes: list[tuple[int, int, str]] = []
    unnamed: set[tuple[str, ...]] = set()
    for table in real_tables(tree):
        reference = _reference(table)
        new = replacement(reference)
        if new is None:
            continue
        if not reference.has_alias and not isinstance(table.parent, exp.Describe | exp.Cache):
            new += f" AS {quote(reference.parts[-1])}"
            unnamed.add(tuple(p.lower() for p in reference.parts))
        changes.append((reference.start, reference.end, new))
    changes += [(start, end, "") for start, end in _schemas_of_columns(tree, unnamed)]
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _schemas_of_columns(tree: exp.Expr, tables: set[tuple[str, ...]]) -> Iterator[tuple[int, int]]:
    """The spans of `schema.` in `schema.table.column`: once the table is replaced, only its alias exists."""
    tables = {t for t in tables if len(t) > 1}
    for column in tree.find_all(exp.Column):
        parts = [part.name.lower() for part in column.parts]
        for table in tables:
            if len(parts) > len(table) and tuple(parts[: len(table)]) == table:
                yield column.parts[0].meta["start"], column.parts[len(table) - 1].meta["start"]
                break


def words(text: str) -> set[str]:
    """The words of a text in lower case, quoted names without their quotes; strings do not count.

    >>> sorted(words("SELECT f(a) -- g(b)")), sorted(words("RETURN `My f`('x')"))
    (['a', 'f', 'select'], ['my f', 'return'])
    """
    tokens = Spark().tokenize(text)
    return {t.text.lower() for t in tokens if t.token_type is not TokenType.STRING and t.text.strip("()")}


def uses_current_time(text: str) -> bool:
    """Whether a query calls a function of the current time."""
    return any(is_current_time(node) for node in parse_query(text).walk())


def real_tables(tree: exp.Expr) -> Iterator[exp.Table]:
    """The tables in a tree, without the names of its CTEs."""
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
    """An instant as a constant in Spark's SQL, independent of the session's time zone.

    >>> moment_literal(EPOCH + timedelta(seconds=1))
    'TIMESTAMP_MICROS(1000000)'
    """
    return f"TIMESTAMP_MICROS({(moment - EPOCH) // timedelta(microseconds=1)})"


def bind_current_time(text: str, moment: datetime) -> str:
    """Replace functions of the current time with the time of a refresh.

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
# the parser prints the last one without parentheses, which Spark would read as a column
_WITHOUT_PARENTHESES = {"current_timestamp", "current_date", "localtimestamp"}


def _time_literal(word: str, now: str) -> str | None:
    if word in _TIMESTAMP_WORDS:
        return now
    if word in _DATE_WORDS:
        return f"CAST({now} AS DATE)"
    if word == "localtimestamp":
        return f"CAST({now} AS TIMESTAMP_NTZ)"
    return f"UNIX_TIMESTAMP({now})" if word == "unix_timestamp" else None
