"""Circular stream tables on real Spark, against a fixpoint in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, open_lake, refused
from millstream import Action, Code, MillstreamError
from millstream.naming import TableName
from millstream.passes.pass_request import PassRequest
from millstream.planner.cycle_choice import CycleChoice, CycleFacts, Start, choose_for_cycle
from millstream.refresh import cycle_plan
from millstream.results import InitiatedBy, RefreshStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# walks of odd and of even length; each table reads the other
ODD = "SELECT src, dst FROM edges UNION SELECT e.src, w.dst FROM edges e JOIN even w ON e.dst = w.src"
EVEN = "SELECT DISTINCT e.src, w.dst FROM edges e JOIN odd w ON e.dst = w.src"
PAIRS = set[tuple[int, int]]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    with open_lake(tmp_path / "lake", allow_circular=True, max_recursion=6) as opened:
        yield opened


@pytest.fixture
def walks(lake: Lake) -> Lake:
    """Two stream tables that read each other, over a graph with a cycle."""
    return make_walks(lake)


def make_walks(lake: Lake) -> Lake:
    lake.table("edges", "src INT, dst INT, note STRING", "1, 2, 'a'", "2, 1, 'b'", "2, 3, 'c'")
    lake.stream("odd", "SELECT DISTINCT src, dst FROM edges")
    lake.stream("even", EVEN)
    lake.ms.alter_stream_table("odd", query=ODD)
    return lake


def fixpoint(edges: PAIRS) -> tuple[PAIRS, PAIRS]:
    odd, even = PAIRS(), PAIRS()
    while True:
        following = (
            edges | {(a, d) for a, b in edges for c, d in even if b == c},
            {(a, d) for a, b in edges for c, d in odd if b == c},
        )
        if following == (odd, even):
            return following
        odd, even = following


def assert_walks(lake: Lake) -> None:
    odd, even = fixpoint({(src, dst) for src, dst, _ in lake.rows("edges")})
    assert dict(lake.rows("odd")) == dict.fromkeys(odd, 1)
    assert dict(lake.rows("even")) == dict.fromkeys(even, 1)
    assert lake.ms.verify("even").ok
    assert len({lake.last(name).data_timestamp for name in ("odd", "even")}) == 1


def refreshed(lake: Lake, name: str, action: Action, reason: str) -> None:
    result = lake.ms.refresh_stream_table(name)
    assert (result.action, result.reason.split(":")[0]) == (action, reason), result.reason


def test_it_follows_inserts_updates_and_deletes(walks: Lake) -> None:
    """Small steps and a big one; what reads a member follows it."""
    assert_walks(walks)
    walks.stream("far", "SELECT src, COUNT(*) AS n FROM odd GROUP BY src")
    refreshed(walks, "even", Action.NO_DATA, "UNCHANGED")
    walks.insert("edges", "3, 4, 'd'")
    walks.refresh("far", Action.DIFFERENTIAL)  # after the cycle
    assert walks.last("even").reason.startswith("FIXPOINT: about 1 rows")
    assert walks.last("even").reason.endswith("rounds of even, odd")
    assert_walks(walks)
    walks.sql("UPDATE edges SET note = 'x' WHERE src = 3")  # takes nothing away from the columns in use
    refreshed(walks, "odd", Action.DIFFERENTIAL, "FIXPOINT")
    walks.sql("DELETE FROM edges WHERE src = 1", "UPDATE edges SET dst = 2 WHERE dst = 3")
    walks.insert("edges", "4, 2, 'e'", "NULL, 2, 'f'")
    outcomes = {o.name: o.result for o in walks.ms.refresh_stream_tables()}
    assert {n: r.action for n, r in outcomes.items() if r} == dict.fromkeys(outcomes, Action.DIFFERENTIAL)
    assert outcomes.keys() == {"odd", "even", "far"}
    assert walks.last("odd").reason.startswith("FROM_EMPTY: edges lost rows")
    assert_walks(walks)
    walks.assert_exact("far")


def test_a_pass_takes_the_whole_cycle_or_nothing_of_it(walks: Lake) -> None:
    request = PassRequest([TableName.parse("odd")], InitiatedBy.SCHEDULER)
    walks.insert("edges", "3, 4, 'd'")
    outcomes = walks.ms._runtime.passes.run(request)
    assert {n: o.result.action for n, o in outcomes.items() if o.result} == dict.fromkeys(
        ("even", "odd"), Action.DIFFERENTIAL
    )
    assert walks.ms.dag().cycles == (frozenset({"even", "odd"}),)
    assert walks.ms.refresh_stream_table("odd", mode="FULL").action is Action.FULL
    assert walks.last("even").reason.startswith("REQUESTED")
    assert_walks(walks)
    walks.ms.alter_stream_table("even", status="SUSPENDED")
    with refused(Code.SUSPENDED, "even"):
        walks.ms.refresh_stream_table("odd")
    assert [(o.name, o.waits_for) for o in walks.ms.refresh_stream_tables()] == [("odd", "even")]
    walks.ms.alter_stream_table("even", status="ACTIVE")
    with refused(Code.DEPENDENTS_EXIST):
        walks.ms.drop_stream_table("odd")
    walks.ms.drop_stream_table("even", cascade=True)
    assert walks.ms.status() == []


def test_a_bound_on_rounds_commits_nothing(walks: Lake) -> None:
    before = walks.rows("odd"), walks.rows("even")
    versions = [t.public_stage.version for t in walks.ms._catalog.list()]
    walks.insert("edges", *(f"{n}, {n + 1}, 'long'" for n in range(3, 12)))
    with refused(Code.RECURSION_LIMIT, "even, odd", "6 rounds"):
        walks.ms.refresh_stream_table("odd")
    assert (walks.rows("odd"), walks.rows("even")) == before
    assert [t.public_stage.version for t in walks.ms._catalog.list()] == versions
    assert {walks.last(n).status for n in ("odd", "even")} == {RefreshStatus.FAILED}
    walks.sql("DELETE FROM edges WHERE src > 4")
    refreshed(walks, "odd", Action.DIFFERENTIAL, "FIXPOINT")
    assert_walks(walks)
    # a definition whose rounds do not end changes nothing either
    walks.stream("numbers", "SELECT DISTINCT src AS i FROM edges")
    with refused(Code.RECURSION_LIMIT, "numbers"):
        walks.ms.alter_stream_table("numbers", query="SELECT src AS i FROM edges UNION SELECT i + 1 FROM numbers")
    walks.refresh("numbers", Action.NO_DATA)
    bounded = "SELECT src AS i FROM edges UNION SELECT i + 1 FROM numbers WHERE i < 6"
    walks.ms.alter_stream_table("numbers", query=bounded)
    assert sorted(walks.rows("numbers")) == [(i,) for i in range(1, 7)]
    walks.sql("DELETE FROM edges WHERE src < 3")
    walks.refresh("numbers", Action.DIFFERENTIAL)
    assert sorted(walks.rows("numbers")) == [(i,) for i in range(3, 7)]


def test_breaking_the_cycle(walks: Lake) -> None:
    """Each table is then maintained by itself again."""
    assert "even, odd" in " ".join(walks.ms.explain("even").reasons)
    walks.ms.alter_stream_table("odd", query="SELECT DISTINCT src, dst FROM edges WHERE src > 1")
    assert walks.ms.dag().cycles == ()
    walks.queries["odd"] = "SELECT DISTINCT src, dst FROM edges WHERE src > 1"
    walks.refresh("even", Action.REINITIALIZE)
    walks.insert("edges", "3, 2, 'd'")
    walks.refresh("even", Action.DIFFERENTIAL)
    walks.assert_exact("odd")
    assert walks.rows("even").keys() == {(1, 1), (1, 3), (2, 2), (3, 1), (3, 3)}


def test_verify_notices_rows_that_support_each_other(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the restart from empty, a deleted pair stays: each table would accept it over the other."""
    lake.table("pairs", "x INT, y INT", "1, 2", "3, 4")
    lake.stream("there", "SELECT DISTINCT x, y FROM pairs")
    lake.stream("back", "SELECT y AS x, x AS y FROM there")
    there = "SELECT x, y FROM pairs UNION SELECT y, x FROM back"
    lake.ms.alter_stream_table("there", query=there)

    def always_from_stored(facts: CycleFacts) -> CycleChoice:
        return CycleChoice(choose_for_cycle(facts).choice, Start.STORED)

    with monkeypatch.context() as patched:
        patched.setattr(cycle_plan, "choose_for_cycle", always_from_stored)
        lake.sql("DELETE FROM pairs WHERE x = 1")
        lake.ms.refresh_stream_table("there")
    assert lake.rows("there").keys() == {(1, 2), (3, 4)}
    assert lake.rows("there").keys() == {tuple(row) for row in lake.ms.spark.sql(there).collect()}
    for name in ("there", "back"):
        verdict = lake.ms.verify(name)
        assert (verdict.ok, verdict.missing, verdict.extra) == (False, 0, 1)
    lake.ms.refresh_stream_table("back", mode="FULL")
    assert lake.ms.verify("there").ok
    assert lake.rows("back").keys() == {(4, 3)}


