"""Checks that need processes which race, are killed, or may not write. Run as a program, so that it can fork safely.

    python process_checks.py CHECK LOCATION

Every child opens the catalog for itself: a connection does not survive a fork.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kits.catalog import intended, new_definition, new_table, no_data, outcome, reads, refreshed, start
from millstream.catalog import Catalog, LakeObject, ObjectKind, StreamTable
from millstream.catalog.database import Database
from millstream.catalog.facade import utc_now
from millstream.catalog.migrations import MIGRATIONS
from millstream.catalog.schema import metadata
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.results import Status

A, B = TableName.parse("a"), TableName.parse("b")


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    finally:  # in any case, the child does not go on with its parent's work
        traceback.print_exc()
        os._exit(1)


def exit_status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_together(works: list[Callable[[], None]]) -> None:
    """Start all children, let them go at one moment, and want all to end well."""
    go_at = time.time() + 0.05

    def at_once(work: Callable[[], None]) -> Callable[[], None]:
        def wait_and_work() -> None:
            time.sleep(max(0.0, go_at - time.time()))
            work()

        return wait_and_work

    pids = [fork(at_once(w)) for w in works]
    assert [exit_status(p) for p in pids] == [0] * len(pids)


def dump(location: str) -> dict[str, list[Any]]:
    """All that a catalog holds."""
    database = Database.at(location)
    with database.read() as connection:
        found = {t.name: sorted(map(repr, connection.execute(sa.select(t)))) for t in metadata.sorted_tables}
    database.close()
    return found


def wanted(error: MillstreamError, *codes: Code) -> None:
    if error.code not in codes:
        raise error


def migrate_at_once(location: str) -> None:
    """Eight processes open a lake that is not there yet. A few lakes: SQLite's switch to WAL collides now and then."""
    for place in [location] if "://" in location else [f"{location}/{i}" for i in range(5)]:
        run_together([lambda p=place: Catalog.open(p).close()] * 8)
        found = dump(place)
        assert len(found["ms_lake"]) == 1
        assert len(found["ms_migrations"]) == len(MIGRATIONS)


def create_at_once(location: str) -> None:
    """Six processes create the same stream table, and one of its own each: one wins, all see the rest."""
    Catalog.open(location).close()

    def create(number: int) -> None:
        with Catalog.open(location) as catalog:
            catalog.create_stream_table(new_table(f"own_{number}"))
            try:
                catalog.create_stream_table(new_table("same"))
                catalog.put_lake_object(LakeObject(kind=ObjectKind.VIEW, name=TableName.parse("winner"), text=""))
            except MillstreamError as e:
                wanted(e, Code.NAME_TAKEN)

    run_together([lambda i=i: create(i) for i in range(6)])
    with Catalog.open(location) as catalog:
        assert len(catalog.list()) == 7
        assert catalog.generation() == 8
        assert len(catalog.lake_objects()) == 1


def refresh_at_once(location: str) -> None:
    """Four processes refresh tables of their own: no two refreshes share an id, none is lost."""
    with Catalog.open(location) as catalog:
        tables = [catalog.create_stream_table(new_table(f"t{i}")) for i in range(4)]

    def refresh(table: StreamTable) -> None:
        with Catalog.open(location) as catalog:
            for _ in range(10):
                refreshed(catalog, table)
                catalog.record_no_data(no_data(table))

    run_together([lambda t=t: refresh(t) for t in tables])
    with Catalog.open(location) as catalog:
        assert sorted(r.refresh_id for r in catalog.history(limit=100)) == list(range(1, 81))


