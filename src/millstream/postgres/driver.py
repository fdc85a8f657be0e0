"""The only module that loads psycopg, the optional PostgreSQL driver.

Import the driver's modules from here. Each is loaded when one of its attributes is first used, so that every module of
ours can be imported without psycopg; only a call that reaches a database fails, with the command that installs it.
Code that runs at import must not use the attributes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from millstream.errors import Code, MillstreamError

__all__ = ["conninfo", "errors", "json", "pq", "psycopg", "sql"]

if TYPE_CHECKING:
    import psycopg
    from psycopg import conninfo, errors, pq, sql
    from psycopg.types import json
else:

    class _DriverModule:
        """A module of the driver, loaded when one of its attributes is first used."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> object:
            if attribute.startswith("__"):  # looked up by pickle, inspect and the like, which need no driver
                raise AttributeError(f"the driver's module {self._name} is not loaded for {attribute}")
            try:
                module = import_module(self._name)
            except ImportError as e:
                raise MillstreamError(
                    Code.DEPENDENCY_MISSING,
                    "reaching a PostgreSQL database needs psycopg",
                    hint="pip install 'millstream[postgres]'",
                ) from e
            return getattr(module, attribute)

    psycopg = _DriverModule("psycopg")
    conninfo = _DriverModule("psycopg.conninfo")
    errors = _DriverModule("psycopg.errors")
    json = _DriverModule("psycopg.types.json")
    pq = _DriverModule("psycopg.pq")
    sql = _DriverModule("psycopg.sql")
