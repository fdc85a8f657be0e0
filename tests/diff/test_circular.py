"""Which queries can be members of a cycle: every operator is allowed, or refused with a reason."""

from __future__ import annotations

import pytest

from kits.delta_sql import MAINTAINED, example_of
from kits.duck_cycle import lowered
from millstream.diff import circular
from millstream.diff.circular import obstacle
from millstream.ops import (
    Aggregate,
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    OneRow,
    OuterJoin,
    Project,
    Recursion,
    Repeat,
    Scan,
    SemiJoin,
    Table,
    UnionAll,
    Window,
)
from millstream.ops.relations import OPERATORS

PAIR = (Column("a", "int"), Column("b", "int"))
TABLES = {"t": PAIR, "m": PAIR, "n": PAIR, "d": (Column("a", "int"), Column("x", "double"))}
MEMBERS = {"m": PAIR, "n": PAIR}

ALLOWED = (
    "SELECT DISTINCT a, b FROM t",
    "SELECT a, b FROM t UNION SELECT b, a FROM m",
    "SELECT a, b FROM m WHERE a > 1",
    "SELECT b AS x, a AS y FROM m",
    "SELECT DISTINCT x.a, y.b FROM m x JOIN n y ON x.b = y.a JOIN t ON t.a = x.a",
    "SELECT a, b FROM m WHERE EXISTS (SELECT 1 FROM n WHERE n.a = m.b)",
    "SELECT a, b FROM m WHERE a IN (SELECT a FROM t)",
    "SELECT a, b FROM m INTERSECT SELECT a, b FROM n",
    "SELECT DISTINCT a, b FROM (SELECT a, b FROM m UNION ALL SELECT a, b FROM n)",
    "SELECT a, b FROM t GROUP BY a, b",
    "SELECT m.a, m.b, n.a AS c, n.b AS d FROM m CROSS JOIN n",
    "SELECT 1 AS a, 2 AS b UNION SELECT a, b FROM m",
)
REFUSED = (
    ("SELECT a, COUNT(*) AS b FROM m GROUP BY a", "aggregates"),
    ("SELECT MAX(a) AS a FROM m", "aggregates"),
    ("SELECT DISTINCT m.a, t.b FROM m LEFT JOIN t ON m.a = t.a", "outer join"),
    ("SELECT DISTINCT m.a, t.b FROM m FULL JOIN t ON m.a = t.a", "outer join"),
    ("SELECT a, b FROM m EXCEPT SELECT a, b FROM n", "EXCEPT"),
    ("SELECT a, b FROM m WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.a = m.a)", "NOT EXISTS"),
    ("SELECT a, b FROM m WHERE a NOT IN (SELECT a FROM t WHERE a IS NOT NULL)", "NOT IN"),
    ("SELECT a, b FROM m ORDER BY a LIMIT 3", "LIMIT"),
    ("SELECT DISTINCT a, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b) AS b FROM m", "window"),
    ("SELECT a, b FROM m WHERE a > HOUR(CURRENT_TIMESTAMP())", "current time"),
    ("SELECT a, b FROM m UNION ALL SELECT a, b FROM n", "UNION ALL"),
    ("SELECT a FROM m", "several times"),
    ("SELECT a, b FROM t", "several times"),
    ("SELECT a, a + b AS b FROM m", "several times"),
    ("SELECT DISTINCT a, x FROM d", "double"),
    ("WITH RECURSIVE w(a, b) AS (SELECT a, b FROM t UNION SELECT w.a, t.b FROM w JOIN t ON w.b = t.a) "
     "SELECT DISTINCT a, b FROM w", "WITH RECURSIVE"),
)  # fmt: skip


@pytest.mark.parametrize("query", ALLOWED)
def test_a_monotone_set_is_allowed(query: str) -> None:
    assert obstacle(lowered(query, TABLES), MEMBERS) is None


@pytest.mark.parametrize(("query", "reason"), REFUSED)
def test_everything_else_is_refused_with_its_reason(query: str, reason: str) -> None:
    assert reason in (obstacle(lowered(query, TABLES), MEMBERS) or "")


def test_every_operator_is_decided() -> None:
    """A new operator must be listed here, after somebody has thought about it."""
    allowed = {Scan, OneRow, Filter, Project, Repeat, InnerJoin, SemiJoin, UnionAll}
    refused = {Aggregate, AntiJoin, OuterJoin, Window, Recursion, Table}
    assert allowed | refused == set(OPERATORS)
    examples = {o: example_of(o) for o in MAINTAINED}
    for operator, example in examples.items():
        assert (circular._obstacle_at(example) is None) == (operator in allowed), operator
