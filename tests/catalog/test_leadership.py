"""Leadership: one leader per epoch, and no late write of an earlier one."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable
from datetime import datetime

import pytest

from kits.catalog import T0, Clock, intended, new_table, no_data, outcome, start
from millstream.catalog import Catalog, Leader, Leadership
from millstream.errors import Code, MillstreamError
from millstream.events import EventName
from millstream.results import InitiatedBy, Status


def under(catalog: Catalog, epoch: int) -> Catalog:
    """The catalog as another process has it, which leads in an epoch."""
    bound = copy.copy(catalog)
    bound.epoch = epoch
    return bound


def leader(name: str, since: datetime = T0) -> Leader:
    return Leader(id=name, host="here", pid=7, version="1.2", since=since)


def lost(call: Callable[[], object]) -> None:
    with pytest.raises(MillstreamError) as caught:
        call()
    assert caught.value.code == Code.LEADERSHIP_LOST


def test_a_new_lake_has_no_leader(catalog: Catalog) -> None:
    assert catalog.leadership() == Leadership(epoch=0, leader=None, woke_at=None, is_paused=False)


def test_each_leader_has_its_epoch(catalog: Catalog, clock: Clock) -> None:
    assert catalog.take_leadership(leader("a")) == 1
    assert catalog.leadership() == Leadership(epoch=1, leader=leader("a"), woke_at=T0, is_paused=False)
    clock.pass_seconds(5)
    assert catalog.take_leadership(leader("b", clock.now)) == 2
    assert catalog.leadership().leader == leader("b", clock.now)
    said = [(e.event, e.fields["leader"], e.fields["epoch"], e.time) for e in catalog.events()]
    assert said == [
        (EventName.LEADER_ELECTED, "a", 1, T0),
        (EventName.LEADER_LOST, "a", 1, clock.now),
        (EventName.LEADER_ELECTED, "b", 2, clock.now),
    ]


def test_a_leader_that_ends_by_itself_has_not_lost(catalog: Catalog) -> None:
    epoch = catalog.take_leadership(leader("a"))
    catalog.release_leadership(epoch)
    assert catalog.leadership() == Leadership(epoch=1, leader=None, woke_at=T0, is_paused=False)
    catalog.take_leadership(leader("b"))
    catalog.release_leadership(epoch)  # too late: it is not its leadership any more
    assert catalog.leadership().leader == leader("b")
    assert [e.event for e in catalog.events()] == [EventName.LEADER_ELECTED] * 2


def test_waking_needs_the_leadership(catalog: Catalog, clock: Clock) -> None:
    epoch = catalog.take_leadership(leader("a"))
    at = clock.pass_seconds(3)
    catalog.wake(epoch, at)
    catalog.check_epoch(epoch)
    assert catalog.leadership().woke_at == at
    catalog.take_leadership(leader("b"))
    lost(lambda: catalog.wake(epoch, at))
    lost(lambda: catalog.check_epoch(epoch))
    lost(lambda: catalog.check_epoch(epoch + 2))  # an epoch that a restored catalog does not know


def test_no_write_passes_under_an_epoch_that_has_ended(catalog: Catalog, clock: Clock) -> None:
    first = under(catalog, catalog.take_leadership(leader("a")))
    table = first.create_stream_table(new_table())
    intent = first.begin_refresh(start(table))
    second = under(catalog, catalog.take_leadership(leader("b")))
    before = catalog.list(), catalog.history(), catalog.events(), catalog.generation()
    for call in (
        lambda: first.create_stream_table(new_table("other")),
        lambda: first.alter_stream_table(table.name, status=Status.SUSPENDED),
        lambda: first.drop_stream_table(table.name),
        lambda: first.complete_refresh(intent, outcome(table)),
        lambda: first.fail_refresh(intent, MillstreamError(Code.REFRESH_FAILED, "x"), max_consecutive_errors=3),
        lambda: first.abandon_intent(intent, "x"),
        lambda: first.begin_refresh(start(table)),
        lambda: first.record_no_data(no_data(table)),
        lambda: first.record_unchanged([no_data(table)], first.generation(), clock.now),
        lambda: first.record_skip(table.id, InitiatedBy.SCHEDULER, "x"),
        lambda: first.set_error(table.id, "x"),
        lambda: first.mark_needs_reinit(table.id, "x"),
        lambda: first.record_events(catalog.events()),
        lambda: first.resolve_running(),
        lambda: first.prune_history(clock.now),
        lambda: first.prune_events(clock.now),
        lambda: first.begin_load(start(table)),
        lambda: first.drop_serving(table.id),
    ):
        lost(call)
    assert (catalog.list(), catalog.history(), catalog.events(), catalog.generation()) == before
    assert first.list() == second.list(), "reading is never refused"
    second.complete_refresh(intent, outcome(table))
    assert intended(table).table_id == catalog.history()[0].table_id


def test_every_write_of_the_catalog_checks_the_epoch() -> None:
    """A write that went to the database directly would not be refused."""
    unchecked = {"take_leadership", "check_epoch", "release_leadership", "wake", "set_paused", "_write"}
    direct = {
        name for name, method in inspect.getmembers(Catalog, inspect.isfunction)
        if "_database.write" in inspect.getsource(method)
    }  # fmt: skip
    assert direct == unchecked


def test_a_takeover_waits_for_a_write_that_has_begun(catalog: Catalog) -> None:
    first = under(catalog, catalog.take_leadership(leader("a")))
    table = first.create_stream_table(new_table())
    taken: list[int] = []
    other = threading.Thread(target=lambda: taken.append(catalog.take_leadership(leader("b"))))
    with first._write() as connection:
        other.start()
        other.join(0.3)
        assert taken == [], "the new leader must not begin before the old one's write is over"
        connection.exec_driver_sql("UPDATE ms_stream_tables SET status_reason = 'late'")
    other.join(10)
    assert taken == [2]
    assert catalog.get(table.name).status_reason == "late"


def test_threads_of_a_leader_do_not_deadlock(catalog: Catalog) -> None:
    first = under(catalog, catalog.take_leadership(leader("a")))
    tables = [first.create_stream_table(new_table(f"t{i}")) for i in range(4)]
    failures: list[BaseException] = []

    def work(mine: int) -> None:
        try:
            for _ in range(5):
                first.complete_refresh(first.begin_refresh(start(tables[mine])), outcome(tables[mine]))
                items = [no_data(t, initiated_by=InitiatedBy.SCHEDULER) for t in tables]
                first.record_unchanged(items, first.generation(), T0)
        except BaseException as e:
            failures.append(e)
            raise

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert failures == []


def test_pausing(catalog: Catalog) -> None:
    assert catalog.set_paused(True)
    assert not catalog.set_paused(True)
    assert catalog.leadership().is_paused
    assert catalog.set_paused(False)
    assert [e.event for e in catalog.events()] == [EventName.DAEMON_PAUSED, EventName.DAEMON_RESUMED]
