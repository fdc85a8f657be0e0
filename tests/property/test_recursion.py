"""Recursions over random graphs: trees, cycles, loops, parallel edges and NULLs, changed at several ends at once."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings

from kits.paths import FIXTURES
from millstream.diff import recursive, turnover
from millstream.diff.difference import Difference
from millstream.diff.plan import STORED, Fixpoint
from millstream.diff.recursive import DELTA_ITERATION, RECOMPUTE, REDERIVE, SEMI_NAIVE, RecursiveStage
from millstream.ops import Column, Filter, InnerJoin, Relation, Table, walk
from millstream.testing import duck
from millstream.testing.assertions import assert_exact, assert_follows
from millstream.testing.choices import Choices
from millstream.testing.duck import DuckStreamTable
from millstream.testing.golden import Case, read_cases
from millstream.testing.strategies import Scenario, make_scenario, scenarios

QUERIES = read_cases(FIXTURES / "property" / "recursion.sql")
TABLES = {
    "e": (Column("src", "smallint"), Column("dst", "smallint")),
    "f": (Column("src", "smallint"), Column("dst", "smallint")),
    "n": (Column("id", "smallint"), Column("s", "string")),
}


@pytest.mark.parametrize("query", QUERIES, ids=lambda case: case.title)
@settings(max_examples=3, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(TABLES))
def test_contents_follow_the_query(query: Case, scenario: Scenario) -> None:
    assert_follows(query.text, TABLES, scenario)


@pytest.mark.parametrize("query", QUERIES, ids=lambda case: case.title)
def test_seeded_graphs(query: Case) -> None:
    """Larger ones: with more edges than nodes there are several ways from one node to another."""
    for seed in range(2):
        assert_follows(query.text, TABLES, make_scenario(Choices.seeded(seed), TABLES, max_rows=14))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("query", QUERIES, ids=lambda case: case.title)
@settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(TABLES, max_rows=14))
def test_contents_follow_the_query_through_more_changes(query: Case, scenario: Scenario) -> None:
    assert_follows(query.text, TABLES, scenario)


# How a change is computed

REACHED = "WITH RECURSIVE r(id) AS (SELECT id FROM n UNION SELECT e.dst FROM r JOIN e ON e.src = r.id) SELECT * FROM r"
HOPS = """
WITH RECURSIVE r(id) AS (
  SELECT id FROM n WHERE s = 'x' UNION SELECT f.dst FROM r JOIN e ON e.src = r.id JOIN f ON f.src = e.dst
) SELECT * FROM r
"""
PATHS = """
WITH RECURSIVE r AS (SELECT src, dst FROM e UNION ALL SELECT r.src, e.dst FROM r JOIN e ON r.dst = e.src)
SELECT * FROM r
"""
DEEP = next(case.text for case in QUERIES if case.title == "union all, as deep as it goes")
OPEN = """
WITH RECURSIVE r(id) AS (
  SELECT id FROM n
  UNION SELECT e.dst FROM r JOIN e ON e.src = r.id WHERE NOT EXISTS (SELECT 1 FROM f WHERE f.src = e.dst)
) SELECT * FROM r
"""


def follows(query: str, *batches: tuple[dict[str, list[tuple[tuple[object, ...], int]]], str]) -> DuckStreamTable:
    """Each batch is one refresh, which takes the given way."""
    table = DuckStreamTable(query, TABLES)
    table.load()
    for changes, strategy in batches:
        table.change(changes)
        table.refresh()
        assert_exact(table, f"{changes}")
        assert table.strategies == [strategy], changes
    return table


def edges(*rows: tuple[object, object], weight: int = 1) -> list[tuple[tuple[object, ...], int]]:
    return [(row, weight) for row in rows]


def test_what_only_grows_is_computed_without_a_look_back() -> None:
    table = follows(
        REACHED,
        ({"n": edges((1, "x")), "e": edges((1, 2), (2, 3), (3, 1))}, SEMI_NAIVE),
        ({"e": edges((3, 4), (4, 4))}, SEMI_NAIVE),
        # an update of what the recursion does not read, and an edge once more
        ({"n": [((1, "x"), -1), ((1, "y"), 1)], "e": edges((1, 2))}, SEMI_NAIVE),
    )
    assert set(table.contents()) == {(1,), (2,), (3,), (4,)}


def test_two_inputs_grow_at_once() -> None:
    """The delta of a join takes away what it counts twice; that is no loss."""
    follows(
        HOPS,
        ({"n": edges((1, "x"))}, SEMI_NAIVE),
        ({"e": edges((1, 2)), "f": edges((2, 3))}, SEMI_NAIVE),
    )


def test_two_inputs_shrink_at_once() -> None:
    """Both rows that made 3 together are gone, so that neither can show the loss of the other."""
    table = follows(
        HOPS,
        ({"n": edges((1, "x")), "e": edges((1, 2)), "f": edges((2, 3))}, SEMI_NAIVE),
        ({"e": edges((1, 2), weight=-1), "f": edges((2, 3), weight=-1)}, REDERIVE),
    )
    assert set(table.contents()) == {(1,)}


def test_a_row_loses_one_derivation_and_gains_one_from_itself() -> None:
    """The number of derivations stays the same, and yet nothing leads to 2 and 3 any more."""
    start = {"n": edges((1, "x")), "e": edges((1, 2), (2, 3))}
    table = follows(REACHED, (start, SEMI_NAIVE), ({"e": [*edges((1, 2), weight=-1), *edges((3, 2))]}, REDERIVE))
    assert set(table.contents()) == {(1,)}


def test_a_cycle_does_not_keep_itself_alive() -> None:
    start = {"n": edges((1, "x")), "e": edges((1, 2), (2, 3), (3, 2), (1, 4), (4, 3))}
    table = follows(
        REACHED,
        (start, SEMI_NAIVE),
        ({"e": edges((1, 2), weight=-1)}, REDERIVE),
        ({"e": edges((4, 3), weight=-1)}, REDERIVE),
    )
    assert set(table.contents()) == {(1,), (4,)}


def test_rows_are_rederived_from_the_table_they_name() -> None:
    """Joined with the recursion first, on the depth they share, 600 rows and 40,000 made a broadcast too large."""
    query = """
    WITH RECURSIVE r(id, depth) AS (
      SELECT id, 0 FROM n UNION SELECT e.dst, r.depth + 1 FROM r JOIN e ON e.src = r.id WHERE r.depth < 9
    ) SELECT * FROM r
    """
    (named,) = DuckStreamTable(query, TABLES).stages
    found = next(s for s in named.stage.steps(frozenset({"e"})) if s.name == recursive.FOUND)
    assert isinstance(found, Fixpoint)
    joins = [node for node in walk(found.seed.relation) if isinstance(node, InnerJoin) and len(node.inputs) == 3]
    assert joins
    for join in joins:
        read = [{n.name for n in walk(i) if isinstance(n, Table)} for i in join.inputs]
        assert read == [{recursive.LOST}, {"new_e"}, {STORED, recursive.LOST}]


def test_an_input_that_takes_away_by_growing() -> None:
    start = {"n": edges((1, "x")), "e": edges((1, 2), (2, 3))}
    table = follows(
        OPEN, (start, SEMI_NAIVE), ({"f": edges((2, 0))}, REDERIVE), ({"f": edges((2, 0), weight=-1)}, SEMI_NAIVE)
    )
    assert set(table.contents()) == {(1,), (2,), (3,)}


def test_the_paths_of_a_graph_are_counted() -> None:
    """Deletes and inserts at once; there are two ways from 1 to 4, then three, then one."""
    table = follows(
        PATHS,
        ({"e": edges((1, 2), (2, 4), (1, 3), (3, 4))}, DELTA_ITERATION),
        ({"e": edges((1, 4))}, DELTA_ITERATION),
        ({"e": [*edges((1, 2), (3, 4), weight=-1), *edges((4, 5))]}, DELTA_ITERATION),
    )
    assert table.contents()[1, 4] == 1


def test_a_cycle_under_union_all_does_not_end() -> None:
    table = DuckStreamTable(PATHS, TABLES)
    table.load()
    table.change({"e": edges((1, 2), (2, 1))})
    with pytest.raises(AssertionError, match="does not end"):
        table.refresh()


@pytest.mark.parametrize("query", [REACHED, OPEN], ids=["join", "negation"])
def test_an_operator_without_rules_is_recomputed(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duck, "_compile", functools.lru_cache(duck._compile.__wrapped__))
    monkeypatch.setattr(recursive, "has_rules", lambda relation, reference: False)
    follows(
        query,
        ({"n": edges((1, "x")), "e": edges((1, 2), (2, 3))}, RECOMPUTE),
        ({"e": edges((1, 2), weight=-1)}, RECOMPUTE),
    )
    for seed in range(10):
        assert_follows(query, TABLES, make_scenario(Choices.seeded(seed), TABLES))


# The tests see bugs: each rule made wrong in one place


def loses_nothing(self: turnover.Turnover, relation: Relation) -> None:
    return None


def puts_nothing_back(step: Relation, turnover: turnover.Turnover, wanted: Relation) -> Relation:
    right = RIGHT_RESTRICTED(step, turnover, wanted)
    return Filter(right, duck.exp.false())


def stops_at_once(
    self: RecursiveStage, difference: Difference, right: Callable[..., Relation] = RecursiveStage._lost_next
) -> Relation:
    return Filter(right(self, difference), duck.exp.false())


def starts_from_the_lost(self: RecursiveStage) -> Relation:
    return self._stored


def goes_one_round(self: RecursiveStage, right: Callable[..., Relation] = RecursiveStage._next) -> Relation:
    return Filter(right(self), duck.exp.false())


RIGHT_RESTRICTED = recursive._restricted
WRONG = [
    pytest.param(turnover.Turnover, "lost", loses_nothing, REACHED, id="losses not seen"),
    pytest.param(recursive, "_restricted", puts_nothing_back, REACHED, id="nothing rederived"),
    pytest.param(RecursiveStage, "_lost_next", stops_at_once, REACHED, id="what follows from losses not lost"),
    pytest.param(RecursiveStage, "_stayed", property(starts_from_the_lost), REACHED, id="rederived from what is lost"),
    pytest.param(RecursiveStage, "_next", goes_one_round, DEEP, id="one round only"),
]


@pytest.mark.parametrize(("where", "attribute", "wrong", "query"), WRONG)
def test_a_wrong_rule_is_found_out(
    where: object, attribute: str, wrong: object, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duck, "_compile", functools.lru_cache(duck._compile.__wrapped__))
    monkeypatch.setattr(where, attribute, wrong)

    def is_found_out() -> bool:
        for seed in range(200):
            try:
                assert_follows(query, TABLES, make_scenario(Choices.seeded(seed), TABLES, max_rows=10))
            except (AssertionError, duck.duckdb.Error):
                return True
        return False

    assert is_found_out()
