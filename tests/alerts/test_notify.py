"""NOTIFY into real databases: who listens hears, and the next look finds nothing."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kits.capture import Kit
from kits.shops import STRANGER, Shop
from kits.tick_tables import Owner, both, kit, owner
from millstream.alerts.notify import CHANNEL, MAX_PAYLOAD_BYTES, NotifySink, payload
from millstream.capture.captures import Look
from millstream.catalog.attached import AttachedDatabase
from millstream.events import Event, EventName
from millstream.naming import TableName
from millstream.postgres.pool import ConnectionPool

__all__ = ["both", "kit", "owner"]

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
STALE = Event.of(EventName.STALE, NOON, TableName.parse("totals"), schedule="1m")
FAILED = Event.of(
    EventName.REFRESH_FAILED,
    NOON,
    TableName.parse("totals"),
    error_code="REFRESH_FAILED",
    error_message="'alice' is no",
)


class Seconds:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def heard(listener: psycopg.Connection[Any], count: int) -> list[Any]:
    found = listener.notifies(timeout=10, stop_after=count)
    return [(n.channel, json.loads(n.payload)) for n in found]


def nothing_heard(listener: psycopg.Connection[Any]) -> bool:
    return not list(listener.notifies(timeout=0.2))


@pytest.mark.postgres
class TestDatabases:
    def test_any_role_hears_what_it_may_read(self, kit: Kit, shop: Shop) -> None:
        pool = ConnectionPool()
        sink = NotifySink(kit.catalog.databases, pool)
        with psycopg.connect(shop.server.url(shop.name, STRANGER), autocommit=True) as listener:
            listener.execute(f"LISTEN {CHANNEL}")
            sink.send([STALE, FAILED])
            said = heard(listener, 2)
        failed = {k: v for k, v in FAILED.dump().items() if k != "error_message"}
        assert said == [(CHANNEL, STALE.dump()), (CHANNEL, failed)]
        assert sink.failures == 0
        pool.close()

    def test_the_next_look_is_idle(self, both: Kit, shop: Shop, owner: Owner) -> None:
        pool = both.captures._connections
        sink = NotifySink(both.catalog.databases, pool)
        while both.captures.watch("shop") is not Look.IDLE:
            pass
        settled = both.database
        for _ in range(3):
            sink.send([STALE])
            assert both.captures.watch("shop") is Look.IDLE
        assert both.database == settled, "a look that finds nothing writes nothing"
        owner.execute("INSERT INTO t VALUES (900, 'x', 1)")
        sink.send([STALE])
        assert both.captures.watch("shop") is Look.TICKED, "a write between two of ours is found"
        both.assert_exact(owner, "t", "bag")

    def test_a_transaction_that_ends_after_ours_is_found(self, both: Kit, shop: Shop, owner: Owner) -> None:
        sink = NotifySink(both.catalog.databases, both.captures._connections)
        with shop.owner() as late, late.transaction():
            late.execute("INSERT INTO t VALUES (901, 'late', 1)")
            while both.captures.watch("shop") is not Look.IDLE:
                pass
            sink.send([STALE])
            assert both.captures.watch("shop") is Look.IDLE
        assert both.captures.watch("shop") is Look.TICKED
        both.assert_exact(owner, "t", "bag")

    def test_what_another_process_sends_is_looked_at_once(self, both: Kit) -> None:
        pool = ConnectionPool()
        both.tick()
        versions, commits = both.tick(), [both.commits(t) for t in ("t", "bag")]
        NotifySink(both.catalog.databases, pool).send([STALE])
        pool.close()
        assert both.tick() == versions
        assert [both.commits(t) for t in ("t", "bag")] == commits
        both.tick()  # before PostgreSQL 17 a tick may flush the WAL by a transaction
        settled = both.database
        assert both.tick() == versions
        assert both.database == settled, "a tick that finds nothing writes nothing"

    def test_one_that_was_unreachable_gets_it_with_a_later_event(self, kit: Kit, shop: Shop) -> None:
        here, clock, pool = kit.database, Seconds(), ConnectionPool()
        gone = dataclasses.replace(here, address="postgresql://nobody@127.0.0.1:1/gone")
        other = dataclasses.replace(here, name="other")
        current: list[AttachedDatabase] = [gone, other]
        sink = NotifySink(lambda: current, pool, clock=clock)
        with psycopg.connect(shop.server.url(shop.name, STRANGER), autocommit=True) as listener:
            listener.execute(f"LISTEN {CHANNEL}")
            sink.send([STALE])
            assert heard(listener, 1) == [(CHANNEL, STALE.dump())], "the other one is notified"
            assert sink.failures == 1
            current[:] = [here]
            sink.send([dataclasses.replace(STALE, event_id=2)])
            assert nothing_heard(listener), "a connection attempt may take long: not with each event"
            assert sink.failures == 1
            clock.now += 60
            sink.send([dataclasses.replace(STALE, event_id=3)])
            assert [data["event_id"] for _, data in heard(listener, 3)] == [None, 2, 3]
            sink.send([dataclasses.replace(STALE, event_id=4)])
            assert [data["event_id"] for _, data in heard(listener, 1)] == [4]
        pool.close()


def test_a_payload_is_short_enough_whatever_it_says() -> None:
    for text in ("x" * 20_000, "ü€𐍈" * 5_000, '"\\\n' * 5_000, "\x01" * 9_000):
        event = Event.of(EventName.TABLE_QUARANTINED, NOON, database="d" * 7_000, source_table=text, reason="R: facts")
        said = payload(event)
        assert len(said.encode()) <= MAX_PAYLOAD_BYTES
        data = json.loads(said)
        assert (data["event"], data["reason"]) == ("table_quarantined", "R")
        assert data["source_table"].endswith("…")


def test_a_catalog_that_fails_is_counted(tmp_path: Path) -> None:
    from millstream.errors import Code, MillstreamError

    def databases() -> list[AttachedDatabase]:
        raise MillstreamError(Code.CATALOG_UNAVAILABLE, "gone")

    sink = NotifySink(databases, ConnectionPool())
    sink.send([STALE])
    assert sink.failures == 1
