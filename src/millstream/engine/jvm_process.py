"""The Java process that this process started for Spark: whether it still lives, and being notified when it ends.

A JVM that runs out of memory in a task ends by itself, and the operating system may kill it; nothing of it can be used
again, and PySpark cannot start a second one in the same process. So a process that depends on it has to end as well.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext

from millstream.errors import Code, MillstreamError

_SPARK_OUT_OF_MEMORY = 52
"""The exit status with which Spark ends a JVM that has run out of memory."""
_JAVA_OUT_OF_MEMORY = 3
"""The same with -XX:+ExitOnOutOfMemoryError."""
_LOOK_EVERY_SECONDS = 0.5
_PATIENCE_SECONDS = 2.0
"""A killed process closes its connections a moment before its exit status can be read."""


def jvm_process() -> subprocess.Popen[bytes] | None:
    """The JVM that this process has started; None if there is none, or somebody else started it."""
    gateway = SparkContext._gateway  # no public call gives it
    process = getattr(gateway, "proc", None)
    return process if isinstance(process, subprocess.Popen) else None


def lost_jvm(*, is_suspected: bool = False) -> MillstreamError | None:
    """The error that says that the JVM has ended; None while it lives.

    Args:
        is_suspected: a call has failed as if it had, so wait a moment for its end.
    """
    process = jvm_process()
    if process is None:
        return None
    try:
        status = process.wait(_PATIENCE_SECONDS) if is_suspected else process.poll()
    except subprocess.TimeoutExpired:
        return None
    return None if status is None else _lost(status)


@contextmanager
def watching_jvm(on_end: Callable[[], None]) -> Iterator[None]:
    """Call `on_end` once, from another thread, if the JVM ends during the block."""
    process, is_over = jvm_process(), threading.Event()

    def watch(watched: subprocess.Popen[bytes]) -> None:
        while not is_over.wait(_LOOK_EVERY_SECONDS):
            if watched.poll() is not None:
                on_end()
                return

    if process is not None:
        threading.Thread(target=watch, args=(process,), name="millstream-jvm-watch", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _lost(status: int) -> MillstreamError:
    if status in (_SPARK_OUT_OF_MEMORY, _JAVA_OUT_OF_MEMORY):
        why, hint = "it ran out of memory", "raise spark.driver.memory under [spark], then start millstream again"
    elif status < 0:
        why = f"it was killed by signal {-status}"
        hint = "start millstream again; the kernel's log shows whether memory was short"
    else:
        why, hint = f"its exit status was {status}", "start millstream again; MILLSTREAM_SPARK_LOG=<file> keeps its log"
    return MillstreamError(Code.JVM_LOST, f"Spark's Java process has ended: {why}", hint=hint)
