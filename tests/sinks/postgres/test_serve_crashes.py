"""A process that serves is killed, and a server that is served to crashes: the table is at the version it says."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from kits.paths import environment
from kits.serving import BAG, KEYED, LEDGER, Table, connected, served
from kits.shops import Shop, new_shop
from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.serve import PostgresSink
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

SLOW = (
    "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$",
    "CREATE TRIGGER slow AFTER INSERT ON public.totals FOR EACH {} EXECUTE FUNCTION public.slow()",
)
PROGRAM = """
    import sys, pickle
    from kits.serving import LEDGER
    from psycopg import connect
    from millstream.sinks.postgres.serve import PostgresSink
    target, mark, feed, conninfo = pickle.load(open({given!r}, "rb"))
    with connect(conninfo, autocommit=True) as connection:
        PostgresSink(connection, LEDGER).serve(target, mark, feed)
"""


def process(t: Table, tmp_path: Path) -> subprocess.Popen[bytes]:
    """Serve in another process."""
    given = tmp_path / "given"
    given.write_bytes(pickle.dumps((t.target, t.mark, t.feed, t.shop.address.conninfo())))
    text = textwrap.dedent(PROGRAM).format(given=str(given))
    return subprocess.Popen([sys.executable, "-c", text], env=environment())


def wait_until_sleeping(t: Table) -> None:
    deadline = time.monotonic() + 20
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    while t.run(query) == [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def version(t: Table) -> object:
    return t.run("SELECT version FROM millstream.serving")[0][0]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("schema_key", [(KEYED, ["k"]), (KEYED, None)], ids=["keyed", "bag"])
def test_killed_half_way(shop: Shop, tmp_path: Path, full: bool, schema_key: tuple[object, list[str] | None]) -> None:
    t = served(shop, *schema_key)  # type: ignore[arg-type]
    t.serve((1, 10), (2, 20))
    t.run(*(s.format("STATEMENT") for s in SLOW))
    t.put((1, 11), (3, 30), full=full)
    running = process(t, tmp_path)
    wait_until_sleeping(t)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    t.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    assert t.rows() == Counter([(1, 10), (2, 20)])
    assert version(t) == 1
    assert t.run("SELECT tgenabled FROM pg_trigger WHERE tgname = 'slow'") == [("O",)]
    t.run("DROP TRIGGER slow ON public.totals")
    assert t.again().mode == ("FULL" if full else "DIFFERENTIAL")
    assert t.rows() == Counter([(1, 11), (3, 30)])
    assert version(t) == 2


def test_applied_and_not_told(shop: Shop) -> None:
    """The commit was made and the answer never came: serving again finds the version and does nothing."""
    t = served(shop, BAG, None)
    t.serve(("a", 1))
    t.put(("a", 1), ("a", 1))
    with connected(shop) as connection:
        transaction = connection.transaction

        @contextmanager
        def breaking() -> Iterator[None]:
            with transaction():
                yield
            connection.close()
            raise psycopg.OperationalError("the connection is lost")

        connection.transaction = breaking  # type: ignore[method-assign,assignment]
        with pytest.raises(MillstreamError) as caught:
            PostgresSink(connection, LEDGER).serve(t.target, t.mark, t.feed)
    assert caught.value.code is Code.DATABASE_UNREACHABLE
    assert t.rows() == Counter([("a", 1), ("a", 1)])
    assert t.again().mode == "NONE"
    assert t.rows() == Counter([("a", 1), ("a", 1)])


def test_the_server_crashes_half_way(tmp_path: Path) -> None:
    with Server() as server:  # with fsync: what was committed stays
        t = served(new_shop(server), KEYED, None)
        t.serve((1, 10), (1, 10))
        t.run(*(s.format("STATEMENT") for s in SLOW))
        t.put((1, 10), (3, 30))
        running = process(t, tmp_path)
        wait_until_sleeping(t)
        server.stop("immediate")
        assert running.wait() != 0
        server.start()
        assert t.rows() == Counter([(1, 10), (1, 10)])
        t.run("DROP TRIGGER slow ON public.totals")
        assert t.again().mode == "DIFFERENTIAL"
        assert t.rows() == Counter([(1, 10), (3, 30)])


def test_two_at_once_apply_once(shop: Shop) -> None:
    """A second server waits for the first one, and finds its work done."""
    t = served(shop, BAG, None)
    t.serve(("a", 1))
    t.run(SLOW[0].replace("60", "0.5"), SLOW[1].format("STATEMENT"))
    t.put(("a", 1), ("a", 1))
    modes: list[str] = []
    threads = [threading.Thread(target=lambda: modes.append(t.again().mode)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(modes) == ["DIFFERENTIAL", "NONE", "NONE"]
    assert t.rows() == Counter([("a", 1), ("a", 1)])
