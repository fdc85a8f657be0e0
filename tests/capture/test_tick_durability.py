"""What a database is about to forget is on the lake's disk before, and a disk that is full costs no change."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from kits.capture import Kit, open_kit
from kits.wal_shops import REPLICATOR, WalShop, new_owned_wal_shop
from millstream import Code, MillstreamError
from millstream.capture import mode_switch
from millstream.capture.stages import clean_up
from millstream.catalog import Catalog
from millstream.catalog.attached import CaptureMode
from millstream.engine.storage.files import deletion_vector
from millstream.engine.storage.write import commit, direct_commit
from millstream.testing.postgres_server import Server

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(sys.platform != "linux", reason="looks up in /proc which file a descriptor is of"),
]

Writer = psycopg.Connection[Any]


@pytest.fixture
def shop(server: Server) -> WalShop:
    return new_owned_wal_shop(server)


@pytest.fixture
def writer(shop: WalShop) -> Iterator[Writer]:
    with psycopg.connect(shop.server.url(shop.name, REPLICATOR), autocommit=True) as connection:
        connection.execute("CREATE TABLE a (k int PRIMARY KEY, v int, more text)")
        connection.execute("INSERT INTO a SELECT i, i, 'x' FROM generate_series(1, 50) i")
        yield connection


@pytest.fixture(params=[CaptureMode.TRIGGER, CaptureMode.WAL])
def kit(
    request: pytest.FixtureRequest, shop: WalShop, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kit]:
    monkeypatch.setattr(mode_switch, "_SURVEY_SECONDS", 0.0)
    is_wal = request.param is CaptureMode.WAL
    with open_kit(tmp_path / "lake", shop.address, cdc="auto" if is_wal else "trigger") as opened:
        opened.read("ra", "a", "k", "v", "more")
        for _ in range(60):
            writer.execute("UPDATE a SET v = v + 1 WHERE k = 1")
            opened.tick()
            if opened.database.mode is request.param:
                break
        assert opened.database.mode is request.param
        yield opened
        opened.forget("ra")


def test_what_is_landed_is_on_disk_before_it_is_forgotten(
    kit: Kit, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, levels, forgotten, named = set[str](), list[int](), list[bool](), list[bool]()
    fsync, link, mirror = os.fsync, os.link, Path(kit.capture("a").path)

    def noted(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    @sa.event.listens_for(kit.catalog._database._engine, "commit")
    def committed(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("millstream_writes"):
            levels.append(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())

    def checked(name: str) -> None:
        forget = getattr(clean_up, name)

        def first(*arguments: Any) -> Any:
            new = {str(p) for p in mirror.rglob("*")} - before
            forgotten.append({p for p in new if ".checkpoint" not in p} <= synced and levels[-1] == 2)
            return forget(*arguments)

        monkeypatch.setattr(clean_up, name, first)

    def linked(draft: Path, target: Path) -> None:
        new = {str(p) for p in mirror.rglob("*")} - before
        named.append(str(draft) in synced and {p for p in new if "_delta_log" not in p} <= synced)
        link(draft, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "link", linked)
    checked("trim")
    checked("advance")
    for statement in ("INSERT INTO a VALUES (100, 1, 'new')", "UPDATE a SET v = 0 WHERE k < 9", "DELETE FROM a"):
        before, had = {str(p) for p in mirror.rglob("*")}, kit.commits("a")
        synced.clear()
        writer.execute(statement)
        kit.tick()
        assert kit.commits("a") > had
        kit.assert_exact(writer, "a")
        assert {str(mirror), str(mirror / "_delta_log")} <= synced
    assert forgotten == named == [True] * 3, "and the log names no file that is not"
    levels.clear()
    kit.catalog.put_database(kit.database)
    assert levels == [1], "others need not wait"


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file of this process can grow beyond the limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


STEPS = [
    (direct_commit, "write_data", 1),
    (direct_commit, "write_changes", 1),
    (deletion_vector, "write", 1),
    (commit, "put_if_absent", 1),
    (Catalog, "put_database", 1),
    (Catalog, "put_database", 2),
]


@pytest.mark.parametrize("limit", [0, 10])
def test_a_full_disk(kit: Kit, writer: Writer, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Whichever file cannot be written any more, nothing is forgotten; with space again all is as it should be."""
    for owner, name, nth in STEPS:
        step, calls = getattr(owner, name), list[int]()

        def without_space(
            *arguments: Any, step: Any = step, nth: int = nth, calls: list[int] = calls, **named: Any
        ) -> Any:
            calls.append(1)
            if len(calls) < nth:
                return step(*arguments, **named)
            with full_disk(limit):
                return step(*arguments, **named)

        writer.execute("UPDATE a SET v = v + 1, more = md5(more) WHERE k % 3 = 0")
        writer.execute("DELETE FROM a WHERE k = (SELECT min(k) FROM a)")
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, without_space)
            with pytest.raises(MillstreamError) as caught:
                kit.tick()
        assert caught.value.code in (Code.LAKE_UNWRITABLE, Code.CATALOG_FAILED), name
        writer.execute("INSERT INTO a SELECT max(k) + 1, 0, 'new' FROM a")
        kit.tick()
        kit.assert_exact(writer, "a")
    kit.assert_nothing_twice()
