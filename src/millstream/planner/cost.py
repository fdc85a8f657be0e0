"""Predicts how long a refresh would take, from how long earlier ones took. Pure.

The cost of a FULL refresh grows with the size of the sources, that of a DIFFERENTIAL one is a fixed amount plus a cost
per changed row. Both are learned from the table's own history, so no knowledge of the query or the machine is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

# The assumed fixed part of a differential refresh, while all measured refreshes had the same number of changes.
_FIXED_SHARE_MS = 250.0
_RECENT = 5
# Up to this many rows, the cost per row is lost in the noise of the fixed part. Beyond that, a typical cost is assumed
# (docs/benchmarks: 2 to 12 microseconds on two cores).
_MEASURABLE_ROWS = 10_000
_MS_PER_ROW = 0.01


@dataclass(frozen=True, slots=True)
class Measured:
    """One completed refresh: rows changed since the previous one, rows of its sources, and its duration."""

    is_full: bool
    changed_rows: int
    source_rows: int
    duration_ms: float


def predict_full_ms(history: Sequence[Measured], source_rows: int) -> float | None:
    """The predicted duration of a recomputation now, scaled by the size of the sources."""
    fulls = [m for m in history if m.is_full][:_RECENT]
    if not fulls:
        return None
    return median(m.duration_ms * _growth(source_rows, m.source_rows) for m in fulls)


def predict_differential_ms(history: Sequence[Measured], changed_rows: int) -> float | None:
    """The predicted duration of a delta of this many rows: a line through the measurements that never falls."""
    points = [(m.changed_rows, m.duration_ms) for m in history if not m.is_full][: 2 * _RECENT]
    if not points:
        return None
    largest = max(c for c, _ in points)
    if largest < _MEASURABLE_ROWS and changed_rows > largest:
        known = median(d for c, d in points if c == largest)
        return known + (changed_rows - largest) * _MS_PER_ROW
    if len({c for c, _ in points}) == 1:
        measured, duration = points[0][0], median(d for _, d in points)
        fixed = min(duration, _FIXED_SHARE_MS)
        return fixed + (duration - fixed) * changed_rows / max(1, measured)
    mean_c = sum(c for c, _ in points) / len(points)
    mean_d = sum(d for _, d in points) / len(points)
    spread = sum((c - mean_c) ** 2 for c, _ in points)
    slope = max(0.0, sum((c - mean_c) * (d - mean_d) for c, d in points) / spread)
    return max(min(d for _, d in points) / 2, mean_d + slope * (changed_rows - mean_c))


def _growth(now: int, then: int) -> float:
    return max(0.1, now / then) if then > 0 and now > 0 else 1.0
