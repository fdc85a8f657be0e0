"""Every behaviour of the catalog is shown twice: on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.catalog import Catalog

sys.path.insert(0, str(Path(__file__).parent))  # for the two modules below, which are no tests

from catalog_builders import Clock
from postgres_server import new_schema_url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A lake's path or a database's URL, for a catalog that does not exist yet."""
    return str(tmp_path / "lake") if request.param == "sqlite" else new_schema_url()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalog(location: str, clock: Clock) -> Iterator[Catalog]:
    with Catalog.open(location, clock) as opened:
        yield opened