def test_refusals(lake: Lake, tmp_path: Path) -> None:
    lake.table("t", "a INT, b INT", "1, 2")
    lake.stream("m", "SELECT DISTINCT a, b FROM t")
    lake.stream("counted", "SELECT a, CAST(COUNT(*) AS INT) AS b FROM m GROUP BY a")
    lake.stream("n", "SELECT a, b FROM m WHERE a > 0")
    for query, words in (
        ("SELECT a, b FROM counted", ("counted", "aggregates")),
        ("SELECT a, b FROM t UNION ALL SELECT b, a FROM n", ("m", "UNION ALL")),
        ("SELECT DISTINCT t.a, n.b FROM t LEFT JOIN n ON t.a = n.a", ("outer join",)),
    ):
        with refused(Code.NOT_MONOTONE, *words):
            lake.ms.alter_stream_table("m", query=query)
    lake.ms.alter_stream_table("m", query="SELECT a, b FROM t UNION SELECT b, a FROM n")
    with refused(Code.NOT_MONOTONE, "FULL"):
        lake.ms.alter_stream_table("n", refresh_mode="FULL")
    lake.ms.close()
    with open_lake(lake.root, allow_circular=False) as strict:
        assert strict.ms.refresh_stream_table("n").action is Action.NO_DATA  # what exists goes on
        strict.ms.create_stream_table("self", "SELECT DISTINCT a, b FROM t")
        with pytest.raises(MillstreamError) as caught:
            strict.ms.alter_stream_table("self", query="SELECT a, b FROM t UNION SELECT b, a FROM self")
        assert caught.value.code is Code.CYCLE
        assert "allow_circular" in (caught.value.hint or "")
