"""One behaviour of locks over two backends: files, and PostgreSQL's advisory locks."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kits.catalog_server import new_schema_url
from millstream.catalog import Catalog
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import FileLocks, Locks, Waiting, locks_for

HOLDER = """
import sys
from pathlib import Path
from millstream.catalog import Catalog
from millstream.lake.locks import locks_for

location, lake, *keys = sys.argv[1:]
with Catalog.open(location) as catalog, locks_for(catalog, Path(lake)).acquire(keys):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(params=["files", pytest.param("advisory", marks=pytest.mark.postgres)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "files" else new_schema_url()


@pytest.fixture
def new_locks(location: str, tmp_path: Path) -> Iterator[Callable[[], Locks]]:
    """Makes lock managers of one lake, as several processes would have them."""
    with Catalog.open(location) as catalog:
        made: list[Locks] = []

        def make() -> Locks:
            made.append(locks_for(catalog, tmp_path))
            return made[-1]

        yield make
        for locks in made:
            locks.close()


@pytest.fixture
def locks(new_locks: Callable[[], Locks]) -> Locks:
    return new_locks()


@contextmanager
def another_process(location: str, lake: Path, *keys: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds locks until its input ends."""
    command = [sys.executable, "-c", HOLDER, location, str(lake), *keys]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            if process.poll() is None:
                process.communicate("\n", timeout=30)


def is_free(locks: Locks, key: str) -> bool:
    """Asked from another thread: a thread never waits for itself."""

    def attempt() -> bool:
        try:
            with locks.acquire([key], timeout=0):
                return True
        except MillstreamError as e:
            if e.code != Code.LOCK_TIMEOUT:
                raise
            return False

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(attempt).result()


def test_a_lock_is_held_inside_the_block_only(locks: Locks) -> None:
    with locks.acquire(["a", "b"]):
        assert not is_free(locks, "a")
        assert not is_free(locks, "b")
        assert is_free(locks, "c")
    assert is_free(locks, "a")
    assert is_free(locks, "b")


def test_an_error_inside_gives_the_locks_back(locks: Locks) -> None:
    with pytest.raises(KeyError), locks.acquire(["a"]):
        raise KeyError
    assert is_free(locks, "a")


def test_two_managers_of_a_lake_exclude_each_other(new_locks: Callable[[], Locks]) -> None:
    one, two = new_locks(), new_locks()
    with one.acquire(["a"]):
        assert not is_free(two, "a")
    assert is_free(two, "a")


def test_no_lock_is_kept_when_one_of_them_is_not_to_be_had(locks: Locks) -> None:
    with locks.acquire(["b"]), ThreadPoolExecutor(1) as pool:

        def take_all() -> None:
            with locks.acquire(["a", "b", "c"], timeout=0.05):
                raise AssertionError

        with pytest.raises(MillstreamError) as caught:
            pool.submit(take_all).result()
        assert caught.value.code == Code.LOCK_TIMEOUT
        assert f"process {os.getpid()}" in caught.value.message
        assert is_free(locks, "a")
        assert is_free(locks, "c")


def test_the_timeout_is_kept(locks: Locks) -> None:
    with locks.acquire(["a"]), ThreadPoolExecutor(1) as pool:
        begin = time.monotonic()

        def wait() -> None:
            with locks.acquire(["a"], timeout=0.2):
                raise AssertionError

        with pytest.raises(MillstreamError):
            pool.submit(wait).result()
        assert 0.2 <= time.monotonic() - begin < 5


def test_a_thread_that_would_wait_for_itself_is_reported(locks: Locks) -> None:
    with locks.acquire(["a"]), pytest.raises(RuntimeError, match="already"), locks.acquire(["b", "a"]):
        raise AssertionError
    with locks.acquire(["a"]), locks.acquire(["b"]):
        pass


def test_threads_never_overlap(locks: Locks) -> None:
    inside: list[str] = []

    def work(number: int) -> None:
        keys = ["a", "b", "c"][: 1 + number % 3]
        for _ in range(10):
            with locks.acquire(reversed(keys)):  # whatever order they are asked for in
                assert "a" not in inside
                inside.append("a")
                time.sleep(0.0005)
                inside.remove("a")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


def test_opposite_orders_do_not_deadlock(locks: Locks) -> None:
    def work(keys: list[str]) -> None:
        for _ in range(30):
            with locks.acquire(keys, timeout=60):
                pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [["a", "b", "c"], ["c", "b", "a"], ["b", "c"], ["c", "a"]]))


def test_whoever_waits_is_reported_for_whom(locks: Locks, location: str, tmp_path: Path) -> None:
    seen: list[Waiting] = []
    with another_process(location, tmp_path, "a") as process:
        assert process.stdin is not None

        def on_wait(waiting: Waiting) -> None:
            seen.append(waiting)
            if len(seen) == 2:
                process.stdin.write("\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]

        with locks.acquire(["a"], timeout=60, on_wait=on_wait):
            pass
    assert [(w.key, w.holder_pid, w.holder_host) for w in seen[:2]] == [("a", process.pid, socket.gethostname())] * 2
    assert seen[0].waited_seconds < seen[1].waited_seconds


def test_nobody_is_reported_when_there_is_nothing_to_wait_for(locks: Locks) -> None:
    seen: list[Waiting] = []
    with locks.acquire(["a"], on_wait=seen.append):
        pass
    assert seen == []


def test_the_locks_of_a_killed_process_are_free(locks: Locks, location: str, tmp_path: Path) -> None:
    with another_process(location, tmp_path, "a", "b") as process:
        assert not is_free(locks, "a")
        process.send_signal(signal.SIGKILL)
        begin = time.monotonic()
        with locks.acquire(["a", "b"], timeout=60):
            assert time.monotonic() - begin < 20
        process.wait()


def test_a_waiting_thread_gets_the_lock_soon(locks: Locks) -> None:
    released: list[float] = []
    got: list[float] = []

    def wait() -> None:
        with locks.acquire(["a"], timeout=60):
            got.append(time.monotonic())

    with locks.acquire(["a"]):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        released.append(time.monotonic())
    thread.join()
    assert got[0] - released[0] < 5


def test_lock_files_are_empty_while_nobody_holds_them(tmp_path: Path) -> None:
    locks = Locks(FileLocks(tmp_path / ".locks"))
    with locks.acquire(["a"]):
        assert str(os.getpid()) in (tmp_path / ".locks" / "a.lock").read_text()
    assert (tmp_path / ".locks" / "a.lock").read_text() == ""


def test_a_lock_file_deleted_meanwhile_is_made_anew(tmp_path: Path) -> None:
    locks = Locks(FileLocks(tmp_path))
    with locks.acquire(["a"]):
        (tmp_path / "a.lock").unlink()
    with locks.acquire(["a"]):
        assert not is_free(Locks(FileLocks(tmp_path)), "a")


def test_a_file_deleted_between_opening_and_locking_it_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, calls = fcntl.flock, []

    def delete_and_lock(descriptor: int, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            (tmp_path / "a.lock").unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", delete_and_lock)
    locks = Locks(FileLocks(tmp_path))
    with locks.acquire(["a"], timeout=5):
        assert len(calls) == 2
        assert not is_free(locks, "a")


@pytest.mark.parametrize("key", ["", "../a", "a/b", "a b", "a\n"])
def test_a_key_is_no_path(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="invalid lock key"), Locks(FileLocks(tmp_path)).acquire([key]):
        raise AssertionError


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    locks = Locks(FileLocks(tmp_path / "file" / ".locks"))
    with pytest.raises(MillstreamError) as caught, locks.acquire(["a"]):
        raise AssertionError
    assert caught.value.code == Code.LAKE_UNWRITABLE


def test_shared_holders_do_not_wait_for_each_other(new_locks: Callable[[], Locks]) -> None:
    first, second = new_locks(), new_locks()
    with first.acquire(["own-1"], shared=["common"]), second.acquire(["own-2"], timeout=0, shared=["common"]):
        pass


def test_a_shared_lock_and_an_exclusive_one_exclude_each_other(new_locks: Callable[[], Locks]) -> None:
    first, second = new_locks(), new_locks()
    for held, wanted in ((["k"], []), ([], ["k"])):
        with first.acquire(held, shared=[k for k in ["k"] if k not in held]):
            with (
                pytest.raises(MillstreamError) as caught,
                second.acquire(wanted, timeout=0, shared=["k"] if held else []),
            ):
                pass
            assert caught.value.code is Code.LOCK_TIMEOUT
    with second.acquire(["k"], timeout=0):
        pass  # all of them were released


def test_a_key_that_is_asked_for_both_ways_is_exclusive(new_locks: Callable[[], Locks]) -> None:
    first, second = new_locks(), new_locks()
    with first.acquire(["k"], shared=["k"]), pytest.raises(MillstreamError), second.acquire([], 0, shared=["k"]):
        pass


def test_a_thread_may_not_share_what_it_holds_alone(locks: Locks) -> None:
    with locks.acquire(["k"]), pytest.raises(RuntimeError), locks.acquire([], shared=["k"]):
        pass
