"""Positions in the WAL, as the catalog keeps them."""

from __future__ import annotations

import pytest

from millstream.sources.postgres.wal.wal_position import WalPosition

pytestmark = pytest.mark.postgres


def test_a_position_survives_the_catalog() -> None:
    stored = {"snapshot": "10:20:12,15", "lsn": "1/ABC"}
    assert WalPosition.load(stored).dump() == stored
