"""Aggregates: what is stored per group, and how a delta changes it.

One file per family. An aggregate function becomes one or more *accumulators*, columns of the stored row; calls over
the same argument share them.
"""

from millstream.diff.aggregate.accumulator import Accumulator
from millstream.diff.aggregate.choose import Call, accumulate

__all__ = ["Accumulator", "Call", "accumulate"]
