from __future__ import annotations

import pytest
from sqlglot import exp

from millstream.ops import Column, Filter, InnerJoin, Item, Project, Relation, Scan, Table, UnionAll, transform, walk
from millstream.ops.expressions import col
from millstream.ops.walk import occurrences

A, B = Column("a", "int"), Column("b", "int")
SCAN = Scan("t", ("a",), (A,))
SHARED = Filter(SCAN, exp.true())
TWICE = UnionAll((SHARED, Project(SHARED, (Item(col("a"), B),))))


def test_each_relation_is_met_once_parents_first() -> None:
    assert list(walk(TWICE)) == [TWICE, SHARED, SCAN, TWICE.inputs[1]]


def test_a_relation_that_stands_in_two_places_stays_one() -> None:
    met: list[Relation] = []

    def rewrite(node: Relation) -> Relation:
        met.append(node)
        return Table("now", node.output) if isinstance(node, Scan) else node

    result = transform(TWICE, rewrite)
    assert len(met) == 4
    assert isinstance(result, UnionAll)
    assert result.inputs[1].children[0] is result.inputs[0]


def test_nothing_to_rewrite_gives_the_same_tree() -> None:
    assert transform(TWICE, lambda node: node) is TWICE


def test_the_insides_of_a_shared_relation_occur_once() -> None:
    counts = occurrences((TWICE,))
    assert counts[SHARED] == 2
    assert counts[SCAN] == 1


def test_a_join_keeps_its_conditions_over_other_inputs() -> None:
    other = Table("u", (B,))
    join = InnerJoin((SCAN, other), (exp.EQ(this=col("a"), expression=col("b")),), small_first=True)
    moved = join.over((Table("now", (A,)), other))
    assert isinstance(moved, InnerJoin)
    assert moved.conditions == join.conditions
    assert moved.small_first


def test_a_leaf_has_no_children_to_exchange() -> None:
    with pytest.raises(ValueError, match="argument"):
        SCAN.over((SCAN,))
