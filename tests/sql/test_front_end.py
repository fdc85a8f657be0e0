"""The front end on golden files: query text to operators, or to the error a user reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from kits.paths import FIXTURES
from millstream.errors import MillstreamError
from millstream.ops import Column
from millstream.ops.tree import format_tree
from millstream.sql.lowering.lower import Lowered, lower
from millstream.sql.parse import parse_query
from millstream.sql.refusals.in_every_mode import refuse_in_every_mode
from millstream.sql.refusals.validate import validate
from millstream.sql.rewrites.distinct_to_two_levels import distinct_to_two_levels
from millstream.sql.rewrites.isolate_time import isolate_time
from millstream.sql.rewrites.outer_to_inner import outer_to_inner
from millstream.sql.rewrites.prune_columns import prune_columns
from millstream.sql.rewrites.pull_up_projections import pull_up_projections
from millstream.testing.analyzer import DuckAnalyzer, Tables
from millstream.testing.constructs import CONSTRUCTS
from millstream.testing.duck import shared_connection
from millstream.testing.golden import Case, assert_golden, read_cases
from millstream.testing.strategies import TABLES
from millstream.testing.support_matrix import support_of

SOURCES = Tables(
    {
        **TABLES,
        "w": (
            Column("st", "struct<f:int,g:struct<h:int>>"),
            Column("arr", "array<int>"),
            Column("m", "map<string,int>"),
            Column("a", "int"),
        ),
    },
    views={
        "positive": "SELECT a, b FROM t WHERE b > 0",
        "joined": "SELECT t.a, u.c FROM t JOIN u ON t.a = u.a",
        "limited": "SELECT a\nFROM t\nLIMIT 3",
        "endless": "SELECT a FROM endless",
    },
)


def lowered(text: str) -> Lowered:
    return lower(parse_query(text), text, SOURCES, DuckAnalyzer(shared_connection()))


def checked(text: str) -> None:
    refuse_in_every_mode(parse_query(text), text)
    validate(lowered(text).relation, text, DuckAnalyzer(shared_connection()))


def refusal(text: str) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        checked(text)
    return caught.value


@pytest.mark.parametrize("path", sorted((FIXTURES / "lower").glob("*.sql")), ids=lambda p: p.stem)
def test_queries_become_operators(path: Path) -> None:
    def compute(case: Case) -> str:
        result = lowered(case.text)
        return f"{', '.join(result.names)}\n{format_tree(result.relation)}"

    assert_golden(path, compute)


@pytest.mark.parametrize(
    "rewrite",
    [outer_to_inner, pull_up_projections, isolate_time, prune_columns, distinct_to_two_levels],
    ids=lambda r: r.__name__,
)
def test_rewrites(rewrite) -> None:
    assert_golden(
        FIXTURES / "rewrites" / f"{rewrite.__name__}.sql",
        lambda case: format_tree(rewrite(lowered(case.text).relation)),
    )


@pytest.mark.parametrize("path", sorted((FIXTURES / "errors").glob("*.sql")), ids=lambda p: p.stem)
def test_refusals(path: Path) -> None:
    assert_golden(path, lambda case: str(refusal(case.text)))


@pytest.mark.parametrize(
    "case", [c for name in ("unsupported", "volatile") for c in read_cases(FIXTURES / "errors" / f"{name}.sql")]
)
def test_a_refused_construct_has_a_position_and_a_hint(case: Case) -> None:
    error = refusal(case.text)
    assert error.position is not None
    assert error.hint is not None


def test_order_by_is_dropped_and_said_once() -> None:
    result = lowered("SELECT a FROM (SELECT a FROM t ORDER BY a) ORDER BY a")
    assert result.notices == ("ORDER BY is dropped: a table has no order, sort when you read it",)


def test_every_construct_of_the_matrix_is_taken_or_refused_with_a_rewrite() -> None:
    for examples in CONSTRUCTS.values():
        for name, sql in examples:
            error = support_of(sql).refusal
            if error is not None:
                assert error.position is not None, name
                assert error.hint, name


def test_a_view_that_reads_itself_ends() -> None:
    assert "nested more than 10 deep" in refusal("SELECT a FROM endless").message


def test_a_map_cannot_be_compared() -> None:
    assert refusal("SELECT m FROM w").code == "UNSUPPORTED_TYPE"


def test_an_expression_that_is_no_function_of_one_row_is_refused() -> None:
    class Suspicious(DuckAnalyzer):
        def is_scalar(self, query, expressions):
            return not any("mystery" in e.sql() or "UPPER" in e.sql() for e in expressions)

    text = "SELECT UPPER(s) AS u FROM t"
    with pytest.raises(MillstreamError) as caught:
        validate(lowered(text).relation, text, Suspicious(shared_connection()))
    assert caught.value.code == "VOLATILE_FUNCTION"


def test_a_nulls_type_is_kept() -> None:
    assert lowered("SELECT NULL AS n, a FROM t").names == ("n", "a")
