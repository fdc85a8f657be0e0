"""Limits the changes that are held in memory at a time; a table that has more is compared with its mirror instead.

A transaction of any size is read as a whole: half of it would be a state the database never had. A comparison passes
through memory in batches.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_BYTES = 256 << 20
"""For all tables of a database together, as texts; decoded and netted they take a few times as much."""

_ROW_BYTES = 100


def row_bytes(row: Sequence[object]) -> int:
    """About how many bytes a row of texts takes in memory, with the objects around them."""
    return _ROW_BYTES + sum(len(value) for value in row if isinstance(value, str))
