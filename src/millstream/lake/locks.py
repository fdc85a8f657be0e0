"""Locks that allow one refresh of a stream table at a time, across threads and processes.

`Locks` implements the order, the waiting and the timeout; a backend holds the locks: files of the lake for an embedded
catalog (below), PostgreSQL's advisory locks for a shared one (`catalog.advisory`). The operating system or the server
releases them when their holder dies, so a crash never leaves a lock held.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from millstream.catalog import Catalog

_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05
_REPORT_EVERY_SECONDS = 0.5
_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The lock a caller is waiting for, for how long so far, and which process holds it, if that is known."""

    key: str
    waited_seconds: float
    holder_pid: int | None
    holder_host: str | None


class LockManager(Protocol):
    """The locks as their callers use them."""

    def acquire(
        self,
        keys: Iterable[str],
        timeout: float | None = None,
        on_wait: Callable[[Waiting], None] | None = None,
        *,
        shared: Iterable[str] = (),
    ) -> AbstractContextManager[None]:
        """Hold the locks of all keys inside a `with` block, those of `shared` together with others who share them."""


class LockSession(Protocol):
    """One holder of locks."""

    def try_lock(self, key: str, *, is_shared: bool = False) -> bool:
        """Take a lock if it is free; a shared one also if others share it."""

    def holder(self, key: str) -> tuple[int, str] | None:
        """The process id and host of a lock's holder."""


class LockBackend(Protocol):
    """A kind of lock."""

    def session(self) -> AbstractContextManager[LockSession]:
        """A holder that releases all its locks at the end."""

    def close(self) -> None:
        """Release what is kept between sessions."""


def locks_for(catalog: Catalog, lake: Path) -> Locks:
    """The locks for a catalog: processes that share the catalog must share the locks."""
    return Locks(FileLocks(lake / ".locks") if catalog.is_embedded else catalog.advisory_locks())


class Locks:
    """Takes several locks, always in the same order, so that two callers never wait for each other."""

    def __init__(self, backend: LockBackend) -> None:
        self._backend = backend
        self._guard = threading.Lock()
        self._holders: dict[str, int] = {}

    @contextmanager
    def acquire(
        self,
        keys: Iterable[str],
        timeout: float | None = None,
        on_wait: Callable[[Waiting], None] | None = None,
        *,
        shared: Iterable[str] = (),
    ) -> Iterator[None]:
        """Hold the locks of all keys inside a `with` block.

        Args:
            keys: ids of stream tables; letters, digits, `_` and `-`.
            timeout: seconds to wait in total; None waits forever, 0 does not wait.
            on_wait: called at once if a lock is held elsewhere, and every half second after that.
            shared: keys that other callers may share; a caller that wants one of them for itself waits.

        Raises:
            MillstreamError: `LOCK_TIMEOUT`, and no lock is held.
        """
        exclusive = set(keys)
        ordered = sorted(exclusive.union(shared))
        self._refuse_own(ordered)
        end = None if timeout is None else time.monotonic() + timeout
        with self._backend.session() as session:
            taken: list[str] = []
            try:
                for key in ordered:
                    _wait_for(session, key, end, on_wait, is_shared=key not in exclusive)
                    if key in exclusive:
                        taken.append(key)
                        with self._guard:
                            self._holders[key] = threading.get_ident()
                yield
            finally:
                with self._guard:
                    for key in taken:
                        del self._holders[key]

    def close(self) -> None:
        """Release what is kept between uses, such as connections."""
        self._backend.close()

    def _refuse_own(self, keys: list[str]) -> None:
        """Refuse locks that this thread holds: it would wait forever. That is a bug, not a user error."""
        with self._guard:
            own = [k for k in keys if self._holders.get(k) == threading.get_ident()]
        if own:
            raise RuntimeError(f"this thread already holds the lock: {own}")


def _wait_for(
    session: LockSession, key: str, end: float | None, on_wait: Callable[[Waiting], None] | None, *, is_shared: bool
) -> None:
    start = time.monotonic()
    pause, report_at = _FIRST_PAUSE_SECONDS, start
    while not session.try_lock(key, is_shared=is_shared):
        now = time.monotonic()
        if end is not None and now >= end:
            raise _timed_out(session.holder(key), now - start)
        if on_wait is not None and now >= report_at:
            pid, host = session.holder(key) or (None, None)
            on_wait(Waiting(key, now - start, pid, host))
            report_at = now + _REPORT_EVERY_SECONDS
        time.sleep(pause if end is None else min(pause, max(0.0, end - now)))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _timed_out(holder: tuple[int, str] | None, waited: float) -> MillstreamError:
    by = f" by process {holder[0]} on {holder[1]}" if holder else ""
    return MillstreamError(
        Code.LOCK_TIMEOUT,
        f"the stream table is being refreshed{by}; waited {waited:.1f} s",
        hint="try again later, or wait longer",
    )


class FileLocks:
    """Locks on files of one directory, by `flock`. The files stay, and are empty while their locks are free."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def session(self) -> Iterator[FileLockSession]:
        """A holder that releases all its locks at the end."""
        session = FileLockSession(self._directory)
        try:
            yield session
        finally:
            session.release()

    def close(self) -> None:
        """Nothing is kept."""


class FileLockSession:
    """One holder of locks. Each lock has a file descriptor of its own, so threads exclude each other as well."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: list[int] = []

    def try_lock(self, key: str, *, is_shared: bool = False) -> bool:
        """Take a lock if it is free, and write its holder into the file."""
        path = self._path(key)
        descriptor = self._open(path)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        if not _is_still(path, descriptor):  # the file was deleted: other processes will lock a new one
            os.close(descriptor)
            return False
        self._held.append(descriptor)
        with suppress(OSError):  # with a full disk other processes do not see the holder, but the lock is held
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        return True

    def holder(self, key: str) -> tuple[int, str] | None:
        """The process id and host of a lock's holder."""
        try:
            written = json.loads(self._path(key).read_bytes())
            return int(written["pid"]), str(written["host"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # released, or not yet written

    def release(self) -> None:
        """Release all locks."""
        while self._held:
            descriptor = self._held.pop()
            try:
                os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            pass  # the first lock of a lake
        except OSError as e:
            raise _unwritable(path, e) from e
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as e:
            raise _unwritable(path, e) from e

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"invalid lock key: {key!r}")
        return self._directory / f"{key}.lock"


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _unwritable(path: Path, error: OSError) -> MillstreamError:
    return MillstreamError(
        Code.LAKE_UNWRITABLE,
        f"cannot write {path}: {error.strerror}",
        hint="check the permissions and the free space of the lake's directory",
    )
