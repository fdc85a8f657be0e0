"""A lake per test, all in the run's one JVM."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))  # for the module below, which is no test

from lake_kit import lake

__all__ = ["lake"]
