"""Databases that are put back to an earlier state, under the address and by the name they had."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kits.capture import Kit, has_recaptured, open_kit
from kits.shops import Shop, new_shop
from kits.tick_tables import Owner, both, kit, owner
from kits.wal_shops import REPLICATOR, WalShop, new_owned_wal_shop
from millstream.capture import mode_switch
from millstream.capture.installation import Installation
from millstream.capture.stages import clean_up
from millstream.capture.stages import read as read_stage
from millstream.catalog.attached import CaptureMode
from millstream.testing.postgres_server import FAST, LOGICAL, Server

__all__ = ["both", "kit", "owner"]
pytestmark = pytest.mark.postgres

Writer = psycopg.Connection[Any]
TABLE = "CREATE TABLE a (k int PRIMARY KEY, v int)"


@pytest.fixture
def own_server() -> Iterator[Server]:
    """One whose files can be put back."""
    with Server({**FAST, **LOGICAL}) as started:
        yield started


def copy_files(server: Server) -> Path:
    server.stop()
    copy = server.home / "copy"
    subprocess.run(["cp", "-a", str(server.data), str(copy)], check=True)
    server.start()
    return copy


def put_back(server: Server, copy: Path) -> None:
    server.stop()
    shutil.rmtree(server.data)
    copy.rename(server.data)
    server.start()


@contextmanager
def writing(shop: Shop) -> Iterator[Writer]:
    user = REPLICATOR if isinstance(shop, WalShop) else "shop_owner"
    with psycopg.connect(shop.server.url(shop.name, user), autocommit=True) as connection:
        yield connection


def insert(shop: Shop, *keys: int) -> None:
    """Each in a transaction of its own."""
    with writing(shop) as writer:
        for key in keys:
            writer.execute("INSERT INTO a VALUES (%s, 0)", [key])


def assert_restored(kit: Kit, shop: Shop) -> None:
    """What the table holds is in the mirror, then and later, and its readers start over."""
    with writing(shop) as writer:
        kit.tick()
        kit.assert_exact(writer, "a")
        assert all("DATABASE_REPLACED" in (t.reinit_reason or "") for t in kit.catalog.list())
        said = len(kit.said)
        for _ in range(3):
            writer.execute("UPDATE a SET v = v + 1 WHERE k = 1")
            kit.tick()
            kit.assert_exact(writer, "a")
        assert not kit.said[said:]


@pytest.mark.parametrize("after", [[9], [9, 10, 11, 12, 13, 14, 15, 16]], ids=["behind", "caught up"])
def test_files_that_are_put_back(own_server: Server, tmp_path: Path, after: list[int]) -> None:
    """New transactions have the ids of lost ones, which the position counts as read."""
    shop = new_shop(own_server)
    with writing(shop) as writer:
        writer.execute(TABLE)
    with open_kit(tmp_path / "lake", shop.address) as kit:
        kit.read("r", "a", "k", "v")
        insert(shop, 1)
        kit.tick()
        copy = copy_files(own_server)
        insert(shop, 2, 3, 4)
        kit.tick()
        put_back(own_server, copy)
        insert(shop, *after)
        assert_restored(kit, shop)


@pytest.mark.parametrize("step", ["trim", "trim_quarantined"])
@pytest.mark.parametrize("again", [[2, 3, 4], range(5, 25)], ids=["the same", "others"])
def test_files_that_are_put_back_after_a_crash(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, again: Sequence[int]
) -> None:
    """The server died before or after a buffer was trimmed, and a copy of the time before was put in its place."""
    shop = new_shop(own_server)
    with writing(shop) as writer:
        writer.execute(TABLE)
    with open_kit(tmp_path / "lake", shop.address) as kit:
        kit.read("r", "a", "k", "v")
        insert(shop, 1)
        kit.tick()
        copy = copy_files(own_server)
        insert(shop, 2, 3, 4)
        with monkeypatch.context() as patched:
            patched.setattr(clean_up, step, _interrupted)
            with pytest.raises(KeyboardInterrupt):
                kit.tick()
        own_server.stop("immediate")
        own_server.start()
        put_back(own_server, copy)
        insert(shop, *again, *range(100, 120))
        assert_restored(kit, shop)


def test_files_that_are_put_back_amid_a_tick(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the changes were read, and before the mark is left: it would hide that the files are older."""
    shop = new_shop(own_server)
    with writing(shop) as writer:
        writer.execute(TABLE)
    with open_kit(tmp_path / "lake", shop.address) as kit:
        kit.read("r", "a", "k", "v")
        insert(shop, 1)
        kit.tick()
        copy, read, calls = copy_files(own_server), read_stage.read_buffers, list[str]()
        insert(shop, 2, 3, 4)
        kit.tick()
        insert(shop, 5)
        kit.captures._connections.close()

        def late(*arguments: Any) -> Any:
            reading = read(*arguments)
            if not calls:
                calls.append("read")
                put_back(own_server, copy)
                insert(shop, *range(10, 40))
            return reading

        monkeypatch.setattr(read_stage, "read_buffers", late)
        kit.tick()
        assert calls
        assert_restored(kit, shop)


