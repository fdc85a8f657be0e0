"""Spark's errors: the classes to catch, and their messages.

PySpark translates the Java exceptions it knows into its own classes; others, such as a file that disappears during a
job, are raised as py4j's.
"""

from __future__ import annotations

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JError)


def first_line(error: Exception) -> str:
    """An error's message, in one line without a stack trace."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception.getMessage() or error.java_exception.toString())
    return text.strip().split("\n")[0][:300]
