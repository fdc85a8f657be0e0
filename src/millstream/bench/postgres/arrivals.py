"""When an application is notified that a served table has changed: the NOTIFY arrives with its COMMIT."""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from millstream.bench.postgres.shop import Connection
from millstream.sinks.postgres.notify import CHANNEL

_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


class Arrivals:
    """Listens over a separate connection, which it closes at the end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._heard = SimpleQueue[float]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="arrivals", daemon=True)

    def __enter__(self) -> Self:
        self._connection.execute(f"LISTEN {CHANNEL}".encode())
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._connection.close()

    def forget(self) -> None:
        """Ignore the notifications received so far."""
        while not self._heard.empty():
            self._heard.get()

    def next(self) -> float:
        """When the next notification came, by `time.perf_counter`.

        Raises:
            AssertionError: none arrived in time.
        """
        try:
            return self._heard.get(timeout=_PATIENCE_SECONDS)
        except Empty:
            raise AssertionError("nothing was served") from None

    def _listen(self) -> None:
        while not self._ended.is_set():
            for _ in self._connection.notifies(timeout=_LOOK_SECONDS, stop_after=1):
                self._heard.put(time.perf_counter())
