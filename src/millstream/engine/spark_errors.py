"""Spark's errors: what to catch, and what to say of them.

PySpark translates the Java exceptions it knows into its own classes; the others, such as a file that is gone in the
middle of a job, come as py4j's.
"""

from __future__ import annotations

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JError)


def first_line(error: Exception) -> str:
    """What an error says, in one line without a stack trace."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception.getMessage() or error.java_exception.toString())
    return text.strip().split("\n")[0][:300]
