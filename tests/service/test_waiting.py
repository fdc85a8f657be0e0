"""Read your writes: a real lake over a real PostgreSQL, captured by triggers and from its WAL."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import millstream
from kits.daemon import running, until
from kits.lake import open_lake
from kits.shops import MILLSTREAM, OWNER, Shop, new_shop
from kits.wal_shops import REPLICATOR, new_owned_wal_shop
from millstream import Code, MillstreamError
from millstream.cli.main import main
from millstream.testing.postgres_server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

Writer = psycopg.Connection[tuple[Any, ...]]


@dataclass
class Captured:
    """A lake over a database, and how to write to it."""

    ms: millstream.Millstream
    shop: Shop
    role: str

    @contextmanager
    def writer(self, *, autocommit: bool = True) -> Iterator[Writer]:
        with psycopg.connect(self.shop.server.url(self.shop.name, self.role), autocommit=autocommit) as connection:
            yield connection

    def shown(self, name: str = "small") -> set[int]:
        return {row[0] for row in self.ms.table(name).collect()}

    def refreshes(self, name: str = "small") -> int:
        return len(self.ms.refresh_history(name, limit=1_000))


@pytest.fixture(scope="module", params=["trigger", "wal"])
def captured(
    request: pytest.FixtureRequest, spark: SparkSession, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Captured]:
    is_wal = request.param == "wal"
    shop, role = (new_owned_wal_shop(server), REPLICATOR) if is_wal else (new_shop(server), OWNER)
    with millstream.connect(tmp_path_factory.mktemp(request.param) / "lake") as ms:
        found = Captured(ms, shop, role)
        with found.writer() as writer:
            writer.execute("CREATE TABLE t (k int PRIMARY KEY)")
            writer.execute("INSERT INTO t VALUES (1)")
            if not is_wal:
                writer.execute(f"GRANT CREATE ON SCHEMA public TO {MILLSTREAM}")
        ms.attach("shop", shop.server.url(shop.name, role if is_wal else MILLSTREAM), cdc=request.param)
        ms.create_stream_table("small", "SELECT k FROM shop.public.t WHERE k < 1000", schedule="1h")
        ms.create_stream_table("chain", "SELECT k FROM small WHERE k > 0", schedule="1h")
        if is_wal:
            until(lambda: ms.refresh_stream_table("small") and ms.sources()[0].mode == "WAL")
        yield found


def xid_of(writer: Writer) -> int:
    row = writer.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return int(row[0])


def lsn_of(writer: Writer) -> str:
    row = writer.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def test_transactions_are_shown_in_the_order_of_their_commits(captured: Captured) -> None:
    """The older one commits later: neither its id nor that the younger one is shown says anything about it."""
    ms = captured.ms
    with captured.writer(autocommit=False) as older, captured.writer(autocommit=False) as younger:
        older.execute("INSERT INTO t VALUES (10)")
        first = xid_of(older)
        younger.execute("INSERT INTO t VALUES (11)")
        second = xid_of(younger)
        assert first < second
        younger.commit()
        ms.wait_for("small", second)
        assert 11 in captured.shown()
        assert 10 not in captured.shown()
        made = captured.refreshes()
        with pytest.raises(MillstreamError) as caught:
            ms.wait_for("small", {"shop": first}, timeout=0.5)
        assert caught.value.code is Code.WAIT_TIMEOUT
        assert captured.refreshes() == made, "nothing to show, so nothing to refresh"
        committing = threading.Timer(0.3, older.commit)
        committing.start()
        ms.wait_for("small", {"shop": first}, timeout=60)
        assert 10 in captured.shown()
        committing.join()


def test_a_transaction_that_was_rolled_back_is_not_waited_for(captured: Captured) -> None:
    with captured.writer(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (20)")
        xid = xid_of(writer)
        writer.rollback()
    captured.ms.wait_for("small", xid, timeout=60)
    assert 20 not in captured.shown()


def test_a_place_in_the_wal_and_the_present(captured: Captured) -> None:
    """While an older transaction is still open, which neither includes."""
    ms = captured.ms
    with captured.writer(autocommit=False) as open_one, captured.writer() as writer:
        open_one.execute("INSERT INTO t VALUES (30)")
        writer.execute("INSERT INTO t VALUES (31)")
        ms.wait_for("chain", lsn_of(writer), timeout=60)
        assert {30, 31} & captured.shown("chain") == {31}
        writer.execute("INSERT INTO t VALUES (32)")
        assert ms.wait_for("chain", timeout=60).name == "chain"
        assert {30, 32} & captured.shown("chain") == {32}
        open_one.rollback()
        with pytest.raises(MillstreamError) as caught:
            ms.wait_for("small", "FFFF/0", timeout=60)
        assert caught.value.code is Code.WAIT_INVALID


def test_what_is_already_shown_needs_no_refresh(captured: Captured) -> None:
    """Also when another table has brought the mirror further: the contents are those of an older version of it."""
    ms = captured.ms
    with captured.writer(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (40)")
        xid = xid_of(writer)
        writer.commit()
        ms.wait_for("chain", xid, timeout=60)
        writer.execute("INSERT INTO t VALUES (41)")
        writer.commit()
        ms.refresh_stream_table("small")
        made = captured.refreshes("chain")
        ms.wait_for("chain", xid, timeout=5)
        assert captured.refreshes("chain") == made
        assert 41 not in captured.shown("chain")


def test_a_served_table_shows_it_too(captured: Captured) -> None:
    ms = captured.ms
    ms.create_stream_table("given", "SELECT k FROM shop.public.t", schedule="1h", serve_to="shop.public.given")
    with captured.writer() as writer:
        writer.execute("INSERT INTO t VALUES (50)")
        ms.wait_for("given", lsn_of(writer), timeout=60)
        with captured.shop.connect() as reader:
            assert reader.execute("SELECT k FROM public.given WHERE k = 50").fetchall() == [(50,)]
    ms.drop_stream_table("given")


def test_a_running_process_is_waited_for(captured: Captured, tmp_path: Path) -> None:
    ms = captured.ms
    ms.alter_stream_table("chain", schedule="1s")
    with running(ms), captured.writer() as writer:
        until(lambda: ms.daemon_status().leader is not None)
        for key in (60, 61, 62):
            writer.execute("INSERT INTO t VALUES (%s)", [key])
            ms.wait_for("chain", lsn_of(writer), timeout=60)
            assert key in captured.shown("chain")
        assert ms.refresh_history("chain", limit=1)[0].initiated_by == "SCHEDULER"
    ms.alter_stream_table("chain", schedule="1h")


def test_versions_of_delta_tables(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_lake(tmp_path / "lake") as lake:
        lake.table("t", "k INT", "1")
        lake.ms.create_stream_table("low", "SELECT k FROM t", schedule="1h")
        lake.ms.create_stream_table("top", "SELECT COUNT(*) AS n FROM low", schedule="1h")
        now = lake.ms.refresh_stream_table("top").frontier["t"]
        made = len(lake.ms.refresh_history("top"))
        lake.ms.wait_for("top", now, timeout=5)
        assert len(lake.ms.refresh_history("top")) == made
        lake.insert("t", "2")
        lake.ms.wait_for("top", {"t": now + 1}, timeout=60)
        assert lake.rows("top") == {(2,): 1}
        with pytest.raises(MillstreamError) as caught:
            lake.ms.wait_for("top", {"t": now + 2}, timeout=0.2)
        assert caught.value.code is Code.WAIT_TIMEOUT
        lake.insert("t", "3")
        [row] = lake.ms.sql(f"WAIT FOR STREAM TABLE top AFTER VERSION {now + 2} IN t TIMEOUT '60s'").collect()
        assert row.name == "top"
        assert lake.rows("top") == {(3,): 1}
        lake.insert("t", "4")
        with running(lake.ms):
            until(lambda: lake.ms.daemon_status().leader is not None)
            started = time.monotonic()
            assert main(["--lake", str(lake.root), "wait", "top", "--timeout", "1s", "--json"]) == 1
            assert time.monotonic() - started < 30
            assert "WAIT_TIMEOUT" in capsys.readouterr().out  # it is due only in an hour
            lake.ms.pause()  # nothing else refreshes it any more
            assert main(["--lake", str(lake.root), "wait", "top", "--after", f"t={now + 3}"]) == 0
        assert lake.rows("top") == {(4,): 1}
        lake.ms.resume()
        for wrong in ({"low": 1}, {"u": 1}, "0/1A"):
            with pytest.raises(MillstreamError) as caught:
                lake.ms.wait_for("top", wrong)
            assert caught.value.code is Code.WAIT_INVALID
        lake.ms.sql("DROP TABLE t")
        lake.table("t", "k INT", "7")
        lake.ms.wait_for("top", timeout=60)  # its versions start over, so the old frontier is beyond them
        assert lake.rows("top") == {(1,): 1}
        lake.ms.alter_stream_table("top", status="SUSPENDED")
        lake.insert("t", "8")
        with pytest.raises(MillstreamError) as caught:
            lake.ms.wait_for("top")
        assert caught.value.code is Code.SUSPENDED
