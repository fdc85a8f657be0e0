"""WITH RECURSIVE on real Spark and Delta: how a change is computed depends on what changed, and is said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.lake import Lake, open_lake, refused
from millstream import Action, Code
from millstream.notices import FullRefreshWarning
from millstream.refresh import computation, execute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TREE = """
WITH RECURSIVE tree AS (
  SELECT id, name, parent_id, name AS path, 0 AS depth FROM departments WHERE parent_id IS NULL
  UNION ALL
  SELECT d.id, d.name, d.parent_id, tree.path || ' > ' || d.name, tree.depth + 1
  FROM departments d JOIN tree ON d.parent_id = tree.id
)
SELECT id, name, path, depth, parent_id FROM tree
"""
PARTS = """
WITH RECURSIVE needed(part, quantity) AS (
  SELECT part, quantity FROM parts WHERE assembly = 'car'
  UNION ALL
  SELECT p.part, n.quantity * p.quantity FROM needed n JOIN parts p ON p.assembly = n.part
)
SELECT n.part, SUM(n.quantity) AS quantity, COUNT(*) AS uses FROM needed n GROUP BY n.part
"""
REACHABLE = """
WITH RECURSIVE reachable(src, dst) AS (
  SELECT src, dst FROM edges UNION SELECT r.src, e.dst FROM reachable r JOIN edges e ON e.src = r.dst
)
SELECT * FROM reachable
"""
REACHED = """
WITH RECURSIVE reached(node) AS (
  SELECT node FROM starts UNION SELECT e.dst FROM reached r JOIN edges e ON e.src = r.node
  WHERE NOT EXISTS (SELECT 1 FROM closed c WHERE c.node = e.dst)
)
SELECT COUNT(*) AS n FROM reached
"""


@pytest.mark.long
def test_a_hierarchy_of_departments(lake: Lake) -> None:
    rows = ("1, 'Company', NULL", "2, 'Engineering', 1", "3, 'Sales', 1", "4, 'Backend', 2", "5, 'Storage', 4")
    lake.table("departments", "id INT, name STRING, parent_id INT", *rows)
    lake.stream("tree", TREE)
    lake.insert("departments", "6, 'DevOps', 2", "7, 'Frontend', 2")
    result = lake.refresh("tree", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_deleted) == (2, 0)
    assert "recursion by delta iteration" in result.reason
    lake.sql("UPDATE departments SET parent_id = 3 WHERE id = 4")
    result = lake.refresh("tree", Action.DIFFERENTIAL)
    assert (result.rows_inserted, result.rows_deleted) == (2, 2)
    assert ("Company > Sales > Backend > Storage", 3) in {(r[2], r[3]) for r in lake.rows("tree")}
    lake.sql("DELETE FROM departments WHERE id = 2", "UPDATE departments SET name = 'Selling' WHERE id = 3")
    lake.refresh("tree", Action.DIFFERENTIAL)
    assert len(lake.rows("tree")) == 4
    assert lake.last("tree").reason.endswith("recursion by delta iteration")


@pytest.mark.long
def test_a_bill_of_materials(lake: Lake) -> None:
    rows = (
        "'car', 'wheel', 4",
        "'car', 'engine', 1",
        "'wheel', 'bolt', 5",
        "'engine', 'bolt', 20",
        "'bolt', 'steel', 2",
    )
    lake.table("parts", "assembly STRING, part STRING, quantity INT", *rows)
    lake.stream("needed", PARTS)
    lake.insert("parts", "'engine', 'piston', 4", "'piston', 'bolt', 2", "'wheel', 'bolt', 5")
    lake.refresh("needed", Action.DIFFERENTIAL)
    assert ("steel", 136, 4) in lake.rows("needed")
    lake.sql("DELETE FROM parts WHERE assembly = 'wheel'", "UPDATE parts SET quantity = 6 WHERE part = 'piston'")
    lake.refresh("needed", Action.DIFFERENTIAL)
    lake.sql("DELETE FROM parts WHERE assembly = 'car'")
    lake.refresh("needed", Action.DIFFERENTIAL)
    assert not lake.rows("needed")


def closure(edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    found = set(edges)
    while more := {(a, d) for a, b in found for c, d in edges if b == c} - found:
        found |= more
    return found


def test_reachability_over_cycles(lake: Lake) -> None:
    """Spark runs no UNION in a recursion, so that the rows are computed here."""
    edges = {(1, 2), (2, 3), (3, 1), (3, 4), (5, 6)}
    lake.table("edges", "src INT, dst INT", *(f"{a}, {b}" for a, b in sorted(edges)))
    lake.ms.create_stream_table("reachable", REACHABLE, refresh_mode="DIFFERENTIAL")

    def assert_reachable() -> None:
        assert lake.ms.verify("reachable").ok
        assert lake.rows("reachable") == dict.fromkeys(closure(edges), 1)

    def change(strategy: str, come: set[tuple[int, int]] = frozenset(), go: set[tuple[int, int]] = frozenset()) -> None:
        edges.difference_update(go)
        edges.update(come)
        for a, b in go:
            lake.sql(f"DELETE FROM edges WHERE src = {a} AND dst = {b}")
        if come:
            lake.insert("edges", *(f"{a}, {b}" for a, b in come))
        result = lake.ms.refresh_stream_table("reachable")
        assert result.action == Action.DIFFERENTIAL
        assert result.reason.endswith(f"recursion by {strategy}"), result.reason
        assert_reachable()

    assert_reachable()
    change("semi-naive", come={(4, 5), (6, 6)})
    change("delete and rederive", go={(3, 1)})
    change("semi-naive", come={(6, 1)})
    change("delete and rederive", come={(4, 1), (7, 2)}, go={(1, 2)})
    change("delete and rederive", go={(2, 3), (4, 5)})
    assert lake.ms.refresh_stream_table("reachable", mode="FULL").action == Action.FULL
    assert_reachable()


@pytest.mark.long
def test_large_changes_stay_in_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "MAX_TINY_ROWS", 0)
    monkeypatch.setattr(computation, "MAX_DRIVER_ROWS", 0)
    lake.table("edges", "src INT, dst INT", "1, 2", "2, 3", "3, 2", "1, 4", "4, 3")
    lake.ms.create_stream_table("reachable", REACHABLE, refresh_mode="DIFFERENTIAL")
    steps = REACHABLE.replace(
        "SELECT src, dst FROM edges UNION", "SELECT src, dst FROM edges WHERE src < dst UNION ALL"
    )
    lake.stream("steps", steps.replace("e.src = r.dst", "e.src = r.dst AND e.src < e.dst"))
    for statement, strategy in (
        ("INSERT INTO edges VALUES (4, 5), (5, 5), (1, 2)", "semi-naive"),
        ("DELETE FROM edges WHERE src = 1 AND dst = 2", "delete and rederive"),
        ("UPDATE edges SET dst = 6 WHERE dst = 3", "delete and rederive"),
    ):
        lake.sql(statement)
        assert lake.ms.refresh_stream_table("reachable").reason.endswith(strategy)
        assert lake.ms.verify("reachable").ok
        lake.refresh("steps", Action.DIFFERENTIAL)
    assert lake.rows("reachable") == dict.fromkeys(closure({(2, 6), (3, 2), (1, 4), (4, 6), (4, 5), (5, 5)}), 1)


@pytest.mark.long
def test_an_input_that_takes_away_by_growing(lake: Lake) -> None:
    lake.table("starts", "node INT", "1")
    lake.table("closed", "node INT")
    lake.table("edges", "src INT, dst INT", "1, 2", "2, 3", "3, 2", "3, 4")
    lake.ms.create_stream_table("reached", REACHED, refresh_mode="DIFFERENTIAL")
    assert lake.rows("reached") == {(4,): 1}
    lake.insert("closed", "2")
    assert lake.ms.refresh_stream_table("reached").reason.endswith("delete and rederive")
    assert lake.rows("reached") == {(1,): 1}
    lake.sql("DELETE FROM closed")
    assert lake.ms.refresh_stream_table("reached").reason.endswith("semi-naive")
    assert lake.rows("reached") == {(4,): 1}
    assert lake.ms.verify("reached").ok


def test_a_mode_that_only_recomputes(lake: Lake) -> None:
    lake.table("edges", "src INT, dst INT", "1, 2", "2, 1", "NULL, 1")
    lake.ms.create_stream_table("reachable", REACHABLE, refresh_mode="FULL")
    assert lake.rows("reachable") == {(a, b): 1 for a in (1, 2, None) for b in (1, 2)}
    lake.sql("DELETE FROM edges WHERE src = 2")
    assert lake.ms.refresh_stream_table("reachable").action == Action.FULL
    assert lake.ms.verify("reachable").ok
    assert lake.rows("reachable") == {(1, 2): 1, (None, 1): 1, (None, 2): 1}
    step = "SELECT e.dst, r.depth + 1 FROM steps r JOIN edges e ON e.src <=> r.node + 1 WHERE r.depth < 3"
    query = f"WITH RECURSIVE steps(node, depth) AS (SELECT 0, 0 UNION {step}) SELECT * FROM steps"
    for mode in ("FULL", "DIFFERENTIAL"):
        lake.ms.create_stream_table(f"steps_{mode}", query, refresh_mode=mode)
        assert lake.rows(f"steps_{mode}") == {(0, 0): 1, (2, 1): 1}
        assert lake.ms.verify(f"steps_{mode}").ok


def test_a_cycle_under_union_all_ends_in_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with open_lake(tmp_path / "lake", max_recursion=10) as lake:
        lake.table("departments", "id INT, name STRING, parent_id INT", "1, 'a', NULL", "2, 'b', 1", "3, 'c', 2")
        lake.stream("tree", TREE)
        before = lake.rows("tree")
        # the id that 3 has too: what is below 2 is below 3, and 2 is below 3
        lake.insert("departments", "2, 'b', 3")
        with refused(Code.RECURSION_LIMIT, "max_recursion", "UNION"):
            lake.ms.refresh_stream_table("tree")
        assert lake.rows("tree") == before
        with refused(Code.RECURSION_LIMIT):
            lake.ms.refresh_stream_table("tree", mode="FULL")
        with refused(Code.RECURSION_LIMIT, "max_recursion"):  # Spark runs it itself
            lake.ms.create_stream_table("recomputed", TREE, refresh_mode="FULL")
        lake.sql("DELETE FROM departments WHERE parent_id = 3")
        lake.insert("departments", "4, 'd', 3")
        lake.refresh("tree")
        assert len(lake.rows("tree")) == 4


def test_what_is_refused(lake: Lake) -> None:
    lake.table("edges", "src INT, dst INT")
    wider = "WITH RECURSIVE r(n) AS (SELECT src FROM edges UNION ALL SELECT n + 1L FROM r WHERE n < 3) SELECT * FROM r"
    inside = f"SELECT * FROM ({REACHABLE}) q"
    for query, code in ((wider, Code.QUERY_INVALID), (inside, Code.UNSUPPORTED_SQL)):
        with refused(code):
            lake.ms.create_stream_table("refused", query)
    # what Spark can run and we cannot maintain is recomputed
    twice = (
        "WITH RECURSIVE r AS (SELECT src, dst FROM edges WHERE src < dst UNION ALL"
        " SELECT x.src, y.dst FROM r x JOIN r y ON x.dst = y.src) SELECT * FROM r"
    )
    with pytest.warns(FullRefreshWarning, match="next to another one"):
        lake.stream("twice", twice, refresh_mode="AUTO")
    with refused(Code.UNSUPPORTED_SQL, "next to another one"):
        lake.ms.create_stream_table("refused", twice, refresh_mode="DIFFERENTIAL")


def test_it_is_explained(lake: Lake) -> None:
    lake.table("edges", "src INT, dst INT")
    explained = lake.ms.validate(REACHABLE)
    assert ("recursion, UNION", "semi-naive or delete and rederive") in {
        (o.operator, o.strategy) for o in explained.operators
    }
    titles = [title for title, _ in explained.steps]
    assert any(t.startswith("net, repeated while frontier has rows") for t in titles), titles
