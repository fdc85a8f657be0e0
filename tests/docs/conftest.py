"""Fixtures for pages that are programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kits.pages import Psql
from millstream.testing.postgres_server import FAST, Server

OpenPsql = Callable[[str], Psql]


@pytest.fixture
def server() -> Iterator[Server]:
    """A PostgreSQL of the test's own: pages create roles."""
    with Server(FAST) as started:
        yield started


@pytest.fixture
def psql(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPsql]:
    """Makes a database and opens a psql on it; its url as the role millstream is in a variable, as pages say."""
    with ExitStack() as stack:

        def opened(database: str) -> Psql:
            with server.superuser() as administrator:
                administrator.execute(f"CREATE DATABASE {database}".encode())
            monkeypatch.setenv(f"{database.upper()}_URL", server.url(database, "millstream"))
            return stack.enter_context(Psql(server, database))

        yield opened
