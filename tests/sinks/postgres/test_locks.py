"""Readers do not wait behind a session that waits for a table's lock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from kits.serving import KEYED, LEDGER, Table, connected, served
from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres import locks
from millstream.sinks.postgres.serve import PostgresSink

if TYPE_CHECKING:
    from kits.shops import Shop
pytestmark = pytest.mark.postgres


@contextmanager
def a_report(table: Table) -> Iterator[psycopg.Connection[Any]]:
    """Somebody reads the table for a long time."""
    with table.shop.server.superuser(table.shop.name) as connection, connection.transaction():
        connection.execute("SELECT FROM public.totals")
        yield connection


def drop(table: Table, *, only_tried: bool = False) -> None:
    with connected(table.shop) as connection:
        sink = PostgresSink(connection, LEDGER)
        if only_tried:
            with sink.rehearsal():
                sink.drop(table.target, cascade=False)
        else:
            sink.drop(table.target, cascade=False)


@pytest.mark.parametrize("only_tried", [False, True])
def test_readers_do_not_wait_for_who_waits_for_a_reader(shop: Shop, only_tried: bool) -> None:
    table = served(shop, KEYED, ["k"], total=True)
    table.serve((1, 10))
    waiting = threading.Thread(target=drop, args=[table], kwargs={"only_tried": only_tried})
    with a_report(table):
        waiting.start()
        for _ in range(3):
            with shop.server.superuser(shop.name) as other:
                other.execute("SET lock_timeout = '3s'")
                while waiting.is_alive():
                    query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
                    if other.execute(query, [shop.name]).fetchone() is not None:
                        break
                assert waiting.is_alive()
                assert other.execute("SELECT * FROM public.totals").fetchall() == [(1, 10)]
    waiting.join(20)
    [(is_there,)] = table.run("SELECT to_regclass('public.totals') IS NOT NULL")
    assert is_there is only_tried


def test_a_reader_who_does_not_end(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PATIENCE_SECONDS", 1.0)
    table = served(shop, KEYED, ["k"], total=True)
    table.serve((1, 10))
    with a_report(table), pytest.raises(MillstreamError) as refused:
        drop(table)
    assert (refused.value.code, "pg_stat_activity" in str(refused.value.hint)) == (Code.LOCK_TIMEOUT, True)
    assert table.serve((1, 11)).mode == "DIFFERENTIAL"
    assert table.rows() == Counter([(1, 11)])
