"""The messages between a lake's running process and its clients, and the calls that clients may make.

A message is one line of JSON. The client sends a greeting, then one call at a time; the process answers each call with
any number of `progress`, `warning` and `batch` (rows) messages, and one `result` or `error`: see ADR 23.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    import socket

PROTOCOL = 1

CALLS = frozenset(
    {
        *("create_stream_table", "alter_stream_table", "drop_stream_table", "serve_stream_table", "stop_serving"),
        *("refresh_stream_table", "refresh_stream_tables", "wait_for", "cancel", "verify", "maintain"),
        *("pause", "resume", "status", "daemon_status", "refresh_stats", "refresh_history", "events"),
        *("explain", "validate", "attach", "detach", "detach_script", "sources", "check_cdc_health", "slot_health"),
    }
)
"""The calls of the facade that are passed on as they are."""
SQL, ROWS, DAG = "sql", "rows", "dag"
"""The calls whose results cannot leave the process as they are: a DataFrame is kept there, and its rows are fetched."""

GREETING, WELCOME, REFUSED = "hello", "welcome", "refused"
CALL, RESULT, ERROR = "call", "result", "error"
PROGRESS, WARNING, BATCH = "progress", "warning", "batch"

ROWS_PER_MESSAGE = 1_000
_MAX_BYTES = 64 << 20
_CHUNK = 1 << 16


def packed(kind: str, content: object) -> bytes:
    """A message."""
    return json.dumps({kind: content}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class Messages:
    """Cuts the bytes of a connection into messages."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        """The messages that are complete with these bytes.

        Raises:
            MillstreamError: DAEMON_REFUSED for what is not a message of this protocol.
        """
        found: list[tuple[str, Any]] = []
        while b"\n" in data:
            end, _, data = data.partition(b"\n")
            found.append(_parsed(b"".join([*self._parts, end])))
            self._parts, self._size = [], 0
        if data:
            self._parts.append(data)
            self._size += len(data)
            if self._size > _MAX_BYTES:
                raise MillstreamError(Code.DAEMON_REFUSED, f"a message is larger than {_MAX_BYTES:,} bytes")
        return found


def received(connection: socket.socket) -> bytes:
    """The bytes that have arrived; none if the other side has closed the connection."""
    try:
        return connection.recv(_CHUNK)
    except ConnectionError:
        return b""


def _parsed(line: bytes) -> tuple[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict) or len(document) != 1:
        raise MillstreamError(Code.DAEMON_REFUSED, "received what is not a message of millstream")
    [(kind, content)] = document.items()
    return kind, content
