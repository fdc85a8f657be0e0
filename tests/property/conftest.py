"""The long hunts run when they are asked for (`-m long`), not with every run of all tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "long" in config.getoption("markexpr"):
        return
    here = Path(__file__).parent
    hunts = [item for item in items if item.get_closest_marker("long") and here in item.path.parents]
    if hunts:
        config.hook.pytest_deselected(items=hunts)
        items[:] = [item for item in items if item not in hunts]
