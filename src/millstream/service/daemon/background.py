"""The daemon in a thread of the caller's process, for demonstrations and benchmarks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.service.daemon.loop import Activity
    from millstream.service.facade import Millstream


@contextmanager
def running(ms: Millstream, on_activity: Callable[[Activity], None] = lambda _: None) -> Iterator[None]:
    """Keep the stream tables of a lake fresh for the duration of the block, as `millstream run` does.

    Args:
        on_activity: called after each decision.

    Raises:
        MillstreamError: the daemon has failed.
    """
    stop, has_begun = threading.Event(), threading.Event()

    def noted(activity: Activity) -> None:
        has_begun.set()
        on_activity(activity)

    with ThreadPoolExecutor(1, thread_name_prefix="millstream-run") as thread:
        future = thread.submit(ms.run, stop, on_activity=noted)
        future.add_done_callback(lambda _: has_begun.set())
        has_begun.wait()
        try:
            yield
        finally:
            stop.set()
            future.result()
