"""The client: a lake whose calls are made by its running process."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from millstream.errors import Code, MillstreamError
from millstream.remote import protocol
from millstream.remote.address import address_of
from millstream.remote.codec import decode, encode
from millstream.remote.peer import may_call, uid_of_peer
from millstream.results import DrawnGraph

if TYPE_CHECKING:
    from types import TracebackType

_GREETING_SECONDS = 5.0
"""A process that does not greet within this time is busy or stopped, and is not used."""


class AloneError(Exception):
    """There is no running process that this one can use; the text says why."""


class RemoteLake:
    """An open lake, as `millstream.connect` returns it, for the calls in `protocol.CALLS`, `sql` and `dag`."""

    def __init__(self, connection: socket.socket, progress: Callable[[str], None]) -> None:
        self._connection = connection
        self._progress = progress
        self._messages = protocol.Messages()
        self._waiting: list[tuple[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._connection.close()  # which also cancels a call that is still running

    def __getattr__(self, name: str) -> Any:
        """A call that the process makes for us."""
        if name not in protocol.CALLS:
            raise AttributeError(f"{name} is not a call that a running process makes for others")
        return partial(self.call, name)

    def sql(self, text: str) -> RemoteFrame:
        """Run one statement."""
        return RemoteFrame(self, self.call(protocol.SQL, text))

    def dag(self) -> DrawnGraph:
        """The dependency graph."""
        found: DrawnGraph = self.call(protocol.DAG)
        return found

    def call(self, name: str, *arguments: object, **options: object) -> Any:
        """Make a call, and wait for its result.

        Raises:
            MillstreamError: the error of the call; DAEMON_LOST if the process ended before it answered.
        """
        content = [name, [encode(a) for a in arguments], {key: encode(o) for key, o in options.items()}]
        rows: list[Any] = []
        try:
            self._connection.sendall(protocol.packed(protocol.CALL, content))
        except OSError as error:
            raise _lost(name) from error
        while True:
            kind, answer = self._next(name)
            match kind:
                case protocol.PROGRESS:
                    self._progress(decode(answer))
                case protocol.WARNING:
                    _warn(*answer)
                case protocol.BATCH:
                    rows += decode(answer)
                case protocol.ERROR:
                    raise decode(answer)
                case protocol.RESULT:
                    return rows or decode(answer)
                case _:
                    raise MillstreamError(Code.DAEMON_REFUSED, f"received an unknown message: {kind}")

    def greet(self, version: str, config: str | None) -> None:
        """Introduce this process.

        Raises:
            AloneError: the process does not greet back, or has another version or other settings.
            MillstreamError: DAEMON_REFUSED.
        """
        self._connection.settimeout(_GREETING_SECONDS)
        try:
            greeting = {"protocol": protocol.PROTOCOL, "version": version, "config": config}
            self._connection.sendall(protocol.packed(protocol.GREETING, greeting))
            kind, answer = self._next("")
        except (OSError, MillstreamError) as error:
            raise AloneError(f"the running process does not answer: {error}") from error
        self._connection.settimeout(None)
        if kind == protocol.ERROR:
            raise decode(answer)
        if kind == protocol.REFUSED:
            raise AloneError(str(answer))
        if kind != protocol.WELCOME:
            raise AloneError("the running process speaks another protocol")

    def _next(self, name: str) -> tuple[str, Any]:
        while not self._waiting:
            data = protocol.received(self._connection)
            if not data:
                raise _lost(name)
            self._waiting = self._messages.feed(data)
        return self._waiting.pop(0)


class RemoteFrame:
    """The result of a statement: its columns, and rows that are fetched from the process."""

    def __init__(self, lake: RemoteLake, columns: list[str]) -> None:
        self._lake = lake
        self.columns = columns

    def take(self, num: int) -> list[Any]:
        """The first rows."""
        return list(self._lake.call(protocol.ROWS, num))

    def collect(self) -> list[Any]:
        """All rows."""
        return list(self._lake.call(protocol.ROWS, None))


def dial(lake: Path, config: Path | None, version: str, progress: Callable[[str], None]) -> RemoteLake:
    """Connect to the running process of a lake.

    Args:
        config: the settings that were given for this call; None for those that the process uses.

    Raises:
        AloneError: there is none, or it cannot be used; the caller works alone.
        MillstreamError: DAEMON_REFUSED: it does not work for this user.
    """
    path = address_of(lake)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
        server = uid_of_peer(connection)
        if not (may_call(server, os.getuid()) or server == lake.stat().st_uid):
            raise AloneError(f"the process at {path} belongs to user {server}, not to the lake's owner")
        found = RemoteLake(connection, progress)
        found.greet(version, None if config is None else str(config.resolve()))
    except OSError as error:
        connection.close()
        raise AloneError(f"no running process of the lake: {error.strerror or error}") from error
    except BaseException:
        connection.close()
        raise
    return found


def _warn(category: str, sentence: str) -> None:
    from millstream import notices

    kind = getattr(notices, category, None)
    known = isinstance(kind, type) and issubclass(kind, notices.MillstreamWarning)
    warnings.warn(sentence, kind if known else notices.MillstreamWarning, stacklevel=2)


def _lost(name: str) -> MillstreamError:
    return MillstreamError(
        Code.DAEMON_LOST,
        f"the running process of the lake ended before it answered {name or 'the greeting'}",
        hint="it may have finished the work nevertheless: `millstream history` and `millstream status` show that",
    )