def test_files_of_the_time_before_the_first_tick(own_server: Server, tmp_path: Path) -> None:
    shop = new_shop(own_server)
    with writing(shop) as writer:
        writer.execute(TABLE)
    with open_kit(tmp_path / "lake", shop.address) as kit:
        kit.read("r", "a", "k", "v")
        copy = copy_files(own_server)
        insert(shop, 2, 3, 4)
        kit.tick()
        put_back(own_server, copy)
        insert(shop, *range(10, 30))
        assert_restored(kit, shop)


def test_files_that_are_put_back_under_the_wal(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode_switch, "_SURVEY_SECONDS", 0.0)
    shop = new_owned_wal_shop(own_server)
    with writing(shop) as writer:
        writer.execute(TABLE)
    with open_kit(tmp_path / "lake", shop.address, cdc="auto") as kit:
        kit.read("r", "a", "k", "v")
        insert(shop, 1)
        _until_wal(kit, lambda: insert(shop, *_next(kit)))
        copy = copy_files(own_server)
        insert(shop, 102, 103, 104)
        kit.tick()
        assert kit.database.mode is CaptureMode.WAL
        put_back(own_server, copy)
        insert(shop, 109)
        monkeypatch.setattr(mode_switch, "_SURVEY_SECONDS", 600.0)
        kit.catalog.put_database(replace(kit.database, cdc="trigger"))
        assert_restored(kit, shop)


def _next(kit: Kit) -> list[int]:
    return [kit.database.last_tick + 10]


def _until_wal(kit: Kit, write: Callable[[], None]) -> None:
    for _ in range(60):
        write()
        kit.tick()
        if kit.database.mode is CaptureMode.WAL:
            return
    raise AssertionError(kit.database.state)


def test_a_restore_is_not_forgotten_by_a_tick_that_fails(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later there are as many transactions as there were, and nothing shows it any more."""
    shop = new_shop(own_server)
    with writing(shop) as writer:
        writer.execute(TABLE)
    with open_kit(tmp_path / "lake", shop.address) as kit:
        kit.read("r", "a", "k", "v")
        kit.tick()
        copy = copy_files(own_server)
        insert(shop, 2, 3, 4)
        kit.tick()
        put_back(own_server, copy)
        with monkeypatch.context() as patched:
            patched.setattr(Installation, "capture", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                kit.tick()
        insert(shop, *range(10, 20))
        assert_restored(kit, shop)


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_server_that_is_only_restarted(own_server: Server, tmp_path: Path) -> None:
    shop = new_shop(own_server)
    with writing(shop) as writer:
        writer.execute(TABLE)
    with open_kit(tmp_path / "lake", shop.address) as kit:
        kit.read("r", "a", "k", "v")
        for key, mode in enumerate(("fast", "immediate")):
            insert(shop, key)
            kit.tick()
            own_server.stop(mode)
            own_server.start()
            insert(shop, key + 10)
            kit.tick()
            with writing(shop) as writer:
                kit.assert_exact(writer, "a")
        assert not has_recaptured(kit.said)
        assert not any(t.reinit_reason for t in kit.catalog.list())


def test_a_copy_of_the_database_that_takes_its_name(both: Kit, owner: Owner, shop: Shop) -> None:
    backup = f"{shop.name}_backup"
    owner.close()
    both.captures.close()
    with shop.server.superuser() as superuser:
        superuser.execute(f'CREATE DATABASE "{backup}" TEMPLATE "{shop.name}"')  # type: ignore[call-overload]
        with shop.owner() as writer:
            writer.execute("DELETE FROM t WHERE id = 1")
            writer.execute("INSERT INTO bag VALUES ('a mistake', 1)")
            both.tick()
        superuser.execute(f'DROP DATABASE "{shop.name}" WITH (FORCE)')  # type: ignore[call-overload]
        superuser.execute(f'ALTER DATABASE "{backup}" RENAME TO "{shop.name}"')  # type: ignore[call-overload]
    with shop.owner() as writer:
        both.tick()
        both.assert_exact(writer, "t", "bag")
        assert all("DATABASE_REPLACED" in (t.reinit_reason or "") for t in both.catalog.list())
        writer.execute("UPDATE t SET n = n + 1")
        both.tick()
        both.assert_exact(writer, "t", "bag")
