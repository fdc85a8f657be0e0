"""What the postgres dialect refuses, and the parts of it that need no Spark."""

from __future__ import annotations

import re

import pytest

from kits.one_table import OneTable, translated
from kits.paths import DOCS, FIXTURES
from millstream.errors import Code, MillstreamError
from millstream.sql.postgres import aggregates, set_returning, translate
from millstream.sql.postgres.constants import jsonb_text, parse_array, parse_interval
from millstream.sql.postgres.functions import FUNCTIONS
from millstream.sql.postgres.functions.json_building import BUILDERS
from millstream.sql.postgres.patterns import to_java
from millstream.sql.postgres.refusals import RefusalError
from millstream.testing.golden import Case, assert_golden

CASES = FIXTURES / "postgres"


def test_refusals_say_what_and_where() -> None:
    def compute(case: Case) -> str:
        with pytest.raises(MillstreamError) as caught:
            translated(case.text)
        return str(caught.value)

    assert_golden(CASES / "refused.sql", compute)


def test_translations_look_like_this() -> None:
    assert_golden(CASES / "translated.sql", lambda case: translated(case.text))


def test_a_text_cast_to_jsonb_is_pointed_out() -> None:
    (notice,) = translate("SELECT s::jsonb ->> 'a' AS a FROM v", OneTable(), OneTable()).notices
    assert "jsonb" in notice


def test_a_column_of_a_type_postgresql_does_not_have_is_only_passed_on() -> None:
    assert translated("SELECT m FROM v") == "SELECT `v`.`m` AS `m` FROM `v` AS `v`"
    with pytest.raises(MillstreamError) as caught:
        translated("SELECT m = m AS same, m || 'x' AS joined FROM v")
    assert caught.value.code is Code.UNSUPPORTED_SQL


@pytest.mark.parametrize(
    ("text", "unit", "parts"),
    [
        ("1 month", None, (1, 0, 0)),
        ("1 year -2 mons", None, (10, 0, 0)),
        ("-1 day 02:00", None, (0, -1, 7_200_000_000)),
        ("1 day -00:00:01.5", None, (0, 1, -1_500_000)),
        ("1.5 hours", None, (0, 0, 5_400_000_000)),
        ("90", None, (0, 0, 90_000_000)),
        ("3", "week", (0, 21, 0)),
        ("1.5", "second", (0, 0, 1_500_000)),
        ("-1.234567 seconds", None, (0, 0, -1_234_567)),
    ],
)
def test_intervals(text: str, unit: str | None, parts: tuple[int, int, int]) -> None:
    assert parse_interval(text, unit) == parts


@pytest.mark.parametrize("text", ["", "soon", "1 fortnight", "1.5 months", "P1D", "1.2345678 seconds", "0.0001 ms"])
def test_intervals_that_are_not_read(text: str) -> None:
    with pytest.raises(RefusalError):
        parse_interval(text)


@pytest.mark.parametrize("unit", ["hour", "minute", "day"])
def test_a_fraction_before_a_unit_is_not_read(unit: str) -> None:
    assert parse_interval("1", unit)
    with pytest.raises(RefusalError):
        parse_interval("1.5", unit)


def test_arrays_are_read_as_postgresql_prints_them() -> None:
    assert parse_array('{a, "b,c", NULL, "NULL", "q\\"q"}') == ["a", "b,c", None, "NULL", 'q"q']
    assert parse_array("{}") == []
    with pytest.raises(RefusalError):
        parse_array("{{1},{2}}")


def test_jsonb_literals_are_printed_as_jsonb() -> None:
    assert jsonb_text('{"b":1,"aa":[true,null,1e2],"a":"x","a":"y"}') == '{"a": "y", "b": 1, "aa": [true, null, 100]}'
    with pytest.raises(RefusalError):
        jsonb_text("{nope}")


def test_the_page_about_the_dialect_lists_every_function() -> None:
    page = (DOCS / "postgres-dialect.md").read_text()
    listed = set(re.findall(r"\w+", page))
    known = {*FUNCTIONS, *BUILDERS, *aggregates.NAMES, *set_returning.NAMES}
    assert not known - listed


@pytest.mark.parametrize(
    ("pattern", "java"),
    [
        ("^a.b$", r"(?sU)^a.b\z"),
        (r"\d+[\d.]", r"(?sU)[0-9]+[0-9.]"),
        ("[[:alpha:]_]", r"(?sU)[\p{Alpha}_]"),
        ("[]a]", r"(?sU)[\]a]"),
        (r"\mfoo\M", r"(?sU)\b(?=\w)foo\b(?<=\w)"),
        ("[a&&b]", r"(?sU)[a\&\&b]"),
    ],
)
def test_regular_expressions(pattern: str, java: str) -> None:
    assert to_java(pattern) == java


@pytest.mark.parametrize("pattern", ["(?=a)", "***:a", "(?i)a", "[[.a.]]", r"\x41", "[a"])
def test_regular_expressions_that_are_not_read(pattern: str) -> None:
    with pytest.raises(RefusalError):
        to_java(pattern)
