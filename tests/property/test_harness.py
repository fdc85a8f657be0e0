"""The harness itself: a case that grows by mistake fails, and takes neither the machine's memory nor its disk."""

from __future__ import annotations

import duckdb
import pytest

from millstream.testing.duck import shared_connection


def test_memory_is_limited_and_nothing_is_spilled() -> None:
    with pytest.raises(duckdb.OutOfMemoryException):
        shared_connection().execute("SELECT list(i) FROM range(400000000) AS t(i)").fetchall()
    assert shared_connection().execute("SELECT 1").fetchall() == [(1,)]
