"""Cases that were wrong once, each under the name of its mistake."""

from __future__ import annotations

from collections import Counter

import pytest

from millstream.testing.assertions import assert_exact, assert_follows
from millstream.testing.duck import DuckStreamTable
from millstream.testing.strategies import TABLES, Scenario, Step


def t(*rows: tuple[object, ...], weight: int = 1) -> dict[str, list[tuple[tuple[object, ...], int]]]:
    return {"t": [(row, weight) for row in rows]}


def test_both_inputs_of_a_join_grow() -> None:
    """What the two deltas have in common is counted twice and taken away again: negative weights among inserts."""
    table = DuckStreamTable("SELECT t.b, u.c FROM t JOIN u ON t.a = u.a", TABLES)
    table.load()
    table.change({"t": [((1, 2, "x"), 1)], "u": [((1, 3, None), 1)]})
    assert table.can_append()
    table.append()
    assert_exact(table, "append")


def test_a_self_join_grows() -> None:
    table = DuckStreamTable("SELECT x.b, y.b AS c FROM t x JOIN t y ON x.a = y.a", TABLES)
    table.load()
    table.change(t((1, 2, "x"), (1, 3, "y")))
    table.append()
    assert_exact(table, "append")


@pytest.mark.parametrize(
    "query",
    [
        # the alias came back in parentheses and was no longer the key's expression
        "SELECT a + 1 AS k, COUNT(*) AS n FROM t GROUP BY k",
        "SELECT UPPER(s) AS k, MAX(b) AS m FROM t GROUP BY k HAVING k <> 'Y'",
        # in HAVING a name that is not grouped is an alias
        "SELECT a, SUM(b) AS b FROM t GROUP BY a HAVING b > 2",
        # IN and BETWEEN were put under other operators without parentheses
        "SELECT p IS NULL AS x, NOT p AS y, p = q AS z FROM (SELECT a IN (1, 2) AS p, b BETWEEN 1 AND 2 AS q FROM t)",
        "SELECT p IS NULL AS x, p = TRUE AS y FROM (SELECT a, MAX(b) IN (1, 2) AS p FROM t GROUP BY a) AS r",
        # a column of NULLs has a type the parser does not know
        "SELECT a, NULL AS n FROM t UNION ALL SELECT NULL, c FROM u",
        # an aggregation of which nothing is read
        "SELECT 1 AS x FROM (SELECT COUNT(*) AS n FROM t) AS q",
        "SELECT COUNT(*) AS n FROM (SELECT 1 AS x FROM t HAVING TRUE) AS q",
    ],
)
def test_a_query_that_was_refused_or_misread(query: str) -> None:
    steps = [
        Step({"t": [((1, 3, "x"), 1), ((2, 1, None), -1)], "u": [((1, 1, None), 1)]}, refreshes=True),
        Step({"t": [((1, 2, "x"), -1), ((None, None, "y"), 2)]}, refreshes=True),
    ]
    assert_follows(query, TABLES, Scenario(t((1, 2, "x"), (2, 1, None)), steps))


def test_a_join_key_moves_while_its_partner_goes() -> None:
    initial = {"t": [((1, 1, "x"), 1)], "u": [((1, 7, None), 1), ((2, 8, None), 1)]}
    moves = {"t": [((1, 1, "x"), -1), ((2, 1, "x"), 1)], "u": [((2, 8, None), -1)]}
    back = {"t": [((2, 1, "x"), -1), ((1, 1, "x"), 1)], "u": [((2, 8, None), 1)]}
    for kind in ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"):
        query = f"SELECT t.a, u.a AS ua, u.c FROM t {kind} u ON t.a = u.a"
        assert_follows(query, TABLES, Scenario(initial, [Step(moves, refreshes=True), Step(back, refreshes=True)]))


def test_a_group_dies_and_comes_back() -> None:
    query = "SELECT a, COUNT(*) AS n, SUM(b) AS x, MIN(b) AS lo, MAX(b) AS hi FROM t GROUP BY a HAVING COUNT(*) > 0"
    rows = t((1, 2, "x"), (1, 5, "x"), (None, 3, None))
    dies = t((1, 2, "x"), (1, 5, "x"), weight=-1)
    steps = [Step(dies, refreshes=True), Step(t((1, 1, "y"), weight=2), refreshes=True), Step({}, refreshes=True)]
    assert_follows(query, TABLES, Scenario(rows, steps))


def test_the_last_of_several_equal_maxima_goes() -> None:
    query = "SELECT a, MAX(b) AS m FROM t GROUP BY a"
    one = t((1, 3, "x"), weight=-1)
    table = assert_follows(
        query, TABLES, Scenario(t((1, 3, "x"), (1, 3, "x"), (1, 3, "x"), (1, 2, "y")), [Step(one, refreshes=True)] * 3)
    )
    assert "result.recomputed" in table.steps_run


def test_an_extremum_that_is_held_again_is_not_read_again() -> None:
    table = DuckStreamTable("SELECT a, MAX(b) AS m FROM t GROUP BY a", TABLES)
    table.change(t((1, 3, "x"), (1, 2, "y")))
    table.load()
    table.change(t((1, 3, "z"), weight=2))
    table.refresh()
    table.change(t((1, 3, "x"), weight=-1))
    table.refresh()
    assert_exact(table, "refresh")
    assert table.steps_run == ["result.changes"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT d FROM f",
        "SELECT a, CAST(d AS FLOAT) AS e FROM f",
        "SELECT x.d, y.d AS e FROM f x JOIN f y ON x.d = y.d",
        "SELECT d FROM f UNION ALL SELECT CAST(a AS DOUBLE) FROM f",
        "SELECT d, a FROM (SELECT d, a, ROW_NUMBER() OVER (PARTITION BY a % 2 ORDER BY a, b) AS n FROM f) WHERE n <= 2",
        "SELECT x.a, y.d FROM f x LEFT JOIN f y ON x.a = y.a + 1",
        "SELECT a, b, MIN(d) AS lo FROM f GROUP BY a, b",
    ],
)
def test_the_sign_of_zero_was_lost(query: str) -> None:
    """GROUP BY, joins and IS NOT DISTINCT take -0.0 for 0.0; a column that is passed through keeps its bits."""
    table = DuckStreamTable(f"WITH f AS (SELECT a, b, CAST(s AS DOUBLE) AS d FROM t) {query}", TABLES)
    table.change(t((1, 1, "-0.0"), (2, 1, "0.0"), (3, 1, "1.5"), (3, 2, "1.5")))
    table.load()
    assert _signed(table)
    for batch in (
        {"t": [((1, 1, "-0.0"), -1), ((1, 1, "0.0"), 1)]},
        {"t": [((2, 1, "0.0"), -1), ((2, 1, "-0.0"), 1), ((4, 1, "-0.0"), 2), ((5, 1, "0.0"), 1)]},
        {"t": [((4, 1, "-0.0"), -1), ((5, 1, "0.0"), -1)]},
        {"t": [((4, 1, "-0.0"), -1), ((1, 1, "0.0"), -1), ((1, 1, "-0.0"), 1)]},
    ):
        table.change(batch)
        table.refresh()
        assert _signed(table)


def _signed(table: DuckStreamTable) -> bool:
    stored = Counter(repr(row) for _, row in table.keyed_contents())
    wanted = Counter(repr(row) for row in table._fetch(table.plan.oracle))
    assert stored == wanted, f"missing {wanted - stored}, extra {stored - wanted}"
    return True
