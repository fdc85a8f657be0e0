from __future__ import annotations

import pytest
from sqlglot import exp

from millstream import naming
from millstream.ops import (
    Aggregate,
    Column,
    Filter,
    InnerJoin,
    Item,
    OuterJoin,
    Project,
    Scan,
    SemiJoin,
    Table,
    UnionAll,
)
from millstream.ops.expressions import col, compare, keep
from millstream.ops.relations import WEIGHT_COLUMN

A, B, C = Column("a", "int"), Column("b", "int"), Column("c", "string")
LEFT = Table("l", (A, B))
RIGHT = Table("r", (C,))
DELTA = Table("delta_l", (A, B, WEIGHT_COLUMN))


def test_equal_operators_over_equal_inputs_are_equal() -> None:
    one = Filter(Table("l", (A, B)), compare(exp.GT, col("a"), exp.Literal.number(1)))
    other = Filter(Table("l", (A, B)), compare(exp.GT, col("a"), exp.Literal.number(1)))
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other}) == 1


def test_operators_of_different_kinds_differ() -> None:
    condition = compare(exp.EQ, col("a"), col("c"))
    assert SemiJoin(LEFT, RIGHT, condition) != OuterJoin("left", LEFT, RIGHT, condition)
    assert Filter(LEFT, exp.true()) != Filter(LEFT, exp.false())
    assert LEFT != "l"


def test_children_are_the_inputs_in_order() -> None:
    assert InnerJoin((LEFT, RIGHT), ()).children == (LEFT, RIGHT)
    assert OuterJoin("left", LEFT, RIGHT, exp.true()).children == (LEFT, RIGHT)
    assert Scan("t", ("a",), (A,)).children == ()


def test_a_weight_is_no_column_and_comes_last() -> None:
    join = InnerJoin((DELTA, RIGHT), ())
    assert join.columns == (A, B, C)
    assert join.schema[-1] == WEIGHT_COLUMN
    assert join.is_weighted
    assert UnionAll((DELTA, DELTA)).schema == (A, B, WEIGHT_COLUMN)


def test_a_group_has_its_keys_and_calls() -> None:
    counted = Item(exp.Count(this=exp.Star()), Column("n", "bigint"))
    assert [c.name for c in Aggregate(LEFT, keep([A]), (counted,)).schema] == ["a", "n"]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Table("t", (A, Column("A", "int"))), "not unique"),
        (lambda: Scan("t", ("a",), (A, B)), "needs its origin"),
        (lambda: Filter(LEFT, col("z")), r"refers to \['z'\]"),
        (lambda: Project(LEFT, (Item(col("z"), A),)), r"refers to \['z'\]"),
        (lambda: Project(LEFT, (*keep([A]), *keep([A]))), "not unique"),
        (lambda: InnerJoin((LEFT,), ()), "two inputs"),
        (lambda: InnerJoin((LEFT, LEFT), ()), "not unique"),
        (lambda: InnerJoin((LEFT, RIGHT), (col("z"),)), r"refers to \['z'\]"),
        (lambda: OuterJoin("left", RIGHT, DELTA, exp.true()), "may not be weighted"),
        (lambda: UnionAll((LEFT, RIGHT)), "number of columns"),
        (lambda: UnionAll((LEFT, DELTA)), "all inputs of a union are weighted"),
        (lambda: Aggregate(LEFT, keep([C]), ()), r"refers to \['c'\]"),
    ],
)
def test_a_malformed_tree_cannot_be_made(make, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


def test_the_weights_name_is_reserved() -> None:
    assert naming.WEIGHT.startswith(naming.RESERVED_PREFIX)
