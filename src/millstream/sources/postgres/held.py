"""How much of what has changed is held in memory at a time; of a table that has more, mirror and table are compared.

A transaction cannot be read in parts, whatever its size: half of it would be a state the database never had. What is
compared goes through memory in batches.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_BYTES = 256 << 20
"""Of all tables of a database together, as texts; decoded and netted they take a few times as much."""
TOO_MUCH = "more has changed than is held in memory"

_ROW_BYTES = 100


def row_bytes(row: Sequence[object]) -> int:
    """About what a row of texts takes, with the objects around them."""
    return _ROW_BYTES + sum(len(value) for value in row if isinstance(value, str))
