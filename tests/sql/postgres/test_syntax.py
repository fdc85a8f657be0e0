"""All that the parser reads is translated or refused: its nodes, their arguments, and every word of a text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlglot import exp

from kits.one_table import translated
from kits.paths import FIXTURES
from millstream.errors import Code, MillstreamError
from millstream.sql.postgres import expressions
from millstream.sql.postgres.dialect import parse_postgres
from millstream.sql.postgres.nodes import NODES, OWN
from millstream.sql.postgres.unread_words import refuse_unread
from millstream.sql.refusals.node_arguments import unhandled

CASES = FIXTURES / "postgres"


def listed() -> Iterator[tuple[str, str]]:
    """The fixture's texts: `accepted`, or the code they are refused with, and the text."""
    section = ""
    for line in (CASES / "syntax.sql").read_text().splitlines():
        if line.startswith("# "):
            section = line[2:].removeprefix("refused ")
        elif line:
            yield section, line


def test_optional_syntax_is_accepted_or_refused_by_code() -> None:
    """Through the clauses of PostgreSQL's grammar, and those of others that the parser knows."""
    wrong = []
    for wanted, text in listed():
        try:
            translated(text)
            found = "accepted"
        except MillstreamError as e:
            found = str(e.code)
        if found != wanted:
            wrong.append(f"{text}: {found}, not {wanted}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SELECT i FROM v GROUP BY DISTINCT ROLLUP (i), ROLLUP (i)", "GROUP BY DISTINCT"),
        ("WITH RECURSIVE w(i) AS (SELECT 1 UNION ALL SELECT i FROM w) CYCLE i SET c USING p SELECT c FROM w", "CYCLE"),
        ("WITH RECURSIVE w(i) AS (SELECT 1 UNION ALL SELECT i FROM w) SEARCH DEPTH FIRST BY i SET o TABLE w", "SEARCH"),
    ],
)
def test_clauses_that_vanished_are_refused_by_name(text: str, name: str) -> None:
    with pytest.raises(MillstreamError) as caught:
        translated(text)
    assert caught.value.code is Code.UNSUPPORTED_SQL
    position = caught.value.position
    assert position is not None
    assert text[position.column - 1 :].startswith(name.split(" DISTINCT")[0])
    assert name in caught.value.message


def test_every_argument_of_every_node_is_handled_or_refused() -> None:
    """A new version of the parser with a new argument fails here until somebody decides about it."""
    wrong = []
    for kind, known in NODES.items():
        listed_, there = known.handled | known.refused, set(kind.arg_types)
        if undecided := there - listed_:
            wrong.append(f"{kind.__name__}: {sorted(undecided)} undecided")
        if gone := listed_ - there - OWN.get(kind, set()):
            wrong.append(f"{kind.__name__}: {sorted(gone)} unknown to the parser")
        if both := known.handled & known.refused:
            wrong.append(f"{kind.__name__}: {sorted(both)} handled and refused")
    assert not wrong, "\n".join(wrong)


def test_every_rule_of_an_expression_is_about_a_listed_node() -> None:
    """There is no rule for a node that is not on the list."""
    assert not expressions._RULES.keys() - NODES.keys()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT i FROM v WHERE i IN ((SELECT k FROM v) ORDER BY 1 LIMIT 7)",
        "SELECT i FROM v WHERE i NOT IN ((SELECT k FROM v) ORDER BY 1 LIMIT 7)",
        "SELECT i IN ((SELECT k FROM v) ORDER BY 1 LIMIT 7) FROM v",
        "SELECT i FROM v WHERE i = ANY ((SELECT k FROM v) ORDER BY 1 LIMIT 7)",
        "SELECT i FROM ((SELECT i FROM v) ORDER BY 1 LIMIT 7) AS x",
        "SELECT ((SELECT k FROM v) ORDER BY 1 LIMIT 7) FROM v",
    ],
)
def test_what_stands_behind_a_query_in_parentheses_is_kept(text: str) -> None:
    assert "LIMIT 7" in translated(text)


def test_an_argument_of_a_version_to_come_is_refused() -> None:
    tree = parse_postgres("SELECT i FROM v WHERE i > 1")
    tree.args["where"].set("brand_new", False)
    assert [(type(u.node), u.argument) for u in unhandled(tree, NODES)] == [(exp.Where, "brand_new")]


def test_a_word_that_left_no_trace_is_refused() -> None:
    tree = parse_postgres("SELECT i FROM v WHERE i > 1")
    refuse_unread("select ALL I from v where (i > 1)", tree)
    for text in (
        "SELECT i FROM v WHERE i > 1 SKIPPING k",
        "SELECT i FROM v WHERE i > 1 AND i > 1",
        "SELECT i FROM v WHERE i > 1 'note'",
        "SELECT i FROM v WHERE i > 1 (2)",
        "SELECT DISTINCT i FROM v WHERE i > 1",
    ):
        with pytest.raises(MillstreamError) as caught:
            refuse_unread(text, tree)
        assert caught.value.code is Code.UNSUPPORTED_SQL


def test_texts_as_postgresql_prints_them_lose_no_word() -> None:
    """Of the expressions and queries that are compared with PostgreSQL, each word is in the tree."""
    texts = [f"SELECT {line} FROM v" for line in (CASES / "expressions.sql").read_text().splitlines() if line]
    texts = [text for text in texts if not text.startswith("SELECT -- ")]
    for block in (CASES / "queries.sql").read_text().strip().split("\n\n"):
        texts += block.split("\n", 1)[1].split("\n----\n")
    for text in texts:
        refuse_unread(text, parse_postgres(text))
