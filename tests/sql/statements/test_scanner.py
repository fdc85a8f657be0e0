"""Texts of several statements are split where they end, and no character is lost."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.errors import Code, MillstreamError, Position
from millstream.sql.statements import (
    CreateStreamTable,
    Other,
    parse_statement,
    relocated,
    split_statements,
)


def refused(text: str) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        parse_statement(text)
    return caught.value


class TestSplit:
    @pytest.mark.parametrize(
        ("text", "pieces"),
        [
            ("SELECT 1", ["SELECT 1"]),
            ("SELECT 1;\nSELECT 2\n;", ["SELECT 1", "SELECT 2"]),
            ("SELECT ';', \";\", `;`, r'\\'; -- ;\n SELECT /* ; /* ; */ ; */ 2", None),
            ("CREATE VIEW v AS $$ a;'b $$; SELECT 2", ["CREATE VIEW v AS $$ a;'b $$", "SELECT 2"]),
            (";; SELECT 1 ;; -- nothing ;\n;", ["SELECT 1"]),
            ("SELECT 'a\\';b'; SELECT 2", ["SELECT 'a\\';b'", "SELECT 2"]),
            ("SHOW TABLES LIKE 'a;b'; SELECT 2", ["SHOW TABLES LIKE 'a;b'", "SELECT 2"]),
            (
                "BEGIN SELECT CASE WHEN 1 THEN 2 END; END; SELECT 2",
                ["BEGIN SELECT CASE WHEN 1 THEN 2 END; END", "SELECT 2"],
            ),
            (
                "x: BEGIN IF 1 THEN SELECT 1; END IF; END x; SELECT 2",
                ["x: BEGIN IF 1 THEN SELECT 1; END IF; END x", "SELECT 2"],
            ),
            ("SELECT 1; SELECT 'open; SELECT 3", ["SELECT 1", "SELECT 'open; SELECT 3"]),
            ("", []),
            (" -- nothing", []),
        ],
    )
    def test_pieces(self, text: str, pieces: list[str] | None) -> None:
        found = split_statements(text)
        assert all(text[s.offset : s.offset + len(s.text)] == s.text for s in found)
        if pieces is not None:
            assert [s.text for s in found] == pieces
        else:
            assert len(found) == 2

    def test_an_error_in_a_piece_points_into_the_whole(self) -> None:
        text = "SELECT 1;\n\n  SHOW STREAM\n  tabels;"
        piece = split_statements(text)[1]
        error = relocated(refused(piece.text), text, piece.offset)
        assert error.code is Code.SYNTAX_ERROR
        assert error.position == Position(4, 3, 6)
        assert "    tabels;\n    ^^^^^^" in str(error)


# Texts of all characters, and texts that look like SQL: quotes, comments and semicolons in odd places.
_PIECES = [
    "'",
    '"',
    "`",
    "--",
    "/*",
    "*/",
    ";",
    "\\",
    "\n",
    "\r",
    " ",
    "as",
    "x",
    "1",
    "(",
    ")",
    "select",
    "é",
    "\u2028",
    "{#",
    "$",
]
_SQL_LIKE = st.lists(st.sampled_from(_PIECES), max_size=25).map("".join)
_TEXTS = st.text(max_size=40) | _SQL_LIKE
_STRINGS = st.text(max_size=20).map(lambda s: "'" + s.replace("\\", "\\\\").replace("'", "\\'") + "'")
_NAMES = st.text(min_size=1, max_size=20).map(lambda s: "`" + s.replace("`", "``") + "`")
_COMMENTS = st.text("ab;'\"` -", max_size=20).map(lambda s: f"/*{s}*/")
_QUERIES = st.lists(
    _STRINGS | _NAMES | _COMMENTS | st.sampled_from(["SELECT", ",", "1", "(", ")", "AS", "\n", "\t"]), min_size=1
)


class TestNothingIsLost:
    @given(_QUERIES)
    def test_a_query_survives(self, parts: list[str]) -> None:
        query = "SELECT " + " ".join(parts) + " FROM t"
        head = "CREATE STREAM TABLE totals SCHEDULE '1m' AS "
        for text in (head + query, f"{head}\n\t{query}\n ;  ", f"{head}{query};-- done"):
            statement = parse_statement(text)
            assert isinstance(statement, CreateStreamTable)
            assert statement.query == query
            assert text[statement.query_offset :].startswith(query)

    @given(_TEXTS)
    @example("'\\")
    @example("/*")
    def test_any_text_is_taken_or_refused_with_a_code(self, text: str) -> None:
        for head in ("", "CREATE STREAM TABLE totals AS x ", "ALTER STREAM TABLE totals ", "INSERT INTO "):
            whole = head + text
            try:
                statement = parse_statement(whole)
            except MillstreamError as e:
                str(e)
                continue
            if isinstance(statement, CreateStreamTable):
                end = statement.query_offset + len(statement.query)
                assert whole[statement.query_offset : end] == statement.query
                assert statement.query.startswith("x")
                rest = parse_rest(whole[end:])
                assert rest == ""
            elif isinstance(statement, Other):
                assert statement.text == whole

    @given(_TEXTS)
    def test_split_is_a_cut(self, text: str) -> None:
        end = 0
        for piece in split_statements(text):
            assert piece.offset >= end
            assert text[piece.offset : piece.offset + len(piece.text)] == piece.text
            end = piece.offset + len(piece.text)

    @given(st.lists(_QUERIES.map(lambda parts: "SELECT " + " ".join(parts) + " x"), max_size=4))
    def test_split_finds_every_statement(self, queries: list[str]) -> None:
        assert [s.text for s in split_statements(";".join(queries))] == queries


def parse_rest(text: str) -> str:
    """What is behind a query but blanks, comments and semicolons."""
    return " ".join(s.text for s in split_statements(text))
