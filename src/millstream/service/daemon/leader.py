"""One leader per lake: the process that holds the lock of leadership, under an epoch that all its writes check.

The lock ends with the process, so a stand-by takes over as soon as a leader is killed. The epoch keeps a leader that
lost the lock without noticing, e.g. with its connection to a shared catalog, from writing late.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from millstream.catalog import Catalog
from millstream.catalog.leadership import Leader
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import Locks

if TYPE_CHECKING:
    from threading import Event

_log = logging.getLogger(__name__)

LEADER_KEY = "leader"
_RETRY_SECONDS = 0.25


@contextmanager
def leading(
    catalog: Catalog,
    locks: Locks,
    stop: Event,
    clock: Callable[[], datetime],
    version: str,
    on_standby: Callable[[], None],
) -> Iterator[int | None]:
    """Wait for the leadership of a lake, and hold it inside the block; None if `stop` was set before.

    Args:
        on_standby: called once if another process leads.
    """
    is_reported = False
    while not stop.is_set():
        with ExitStack() as held:
            try:
                held.enter_context(locks.acquire([LEADER_KEY], timeout=0))
            except MillstreamError as error:
                if error.code is not Code.LOCK_TIMEOUT:
                    raise
            else:
                host, pid = socket.gethostname(), os.getpid()
                here = Leader(id=uuid.uuid4().hex, host=host, pid=pid, version=version, since=clock())
                catalog.epoch = epoch = catalog.take_leadership(here)
                _log.info("leads the lake in epoch %d", epoch)
                try:
                    yield epoch
                finally:
                    catalog.epoch = None
                    catalog.release_leadership(epoch)
                    _log.info("no longer leads the lake in epoch %d", epoch)
                return
        if not is_reported:
            is_reported = True
            on_standby()
        stop.wait(_RETRY_SECONDS)
    yield None
