"""Every behaviour of the catalog is shown twice: on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.catalog import Clock
from kits.catalog_server import new_schema_url
from millstream.catalog import Catalog


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
