"""Makes calls of the facade for other processes: the socket of the leader, and the threads that work for its clients.

One thread accepts connections and reads from them, so that it notices a client that goes away while its call runs.
Calls run in a pool of threads, because each thread has its own Spark session, which takes a while to create.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.engine.analyzer import explained
from millstream.engine.spark_errors import SPARK_ERRORS
from millstream.errors import Code, MillstreamError
from millstream.remote import protocol
from millstream.remote.address import listener
from millstream.remote.codec import decode, encode
from millstream.remote.peer import may_call, uid_of_peer
from millstream.remote.protocol import packed
from millstream.results import DrawnGraph
from millstream.service.daemon.client_call import ClientCall, working_for

if TYPE_CHECKING:
    import socket

    from pyspark.sql import DataFrame

    from millstream.service.facade import Millstream

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
_SEND_SECONDS = 60.0
"""A client that does not read its answer for this long is dropped."""
_MAX_CALLS = 64
"""How many calls run at a time; a call that waits for a refresh occupies a thread."""


@dataclass
class _Client:
    """A connection, and the call that is running for it."""

    connection: socket.socket
    messages: protocol.Messages = field(default_factory=protocol.Messages)
    is_greeted: bool = False
    is_busy: bool = False
    answering: Future[None] | None = None
    gone: threading.Event = field(default_factory=threading.Event)
    run_sql: Callable[[str], DataFrame] | None = None
    statement: tuple[str, DataFrame] | None = None

    def send(self, kind: str, content: object) -> None:
        """Send a message; a client that has gone does not get it."""
        with suppress(OSError):
            self.connection.sendall(packed(kind, content))


class CallServer:
    """Serves the calls of clients, between `listening` and the end of its block.

    Args:
        config: the file of the settings that this process was started with; None for the lake's own.
        new_sql: a way to run statements in a Spark session of its own.
    """

    def __init__(
        self, lake: Millstream, version: str, config: Path | None, new_sql: Callable[[], Callable[[str], DataFrame]]
    ) -> None:
        self._lake = lake
        self._version = version
        self._config = None if config is None else str(config.resolve())
        self._new_sql = new_sql
        self._ending = threading.Event()
        self._threads = ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="millstream-call")
        self._clients: list[_Client] = []

    @contextmanager
    def listening(self, root: Path, stop: threading.Event) -> Iterator[None]:
        """Accept clients until `stop` is set or the block ends; the calls that are running then are finished."""
        ready = threading.Event()
        thread = threading.Thread(target=self._serve, args=(root, stop, ready), name="millstream-clients", daemon=True)
        thread.start()
        ready.wait()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()
            self._threads.shutdown()

    def _serve(self, root: Path, stop: threading.Event, ready: threading.Event) -> None:
        with selectors.DefaultSelector() as selector:
            try:
                with listener(root) as door:
                    selector.register(door, selectors.EVENT_READ)
                    ready.set()
                    while not stop.is_set() and not self._ending.is_set():
                        for key, _ in selector.select(_POLL_SECONDS):
                            if key.data is None:
                                self._accept(door, selector)
                            else:
                                self._read(key.data, selector)
                    selector.unregister(door)
            except OSError as error:
                _log.warning("other processes cannot use this one: %s", error)
                ready.set()
            self._ending.set()  # from here on, calls that only wait end
            while any(c.answering is not None and not c.answering.done() for c in self._clients):
                for key, _ in selector.select(_POLL_SECONDS):
                    self._read(key.data, selector)
            for client in self._clients:
                client.connection.close()

    def _accept(self, door: socket.socket, selector: selectors.BaseSelector) -> None:
        connection, _ = door.accept()
        connection.settimeout(_SEND_SECONDS)
        client, peer = _Client(connection), uid_of_peer(connection)
        if not may_call(peer, os.getuid()):
            message = f"this process belongs to user {os.getuid()}, and works for user {peer} only if that is root"
            client.send(protocol.ERROR, encode(MillstreamError(Code.DAEMON_REFUSED, message)))
            connection.close()
            return
        self._clients.append(client)
        selector.register(connection, selectors.EVENT_READ, client)

    def _read(self, client: _Client, selector: selectors.BaseSelector) -> None:
        data = protocol.received(client.connection)
        try:
            found = client.messages.feed(data)
            is_kept = bool(data) and all(self._handle(client, kind, content) for kind, content in found)
        except MillstreamError as error:
            client.send(protocol.ERROR, encode(error))
            is_kept = False
        if not is_kept:
            selector.unregister(client.connection)
            self._clients.remove(client)
            client.gone.set()
            if client.answering is None:
                client.connection.close()
            else:
                client.answering.add_done_callback(lambda _: client.connection.close())

    def _handle(self, client: _Client, kind: str, content: Any) -> bool:
        """Handle a message; whether the client may go on."""
        if kind == protocol.GREETING and not client.is_greeted:
            client.is_greeted = True
            if (why := self._unfit(content)) is not None:
                client.send(protocol.REFUSED, why)
                return False
            client.send(protocol.WELCOME, {"version": self._version, "pid": os.getpid()})
            return True
        if kind != protocol.CALL or not client.is_greeted or client.is_busy:
            raise MillstreamError(Code.DAEMON_REFUSED, f"a message of the kind {kind} was not expected here")
        client.is_busy = True
        client.answering = self._threads.submit(self._answer, client, *content)
        client.answering.add_done_callback(_report)
        return True

    def _unfit(self, greeting: dict[str, Any]) -> str | None:
        """Why a client should rather work alone."""
        if (greeting.get("protocol"), greeting.get("version")) != (protocol.PROTOCOL, self._version):
            return f"the running process is millstream {self._version}"
        if greeting.get("config") not in (None, self._config):
            return f"the running process has its settings from {self._config or 'the lake'}"
        return None

    def _answer(self, client: _Client, name: str, arguments: list[Any], options: dict[str, Any]) -> None:
        """Make a call, and send its result; what is not a coded error ends the connection and is logged."""
        call = ClientCall(
            progress=lambda phase: client.send(protocol.PROGRESS, encode(phase)),
            warn=lambda sentence, kind: client.send(protocol.WARNING, [kind.__name__, sentence]),
            has_gone=client.gone.is_set,
            is_ending=self._ending.is_set,
        )
        answer = (protocol.ERROR, encode(_failed(name)))
        try:
            with working_for(call):
                given = [decode(a) for a in arguments], {key: decode(o) for key, o in options.items()}
                answer = (protocol.RESULT, encode(self._made(client, name, *given)))
        except MillstreamError as error:
            answer = (protocol.ERROR, encode(error))
        finally:
            client.is_busy = False  # before it can send the next call
            client.send(*answer)

    def _made(self, client: _Client, name: str, arguments: list[Any], options: dict[str, Any]) -> object:
        match name:
            case protocol.SQL:
                return self._columns(client, *arguments)
            case protocol.ROWS:
                return self._send_rows(client, *arguments)
            case protocol.DAG:
                dag = self._lake.dag()
                return DrawnGraph(dag.nodes, dag.edges, dag.stream_tables, dag.cycles, dag.mermaid(), dag.dot())
            case _ if name in protocol.CALLS:
                return getattr(self._lake, name)(*arguments, **options)
            case _:
                raise MillstreamError(Code.DAEMON_REFUSED, f"{name} is not a call for clients")

    def _columns(self, client: _Client, text: str) -> list[str]:
        """Run a statement; its result is kept until the next one."""
        if client.run_sql is None:
            client.run_sql = self._new_sql()
        client.statement = text, client.run_sql(text)
        return list(client.statement[1].columns)

    def _send_rows(self, client: _Client, limit: int | None) -> list[Any]:
        if client.statement is None:
            raise MillstreamError(Code.DAEMON_REFUSED, "there is no statement whose rows could be sent")
        text, frame = client.statement
        try:
            rows = frame.collect() if limit is None else frame.take(limit)
        except SPARK_ERRORS as error:
            raise explained(error, text) from error
        for first in range(0, len(rows), protocol.ROWS_PER_MESSAGE):
            batch = rows[first : first + protocol.ROWS_PER_MESSAGE]
            client.send(protocol.BATCH, [[encode(value) for value in row] for row in batch])
        return []


def _failed(name: str) -> MillstreamError:
    hint = "its log shows where; `millstream history` shows whether a refresh was completed"
    return MillstreamError(Code.DAEMON_LOST, f"the running process failed unexpectedly in {name}", hint=hint)


def _report(done: Future[None]) -> None:
    if (error := done.exception()) is not None:
        _log.error("a call of a client failed unexpectedly", exc_info=error)
