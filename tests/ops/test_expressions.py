from __future__ import annotations

import pytest
from sqlglot import exp, parse_one

from millstream.ops.expressions import all_of, any_of, cast, col, not_, null, same, substitute, when


def text(expression: exp.Expr) -> str:
    return expression.sql(dialect="spark")


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("x * 2", "a + 1", "(a + 1) * 2"),
        ("x IS NULL", "a IN (1, 2)", "(a IN (1, 2)) IS NULL"),
        ("NOT x", "a BETWEEN 1 AND 2", "NOT (a BETWEEN 1 AND 2)"),
        ("x = TRUE", "a OR b", "(a OR b) = TRUE"),
        ("x + 1", "-a", "(-a) + 1"),
        ("x || 'z'", "CASE WHEN a THEN 'y' END", "(CASE WHEN a THEN 'y' END) || 'z'"),
        ("x + 1", "CAST(a AS INT)", "CAST(a AS INT) + 1"),
        ("UPPER(x)", "a", "UPPER(a)"),
        ("x", "a + 1", "(a + 1)"),
        ("y", "a", "y"),
    ],
)
def test_a_column_is_replaced_such_that_it_means_the_same(outer: str, inner: str, expected: str) -> None:
    result = substitute(parse_one(outer, dialect="spark"), {"x": parse_one(inner, dialect="spark")})
    assert text(result) == expected


def test_substitution_leaves_the_expression_as_it_was() -> None:
    expression = parse_one("x + x")
    substitute(expression, {"x": col("a")})
    assert expression.sql() == "x + x"


def test_columns_are_replaced_at_once() -> None:
    swapped = substitute(parse_one("x - y"), {"x": exp.column("y"), "y": exp.column("x")})
    assert swapped.sql() == "y - x"


def test_no_conditions() -> None:
    assert text(all_of([])) == "TRUE"
    assert text(any_of([])) == "FALSE"


def test_connectors_are_distinguished() -> None:
    a, b, c = (exp.column(n) for n in "abc")
    assert text(all_of([any_of([a, b]), c])) == "(a OR b) AND c"
    assert text(not_(all_of([a, b]))) == "NOT (a AND b)"


@pytest.mark.parametrize(
    ("type_", "printed"),
    [
        ("int", "INT"),
        ("decimal(10,2)", "DECIMAL(10, 2)"),
        ("struct<f:int,g:array<string>>", "STRUCT<f: INT, g: ARRAY<STRING>>"),
        ("timestamp_ntz", "TIMESTAMP_NTZ"),
        ("void", "VOID"),
        ("string collate UTF8_LCASE", "string collate UTF8_LCASE"),
    ],
)
def test_types_are_printed_as_spark_reads_them(type_: str, printed: str) -> None:
    assert text(null(type_)) == f"CAST(NULL AS {printed})"


def test_builders_read_like_formulas() -> None:
    assert text(same(col("a"), col("b"))) == "`a` IS NOT DISTINCT FROM `b`"
    assert text(when(col("p"), cast(col("a"), "bigint"))) == "CASE WHEN `p` THEN CAST(`a` AS BIGINT) END"
