"""A look at many tables: it records what needs no refresh, and nothing that a pass would refresh."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import pytest

from kits.lake import FEED, open_lake
from millstream import Action
from millstream.catalog.models import ObjectKind
from millstream.catalog.pulse import Pulse
from millstream.naming import TableName
from millstream.notices import NoticeWarning
from millstream.passes.pass_request import Outcome, PassRequest
from millstream.passes.quick_look import Looked
from millstream.results import InitiatedBy

if TYPE_CHECKING:
    from kits.lake import Lake

pytestmark = pytest.mark.spark

DIAMOND = ("top", "left_", "right_", "bottom")


@pytest.fixture
def diamond(lake: Lake) -> Lake:
    """A diamond and a table beside it, which a pass of this process has checked."""
    lake.is_compared_at_end = True
    lake.table("t", "k STRING, v INT", "'a', 1", "'b', 2")
    lake.table("u", "k STRING, w INT", "'a', 10")
    lake.stream("top", "SELECT k, v FROM t WHERE v > 0")
    lake.stream("left_", "SELECT k, SUM(v) AS s FROM top GROUP BY k")
    lake.stream("right_", "SELECT COUNT(*) AS n, SUM(v) AS total FROM top")
    lake.stream("bottom", "SELECT l.k, l.s, r.n, r.total FROM left_ l CROSS JOIN right_ r")
    lake.sql("CREATE VIEW positive AS SELECT k, w FROM u WHERE w > 0")
    lake.stream("other", "SELECT k, MAX(w) AS m FROM positive GROUP BY k")
    refresh(lake)
    return lake


def refresh(lake: Lake, names: Sequence[str] | None = None, looked: Looked | None = None) -> dict[str, Outcome]:
    """A pass of the scheduler over some tables, or all, that follows a look."""
    order = [TableName.parse(name) for name in (lake.queries if names is None else names)]
    taken = looked.taken if looked is not None else None
    return lake.ms._refreshing.run_pass(PassRequest(order, InitiatedBy.SCHEDULER, taken=taken))


def look(lake: Lake, pulse: Pulse | None = None) -> Looked:
    """A look at all tables."""
    return lake.ms._runtime.quick_look.look(list(lake.queries), {}, pulse or lake.ms._catalog.pulse())


@contextmanager
def counted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The transactions of the catalog, as "read" or "write"."""
    database, found = lake.ms._catalog._database, list[str]()

    def counting(kind: str, begin: Callable[..., AbstractContextManager[object]]) -> Callable[..., object]:
        @contextmanager
        def transaction(**options: bool) -> Iterator[object]:
            found.append(kind)
            with begin(**options) as connection:
                yield connection

        return transaction

    with monkeypatch.context() as patch:
        patch.setattr(database, "read", counting("read", database.read))
        patch.setattr(database, "write", counting("write", database.write))
        yield found


def job_id(lake: Lake) -> int:
    """The number of a Spark job that is started for this."""
    context = lake.ms.spark.sparkContext
    context.setJobGroup("test", "counts jobs")
    lake.ms.spark.range(1).collect()
    return max(context.statusTracker().getJobIdsForGroup("test"))


