"""Looks at a database although no reader is due: what changes there is noticed, and idle looks cost nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from kits.capture import Kit, quarantine_code
from kits.quarantine import restless
from kits.shops import Shop
from kits.tick_tables import Owner, both, kit, owner
from millstream import Code, MillstreamError
from millstream.capture.backlog import Backlog, BacklogLimits, backlog_events
from millstream.capture.captures import Look, Read
from millstream.capture.outages import Outages
from millstream.catalog.attached import AttachedDatabase
from millstream.events import EventName
from millstream.sources.postgres.load import exported_snapshot
from millstream.sources.postgres.server.snapshot_transaction import database_state

__all__ = ["both", "kit", "owner", "restless"]

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
LIMITS = BacklogLimits(wal_bytes=100, buffer_rows=10)


def state(kit: Kit, shop: Shop) -> tuple[AttachedDatabase, str]:
    with shop.connect() as connection:
        return kit.database, database_state(connection).snapshot


@pytest.mark.postgres
class TestDatabase:
    def test_an_idle_database_is_not_written_to_and_neither_is_the_catalog(self, both: Kit, shop: Shop) -> None:
        both.captures.watch("shop")
        before = state(both, shop)
        assert [both.captures.watch("shop") for _ in range(3)] == [Look.IDLE] * 3
        assert state(both, shop) == before

    def test_changes_are_landed_and_buffers_trimmed(self, both: Kit, owner: Owner, shop: Shop) -> None:
        owner.execute("INSERT INTO t SELECT i, 'w', i FROM generate_series(100, 150) i")
        assert both.captures.watch("shop") is Look.TICKED
        both.assert_exact(owner, "t", "bag")
        assert both.captures.backlog("shop", replace(LIMITS, buffer_rows=1)).buffered_rows in ({}, {"public.t": 0})

    def test_what_a_tick_did_is_logged(self, both: Kit, owner: Owner, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "millstream.capture")
        owner.execute("INSERT INTO t VALUES (100, 'w', 1)")
        while both.captures.watch("shop") is not Look.IDLE:
            pass
        ticks = [r for r in caplog.records if hasattr(r, "millstream_tick")]
        first, last = ticks[0], ticks[-1]
        assert (first.levelno, last.levelno) == (logging.INFO, logging.DEBUG)
        assert "landed changes of shop.public.t" in first.getMessage()
        assert first.millstream_tick["landed"] == ["shop.public.t"]
        assert last.millstream_tick["is_idle"]

    def test_a_dropped_table_is_noticed(self, both: Kit, owner: Owner) -> None:
        owner.execute("DROP TABLE t")
        both.captures.watch("shop")
        assert both.capture("t").state.missing
        assert [e.event for e in both.catalog.events(limit=9)] == [EventName.REINITIALIZE_NEEDED]

    def test_a_database_that_is_being_ticked_is_left_alone(self, both: Kit, owner: Owner) -> None:
        owner.execute("INSERT INTO t SELECT i, 'w', i FROM generate_series(100, 150) i")
        with ticking(both):
            assert both.captures.watch("shop") is Look.BUSY
            backlog = both.captures.backlog("shop", LIMITS)
        assert backlog.buffered_rows == {"public.t": 11}  # counted no further than needed
        [event], reported = backlog_events("shop", backlog, frozenset(), LIMITS, NOON)
        assert event.event is EventName.BUFFER_GROWTH_WARNING
        assert (event.fields["source_table"], event.fields["threshold_rows"]) == ("public.t", 10)
        assert both.captures.watch("shop") is Look.TICKED
        assert backlog_events("shop", both.captures.backlog("shop", LIMITS), reported, LIMITS, NOON) == (
            [],
            frozenset(),
        )

    def test_a_lock_that_quarantined_a_table_is_released(
        self, both: Kit, owner: Owner, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is written, so no tick for others would try it again."""
        monkeypatch.setattr(exported_snapshot, "_LOCK_TIMEOUT", "200ms")
        owner.execute("VACUUM FULL t")
        with psycopg.connect(shop.server.url(shop.name), autocommit=False) as other:
            other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            both.captures.watch("shop")
            assert quarantine_code(both.capture("t")) == Code.LOCK_TIMEOUT
            other.rollback()
        until(lambda: both.captures.watch("shop") and quarantine_code(both.capture("t")) is None)
        both.assert_exact(owner, "t", "bag")

    def test_nothing_captured_is_nothing_to_look_at(self, kit: Kit) -> None:
        assert kit.captures.watch("shop") is Look.NOTHING_CAPTURED

    def test_an_outage_is_refused_at_once_to_those_who_do_not_wait(self, both: Kit, shop: Shop) -> None:
        address = both.database.address
        both.catalog.put_database(replace(both.database, address=address.replace(shop.name, "nowhere")))
        both.captures._connections.disconnect("shop")
        with pytest.raises(MillstreamError) as caught:
            both.captures.watch("shop")
        assert caught.value.code is Code.DATABASE_UNREACHABLE
        readers = {"a": Read(frozenset({"shop.public.t"}))}
        started = time.monotonic()
        for _ in range(100):
            refused = both.captures.advance(readers, is_waiting=False).refused
            assert refused["a"].code is Code.DATABASE_UNREACHABLE
        assert time.monotonic() - started < 1
        both.catalog.put_database(replace(both.database, address=address))
        assert both.captures.watch("shop") in (Look.IDLE, Look.TICKED)
        assert not both.captures.advance(readers, is_waiting=False).refused


def test_an_outage_is_forgotten_after_a_while() -> None:
    now = [0.0]
    outages = Outages(lambda: now[0])
    outages.note("shop", MillstreamError(Code.LOCK_TIMEOUT, "busy"))
    outages.refuse("shop")
    outages.note("shop", MillstreamError(Code.DATABASE_UNREACHABLE, "gone"))
    with pytest.raises(MillstreamError):
        outages.refuse("shop")
    now[0] = 121.0
    outages.refuse("shop")


def test_a_backlog_around_its_limit_is_one_occurrence() -> None:
    reported, raised = frozenset[str](), list[int]()
    for wal in (50, 101, 90, 101, 51, 120, 50, 101):
        backlog = Backlog("slot", retained_wal_bytes=wal, lag_bytes=wal // 2)
        events, reported = backlog_events("shop", backlog, reported, LIMITS, NOON)
        raised += [wal for _ in events]
    assert raised == [101, 101]
    assert events[0].fields == {
        "slot_name": "slot", "retained_wal_bytes": 101, "lag_bytes": 50, "threshold_bytes": 100
    }  # fmt: skip
    assert events[0].database == "shop"


@contextmanager
def ticking(kit: Kit) -> Iterator[None]:
    """Another thread holds the database, as a long tick would."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with kit.captures._access.ticking("shop"):
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        yield
    finally:
        release.set()
        thread.join(30)


def until(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + timedelta(seconds=30).total_seconds()
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
