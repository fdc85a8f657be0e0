"""Spark's errors: the classes to catch, their messages, and those that say nothing about the query.

PySpark translates the Java exceptions it knows into its own classes; others, such as a file that disappears during a
job, are raised as py4j's.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from millstream.engine.jvm_process import lost_jvm
from millstream.errors import Code, MillstreamError

SPARK_ERRORS = (PySparkException, Py4JError)

_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|File too large|not enough space", re.IGNORECASE)


def first_line(error: Exception) -> str:
    """An error's message, in one line without a stack trace."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception.getMessage() or error.java_exception.toString())
    return text.strip().split("\n")[0][:300]


def environment_error(error: Exception) -> MillstreamError | None:
    """The coded error behind an error of Spark that is not about its query: the JVM has ended, or the disk is full.

    Without a JVM, calls fail with an error of py4j that carries no Java exception, or with a refused connection.
    """
    is_answer = isinstance(error, Py4JJavaError | PySparkException)
    if not is_answer and (lost := lost_jvm(is_suspected=True)) is not None:
        return lost
    if is_answer and _NO_ROOM.search(str(error)):
        return MillstreamError(
            Code.LAKE_UNWRITABLE,
            f"Spark could not write: {_room_line(error)}",
            hint="free disk space in the lake's directory and in Spark's (spark.local.dir), then refresh again",
        )
    return None


def _room_line(error: Exception) -> str:
    """The line of an error that says that there is no room; Java's messages name the cause last."""
    return next(line.strip() for line in str(error).splitlines() if _NO_ROOM.search(line))[:300]
