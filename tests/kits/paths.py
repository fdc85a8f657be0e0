"""Where things lie in the repository, and how a process of a test's own finds them."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]
FIXTURES = TESTS / "fixtures"
ROOT = TESTS.parent
DOCS = ROOT / "docs"


def environment() -> dict[str, str]:
    """The environment of a process that imports `kits`."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))}