def kill_everywhere(location: str) -> None:
    """Each write is killed after each of its statements in turn: nothing of it is seen, and it can be done again."""
    with Catalog.open(location) as catalog:
        a = catalog.create_stream_table(new_table("a"))
        catalog.create_stream_table(new_table("b", reads(a)))
    broken = MillstreamError(Code.REFRESH_FAILED, "no")
    writes: dict[str, Callable[[Catalog], object]] = {
        "create": lambda c: c.create_stream_table(new_table("c", reads(a))),
        "put": lambda c: c.put_lake_object(LakeObject(kind=ObjectKind.VIEW, name=TableName.parse("v"), text="")),
        "begin": lambda c: c.begin_refresh(start(c.get(A))),
        "complete": lambda c: c.complete_refresh(c.open_intents()[0], outcome(c.get(A))),
        "no_data": lambda c: c.record_no_data(no_data(c.get(A))),
        "begin again": lambda c: c.begin_refresh(start(c.get(A))),
        "fail": lambda c: c.fail_refresh(c.open_intents()[0], broken, max_consecutive_errors=1),
        "begin once more": lambda c: c.begin_refresh(start(c.get(A))),
        "abandon": lambda c: c.abandon_intent(c.open_intents()[0], "cut short"),
        "alter": lambda c: c.alter_stream_table(A, status=Status.ACTIVE, schedule="7m"),
        "begin load": lambda c: c.begin_load(start(c.get(A))),
        "replace": lambda c: c.replace_stream_table(new_definition(c.get(A), intended(c.get(A)))),
        "drop": lambda c: c.drop_stream_table(A, cascade=True),
    }
    before = dump(location)
    for name, write in writes.items():
        points = 0
        while True:
            status = exit_status(fork(lambda w=write, n=points: killed_after(location, w, n)))  # type: ignore[misc]
            after = dump(location)
            if status == 0:
                assert after != before, name
                before = after
                break
            assert status == -signal.SIGKILL, (name, points, status)
            assert after == before, (name, points)
            points += 1
        assert points >= (2 if name == "begin load" else 3), (name, points)  # a load only takes a number
        print(f"{name}: {points} points")


def killed_after(location: str, write: Callable[[Catalog], object], statements: int) -> None:
    """Kill this process once a write has run so many statements in its transaction."""
    catalog = Catalog(Database.at(location), utc_now)
    left = statements

    def count(connection: sa.Connection, *_: object) -> None:
        nonlocal left
        if connection.get_execution_options().get("millstream_writes"):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sa.event.listen(catalog._database._engine, "after_cursor_execute", count)
    write(catalog)
    catalog.close()


def refuse_to_write(location: str) -> None:
    """A directory that may not be written: a coded error, and nothing half-made. Not as root, who may write all."""
    lake = Path(location)
    full, empty = lake / "full", lake / "empty"
    with Catalog.open(full) as catalog:
        catalog.create_stream_table(new_table("a"))
    empty.mkdir()
    for path in (full / "millstream.db", full, empty):
        path.chmod(0o444 if path.is_file() else 0o555)

    def open_each() -> None:
        if os.geteuid() == 0:
            os.setegid(65534)
            os.seteuid(65534)
        for place in (full, empty, empty / "below"):
            try:
                with Catalog.open(place) as catalog:
                    catalog.create_stream_table(new_table("b"))
            except MillstreamError as e:
                wanted(e, Code.LAKE_UNWRITABLE)
            else:
                raise AssertionError(f"{place} was written")

    assert exit_status(fork(open_each)) == 0
    assert list(empty.iterdir()) == []
    full.chmod(0o755)
    (full / "millstream.db").chmod(0o644)
    with Catalog.open(full) as catalog:
        assert [str(t.name) for t in catalog.list()] == ["a"]


def drop_while_refreshing(location: str) -> None:
    """One process drops and creates a table while others refresh it: coded errors only, never a deadlock."""
    with Catalog.open(location) as catalog:
        catalog.create_stream_table(new_table("a"))

    def refresh() -> None:
        with Catalog.open(location) as catalog:
            for i in range(40):
                try:
                    table = catalog.get(A)
                    intent = catalog.begin_refresh(start(table))
                    if i % 2:
                        catalog.abandon_intent(intent, "x")
                    else:
                        catalog.complete_refresh(intent, outcome(table))
                except MillstreamError as e:
                    wanted(e, Code.NOT_A_STREAM_TABLE, Code.REFRESH_OPEN, Code.COMMIT_CONFLICT)

    def drop_and_create() -> None:
        with Catalog.open(location) as catalog:
            for _ in range(40):
                with suppress(MillstreamError):
                    catalog.replace_stream_table(new_definition(catalog.get(A)))
                catalog.drop_stream_table(A)
                catalog.create_stream_table(new_table("a"))

    run_together([refresh, refresh, drop_and_create])


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
