"""The transactions of ours that changed nothing that anybody reads, such as those of NOTIFY.

PostgreSQL gives such a transaction an id too, so a snapshot taken after it differs from one taken before. A tick that
knows that only these transactions have ended since the last one has nothing to read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

_REMEMBERED = 1_000
"""Per server. If older ones are asked for, the next tick looks in vain, once."""

ServerRun = tuple[int, str]
"""A server's system identifier, and when it was started: a crash may undo a transaction and give its id to another."""


class OwnTransactions:
    """Their ids, by the servers; all databases of a server share them. For use by several threads."""

    def __init__(self) -> None:
        self._ids: dict[ServerRun, deque[int]] = {}
        self._guard = threading.Lock()

    def add(self, server: ServerRun, xid: int) -> None:
        """Remember a transaction."""
        with self._guard:
            if server not in self._ids:  # forget earlier runs of the same server
                self._ids = {run: ids for run, ids in self._ids.items() if run[0] != server[0]}
            self._ids.setdefault(server, deque(maxlen=_REMEMBERED)).append(xid)

    def include(self, server: ServerRun, xids: Iterable[int]) -> bool:
        """Whether all these transactions are ours."""
        with self._guard:
            known = set(self._ids.get(server, ()))
        return bool(known) and all(xid in known for xid in xids)
