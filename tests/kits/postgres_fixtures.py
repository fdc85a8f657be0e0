"""Servers for the tests of capture and serving: one per run, one database per test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.shops import Shop, made, new_shop
from kits.trigger_capture import Follow, Owner, TriggerCapture
from kits.type_cases import create_types
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.testing.postgres_server import FAST, LOGICAL, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The run's PostgreSQL: 18, or the one whose programs lie where MILLSTREAM_TEST_POSTGRES says."""
    binaries = os.environ.get("MILLSTREAM_TEST_POSTGRES")
    with Server({**FAST, **LOGICAL}, Path(binaries) if binaries else None) as started:
        yield started


DEBIAN = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture(scope="session")
def old_server() -> Iterator[Server]:
    """PostgreSQL 15, where Debian has put it."""
    if not DEBIAN.exists():
        pytest.skip("PostgreSQL 15 is not installed")
    with Server({**FAST, **LOGICAL}, DEBIAN) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Drops the databases of a test after it; those of its module were made before."""
    before = len(made)
    yield
    for server, name in made[before:]:
        server.drop_database(name)
    del made[before:]


@pytest.fixture
def shop(server: Server) -> Shop:
    """An empty database."""
    return new_shop(server)


@pytest.fixture(scope="module")
def typed(server: Server) -> Shop:
    """A database with types of its user's."""
    shop = new_shop(server)
    create_types(shop)
    return shop


@pytest.fixture
def owner(shop: Shop) -> Iterator[Owner]:
    """A connection of the tables' owner."""
    with shop.owner() as connection:
        yield connection


@pytest.fixture
def follow(shop: Shop) -> Iterator[Follow]:
    """Begin to follow some tables; every poll compares with them."""
    begun: list[TriggerCapture] = []

    def start(*names: str, settings: BufferSettings | None = None, columns: list[str] | None = None) -> TriggerCapture:
        begun.append(TriggerCapture(shop, names, settings, columns=columns))
        begun[-1].start()
        return begun[-1]

    yield start
    for capture in begun:
        capture.close()