def test_an_unchanged_lake_costs_one_read_and_one_write(diamond: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    look(diamond)
    before = {t.name: t for t in diamond.ms._catalog.list()}
    first, (row, *_) = job_id(diamond), diamond.ms.refresh_history("bottom")
    with counted(diamond, monkeypatch) as transactions:
        for _ in range(3):
            assert look(diamond).unchanged == set(diamond.queries)
    assert transactions == ["read", "write"] * 3
    assert job_id(diamond) == first + 1
    for table in diamond.ms._catalog.list():
        assert (table.frontier, table.base_frontier, table.stages) == (
            before[table.name].frontier,
            before[table.name].base_frontier,
            before[table.name].stages,
        )
    assert len({t.data_timestamp for t in diamond.ms._catalog.list()}) == 1
    extended = diamond.last("bottom")
    assert (extended.refresh_id, extended.repeats) == (row.refresh_id, row.repeats + 3)
    assert extended.reason == row.reason  # that of the passes before


def test_a_change_is_left_to_a_pass_at_the_same_time(diamond: Lake) -> None:
    diamond.insert("u", "'z', 5")
    looked = look(diamond)
    assert looked.unchanged == set(DIAMOND)
    outcomes = refresh(diamond, ["other"], looked)
    assert outcomes["other"].result is not None
    assert outcomes["other"].result.action is Action.DIFFERENTIAL
    assert len({t.data_timestamp for t in diamond.ms._catalog.list()}) == 1
    diamond.insert("t", "'a', 3")
    assert look(diamond).unchanged == {"other"}
    refresh(diamond)
    assert look(diamond).unchanged == set(diamond.queries)
    for name in diamond.queries:
        diamond.assert_exact(name)


def test_corners_of_a_diamond_agree_if_one_changes_after_the_look(diamond: Lake) -> None:
    """`side` reads `u` beside a table over `t`; a row arrives in `t` between the look and the pass."""
    diamond.stream("side", "SELECT s.k, s.s, u.w FROM left_ s JOIN u ON s.k = u.k")
    diamond.stream("both", "SELECT a.k, a.s, b.total FROM side a CROSS JOIN right_ b")
    refresh(diamond)
    diamond.insert("u", "'b', 7")
    looked = look(diamond)
    assert looked.unchanged == set(DIAMOND)
    diamond.insert("t", "'b', 40")
    outcomes = refresh(diamond, ["other", "side", "both"], looked)
    assert all(o.result is not None for o in outcomes.values())
    frontiers = {str(t.name): t.base_frontier for t in diamond.ms._catalog.list()}
    assert frontiers["both"]["t"] == frontiers["right_"]["t"] == frontiers["left_"]["t"]
    (total,) = {row.total for row in diamond.ms.table("both").collect()}
    assert total == 3  # without the row that came later, in all corners


def test_changes_that_no_version_shows(diamond: Lake) -> None:
    """A view, a table and a definition are replaced; each by another process."""
    with open_lake(diamond.root) as process:
        process.sql("CREATE OR REPLACE VIEW positive AS SELECT k, w FROM u WHERE w > 10")
        assert not look(diamond).unchanged  # a pass has to check all definitions
        refresh(diamond)
        assert not diamond.rows("other")
        refresh(diamond)  # in the generation in which `other` follows the view
        assert look(diamond).unchanged == set(diamond.queries)

        versions = process.ms._runtime.workers.here().store.version(location(process, "u"))
        process.sql("DROP TABLE u", f"CREATE TABLE u (k STRING, w INT) USING delta {FEED}")
        while process.ms._runtime.workers.here().store.version(location(process, "u")) < versions:
            process.insert("u", "'new', 99")
        assert not look(diamond).unchanged
        outcomes = refresh(diamond)
        assert diamond.rows("other") == {("new", 99): 1}, outcomes

        refresh(diamond)
        pulse = diamond.ms._catalog.pulse()
        process.ms.alter_stream_table("other", query="SELECT k, MIN(w) AS m FROM positive GROUP BY k")
        assert not look(diamond, pulse).unchanged  # although it was altered after the catalog was read
        refresh(diamond)
        refresh(diamond)
        assert look(diamond).unchanged == set(diamond.queries)
    diamond.queries["other"] = "SELECT k, MIN(w) AS m FROM u WHERE w > 10 GROUP BY k"
    diamond.assert_exact("other")


def test_a_table_replaced_behind_the_lakes_back(diamond: Lake) -> None:
    """Another program writes a table of as many versions to the same place: the catalog knows nothing of it."""
    diamond.sql(f"CREATE TABLE v (k STRING, w INT) USING delta {FEED}")
    diamond.insert("v", "'v', 77")
    old, new = location(diamond, "u"), location(diamond, "v")
    store = diamond.ms._runtime.workers.here().store
    while store.version(new) < store.version(old):
        diamond.insert("v", "'v', 78")
    refresh(diamond)
    assert look(diamond).unchanged == set(diamond.queries)
    shutil.rmtree(old)
    shutil.copytree(new, old)
    assert look(diamond).unchanged == set(DIAMOND)
    shutil.rmtree(old)
    assert look(diamond).unchanged == set(DIAMOND)


def test_tables_that_a_look_cannot_judge(diamond: Lake) -> None:
    with pytest.warns(NoticeWarning):
        diamond.stream("clock", "SELECT k, v, current_timestamp() AS at FROM t", "FULL")
    diamond.sql("CREATE TABLE plain (k STRING) USING parquet")
    diamond.stream("copied", "SELECT k FROM plain", "FULL")
    diamond.stream("full", "SELECT k, v FROM t", "FULL")
    diamond.stream("marked", "SELECT v FROM t")
    refresh(diamond)
    settled = {*DIAMOND, "other", "full", "marked"}
    assert look(diamond).unchanged == settled
    catalog = diamond.ms._catalog
    catalog.mark_needs_reinit(catalog.get(TableName.parse("marked")).id, "REINIT: for this test")
    assert look(diamond).unchanged == settled - {"marked"}


def test_whatever_a_look_finds_unchanged_a_pass_would_too(diamond: Lake) -> None:
    """Random changes; a pass over all tables follows each look, and judges it."""
    draw = random.Random(7)
    changes = [
        lambda: diamond.insert("t", f"'a', {draw.randint(-3, 9)}"),
        lambda: diamond.insert("u", f"'{draw.choice('abc')}', {draw.randint(0, 99)}"),
        lambda: diamond.sql(f"DELETE FROM u WHERE w = {draw.randint(0, 99)}"),
        lambda: diamond.ms.refresh_stream_table("left_"),
        lambda: diamond.ms.refresh_stream_table("right_"),
        lambda: diamond.ms.alter_stream_table("right_", schedule="7s"),
        lambda: None,
    ]
    found: list[int] = []
    for _ in range(12):
        for change in draw.choices(changes, k=draw.randint(0, 2)):
            change()
        looked = look(diamond)
        outcomes = refresh(diamond)
        found.append(len(looked.unchanged))
        for name in looked.unchanged:
            result = outcomes[name].result
            assert result is not None, name
            assert result.action is Action.NO_DATA, (name, result)
        if not any(o.result is None or o.result.action is not Action.NO_DATA for o in outcomes.values()):
            assert look(diamond).unchanged == set(diamond.queries)
    assert {0, 5} < set(found), found  # the changes were of many kinds


def location(lake: Lake, name: str) -> str:
    found = lake.ms._catalog.lake_object(ObjectKind.TABLE, TableName.parse(name))
    assert found is not None
    assert found.location is not None
    return found.location
