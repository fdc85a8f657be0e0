"""Everything a message suggests to run can be run: statements parse; commands, options and Python calls exist.

The texts of all errors, hints and warnings are read from the source; a name that is filled in stands there as `zz`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import millstream
from millstream.cli.main import command_line
from millstream.service.facade import Millstream
from millstream.sql.statements import Other, parse_statement

SOURCE = Path(millstream.__file__).parent
NAME = "zz"
STATEMENT = re.compile(
    r"\b(?:CREATE (?:OR REPLACE )?STREAM TABLE|ALTER STREAM TABLE|REFRESH STREAM TABLE|DROP STREAM TABLE|"
    r"DESCRIBE STREAM TABLE|EXPLAIN STREAM TABLE|SHOW STREAM TABLES|ATTACH POSTGRES|DETACH)\b[^;\n]*"
)
COMMAND = re.compile(r"`?\bmillstream ((?:--?[a-z][\w-]* )*)([a-z]+)\b([^`;,]*)")
CALL = re.compile(r"\b([a-z]+(?:_[a-z]+)+)\(")
# what may stand in a statement beside keywords: names that are filled in, and what is left to the reader
PART = re.compile(rf"{NAME}(?:\.\w+)*|[A-Z_]+|'[^']*'|<[^>]*>|…|\.\.\.|\([^)]*\)")
# words of a message, not of the command line; a verb otherwise
PROSE = {
    "made",
    "created",
    "failed",
    "needs",
    "does",
    "was",
    "keeps",
    "reads",
    "is",
    "of",
    "may",
    "cannot",
    "has",
    "and",
    "to",
}


def texts() -> Iterator[tuple[str, str]]:
    """Every text of the program that is no documentation of itself, with its place."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.is_relative_to(SOURCE / "testing"):
            continue
        tree = ast.parse(path.read_text())
        documented = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            place = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield place, "".join(p.value if isinstance(p, ast.Constant) else NAME for p in node.values)  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and id(node) not in documented | within and isinstance(node.value, str):
                yield place, node.value


def statement_in(said: str) -> str:
    """A statement out of a sentence: as far as it has no words of the sentence."""
    kept: list[str] = []
    for word in re.findall(r"'[^']*'|<[^>]*>|\([^)]*\)|[^\s,:]+|[,:]", said):
        bare = word.rstrip(".`")
        if not PART.fullmatch(bare):
            break
        kept.append(bare)
    text = " ".join(kept)
    text = re.sub(r"'(?:…|<[^>]*>)'", "'service=zz'", text).replace("…", NAME)
    text = text.replace(f"NUMERIC ({NAME} AS {NAME})", f"NUMERIC ({NAME}.{NAME}.{NAME} AS DECIMAL(2,1))")
    return re.sub(r"<[^>]*>", "SELECT 1 AS x", text.replace("AS <its name>", f"AS {NAME}"))


TEXTS = list(texts())
# forms of the grammar itself, statements that are put together, and one that is not shown for the password it may hold
FORMS = ("sql/statements/", "demo/", "cli/sql_command.py")


def statements() -> Iterator[tuple[str, str]]:
    for place, text in TEXTS:
        for found in STATEMENT.finditer(text):
            if not place.startswith(FORMS):
                yield place, statement_in(found[0])


def test_the_patterns_find_what_they_look_for() -> None:
    found = {text for _, text in statements()}
    assert f"REFRESH STREAM TABLE {NAME} FULL" in found
    assert f"ALTER STREAM TABLE {NAME} AS SELECT 1 AS x" in found
    assert f"ATTACH POSTGRES 'service=zz' AS {NAME}" in found
    assert len(found) >= 8
    assert (
        statement_in("ALTER STREAM TABLE zz SET STATUS ACTIVE resumes it") == "ALTER STREAM TABLE zz SET STATUS ACTIVE"
    )


@pytest.mark.parametrize(("place", "text"), sorted(set(statements())))
def test_statements_parse(place: str, text: str) -> None:
    if NAME not in text:  # the statement is only named: "DROP STREAM TABLE drops it"
        assert STATEMENT.fullmatch(text), place
        return
    assert not isinstance(parse_statement(text), Other), place


def commands() -> dict[str, set[str]]:
    group = typer.main.get_command(command_line())
    shared = {o for p in group.params for o in p.opts}
    return {
        name: shared | {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        for name, command in group.commands.items()  # type: ignore[attr-defined]
    }


def test_commands_and_options_exist() -> None:
    known, seen, wrong = commands(), 0, []
    for place, text in TEXTS:
        if place.startswith(("cli/", "demo/", "bench/")) and "`" not in text:
            continue
        for before, verb, after in COMMAND.findall(text):
            if verb not in known:
                if verb not in PROSE and "`millstream " in text:
                    wrong.append(f"{place}: there is no verb {verb}: {text}")
                continue
            seen += 1
            for option in re.findall(r"(?<!\w)--[a-z][\w-]*", before + after):
                if option not in known[verb]:
                    wrong.append(f"{place}: {verb} has no option {option}: {text}")
    assert not wrong
    assert seen >= 5


def test_python_calls_exist() -> None:
    ours = ("cli/", "service/", "refresh/", "lake/", "sources/", "sinks/", "catalog/", "planner/")
    known = {n for n in dir(Millstream) if not n.startswith("_")}
    for place, text in TEXTS:
        is_about_us = place.startswith(ours) and "_stream_table(" in text
        for name in CALL.findall(text) if is_about_us else ():
            assert name in known, f"{place}: {text}"


def test_nothing_is_suggested_in_a_syntax_we_do_not_have() -> None:
    """`name => value` is PostgreSQL's: of its functions, and of queries in its dialect."""
    ours = [
        (place, text) for place, text in TEXTS if not place.startswith(("sql/postgres/", "sources/postgres/wal/slot"))
    ]
    assert [(place, text) for place, text in ours if re.search(r"\w => ", text)] == []
