"""The glossary points at modules that exist, and the words it bans occur neither in the docs nor in the source."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kits.paths import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
SOURCE = ROOT / "src" / "millstream"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

NOT_YET_CLEAN = (
    "src/millstream/sinks/postgres/ledger.py",  # `told` is a column of the ledger in served databases
)
"""Paths whose texts still use banned words; the list only shrinks."""


def rows() -> Iterator[list[str]]:
    """The cells of the glossary's table rows, without headings and rules."""
    for line in GLOSSARY.read_text().splitlines():
        if line.startswith("| ") and not line.startswith(("| term |", "| not |")):
            yield [cell.strip() for cell in line.strip("|").split("|")]


TERMS = [row for row in rows() if len(row) == 4]
BANNED = [word.strip() for row in rows() if len(row) == 2 for word in row[0].split(",")]
BANNED_WORD = re.compile(r"\b(?:" + "|".join(word.replace(" ", r"\s+") for word in BANNED) + r")\b", re.IGNORECASE)


@pytest.mark.parametrize("row", TERMS, ids=lambda row: row[0])
def test_the_module_of_a_term_exists(row: list[str]) -> None:
    [module] = re.findall(r"`([a-z_.]+)`", row[2])
    path = SOURCE.joinpath(*module.split("."))
    assert path.is_dir() or path.with_suffix(".py").exists(), f"{row[0]}: there is no module millstream.{module}"


def test_every_term_is_listed_once() -> None:
    terms = [row[0] for row in TERMS]
    assert len(terms) > 40
    assert len(set(terms)) == len(terms)


def checked(paths: list[Path]) -> list[Path]:
    unclean = [ROOT / path for path in NOT_YET_CLEAN]
    return [path for path in paths if not any(path.is_relative_to(part) for part in unclean)]


@pytest.mark.parametrize("path", checked(PAGES), ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_no_banned_word(path: Path) -> None:
    text = path.read_text()
    if path == GLOSSARY:  # its tables have a column of words that are not used
        text = "\n".join(" ".join(row[:3]) for row in TERMS)
    assert found(text) == []


@pytest.mark.parametrize("path", checked(sorted(SOURCE.rglob("*.py"))), ids=lambda path: str(path.relative_to(SOURCE)))
def test_source_uses_no_banned_word(path: Path) -> None:
    text = path.read_text()
    assert [f"line {line}: {word}" for line, piece in pieces(text) for word in found(piece)] == []


def test_paths_that_are_not_yet_clean_exist() -> None:
    assert [path for path in NOT_YET_CLEAN if not (ROOT / path).exists()] == []


def test_names_comments_docstrings_and_texts_are_searched() -> None:
    source = '"""What was told."""\n# left\n# behind\nmend_it = f"{a} anew"\nfile.tell()\n'
    hits = sorted((line, word) for line, piece in pieces(source) for word in found(piece))
    assert hits == [(1, "told"), (2, "left behind"), (4, "anew"), (4, "mend")]


def found(text: str) -> list[str]:
    """The banned words of a text, also across line breaks."""
    return [" ".join(match.group().split()) for match in BANNED_WORD.finditer(text)]


def pieces(source: str) -> Iterator[tuple[int, str]]:
    """Comments, names and string literals of a module, each with its line; comments on consecutive lines are one."""
    comment, start, last = "", 0, -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            if line != last + 1:
                yield start, comment
                comment, start = "", line
            comment, last = f"{comment} {token.string.lstrip('#')}", line
        elif token.type == tokenize.NAME and not is_method_of_a_file(token):
            yield line, token.string.replace("_", " ")
    yield start, comment
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def is_method_of_a_file(token: tokenize.TokenInfo) -> bool:
    return token.line[: token.start[1]].endswith(".") and token.string == "tell"
