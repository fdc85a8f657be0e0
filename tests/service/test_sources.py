"""What `sources()` says of captured tables: how each of them is doing, which is not always how the others are."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import millstream
from kits.tick_tables import Owner, both, kit, owner
from millstream.catalog.attached import CaptureMode
from millstream.results import SourceStatus

if TYPE_CHECKING:
    from kits.capture import Kit

__all__ = ["both", "kit", "owner"]
pytestmark = pytest.mark.postgres


def sources(kit: Kit) -> dict[str | None, SourceStatus]:
    with millstream.connect(kit.root) as ms:
        return {s.table: s for s in ms.sources()}


def long_ago(kit: Kit) -> None:
    """The last tick that found something was an hour ago."""
    reached_at = kit.database.reached_at
    assert reached_at is not None
    kit.catalog.put_database(replace(kit.database, reached_at=reached_at - timedelta(hours=1)))


@pytest.mark.parametrize(
    ("statement", "state", "reason"),
    [
        ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "BEHIND", "PRIVILEGE_MISSING"),
        ("ALTER TABLE t DROP v", "STALE", "lost its column v"),
        ("DROP TABLE t", "MISSING", "dropped or renamed"),
    ],
)
def test_a_table_that_is_not_followed(both: Kit, owner: Owner, statement: str, state: str, reason: str) -> None:
    long_ago(both)
    before = both.database.position
    assert before is not None
    owner.execute(statement)
    for _ in range(2):
        owner.execute("UPDATE bag SET v = v || 'x'")
        both.tick("bag")
    found = sources(both)
    t, bag = found["shop.public.t"], found["shop.public.bag"]
    assert t.state == state
    assert t.reason is not None
    assert reason in t.reason
    assert t.position == before["snapshot"] != bag.position
    assert t.staleness is not None
    assert t.staleness > 3600
    assert (bag.state, bag.reason, bag.staleness) == ("FOLLOWED", None, 0.0)


def test_a_quiet_table_is_not_stale(both: Kit, owner: Owner) -> None:
    both.tick()
    long_ago(both)
    assert {s.staleness for s in sources(both).values()} == {0.0}
    owner.execute("UPDATE bag SET v = 'waits'")
    owner.execute("CREATE TABLE elsewhere (id int)")
    found = sources(both)
    assert found["shop.public.t"].staleness == 0.0, "nothing waits for it"
    staleness = found["shop.public.bag"].staleness
    assert staleness is not None
    assert staleness > 3600
    both.tick()
    assert {s.staleness for s in sources(both).values()} == {0.0}


def test_where_nobody_can_tell(both: Kit, owner: Owner) -> None:
    """Not reached, or another database, or without buffers and with other transactions since."""
    known = both.database
    long_ago(both)
    late = both.database
    nowhere = replace(late, address="postgresql://nobody@localhost:1/none?connect_timeout=1")
    owner.execute("CREATE TABLE elsewhere (id int)")
    for database in (nowhere, replace(late, system=1), replace(late, mode=CaptureMode.WAL)):
        both.catalog.put_database(database)
        for source in sources(both).values():
            assert source.staleness is not None
            assert source.staleness > 3600
    both.catalog.put_database(known)


def test_a_table_that_is_being_loaded(both: Kit) -> None:
    both.catalog.put_database(both.database, captures=[replace(both.capture("t"), version=None)])
    found = sources(both)["shop.public.t"]
    assert (found.state, found.reason) == ("LOADING", None)


def test_what_nothing_captures_is_as_it_was_read_last(kit: Kit, owner: Owner) -> None:
    owner.execute("CREATE MATERIALIZED VIEW m AS SELECT id, v FROM t")
    kit.read("a", "m", "id", "v")
    kit.read("b", "t", "v")
    kit.tick("m", "t")
    long_ago(kit)
    owner.execute("UPDATE t SET v = 'x'")
    for _ in range(3):
        kit.tick("t")
    found = sources(kit)
    assert found["shop.public.t"].staleness == 0.0
    staleness = found["shop.public.m"].staleness
    assert staleness is not None
    assert staleness > 3600
