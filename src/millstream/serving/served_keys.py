"""Derives the keys of results from the current keys of their sources, which may lose or gain one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.catalog import Catalog
from millstream.catalog.models import ObjectKind, StreamTable
from millstream.engine.worker import Workers
from millstream.lake import Compiled
from millstream.lake.served_key import ServedKey, known_result, served_key
from millstream.naming import TableName
from millstream.ops.known import Known


class ServedKeys:
    """Derives keys.

    Args:
        compiled: returns the compiled definition of a stream table.
    """

    def __init__(self, catalog: Catalog, workers: Workers, compiled: Callable[[StreamTable], Compiled]) -> None:
        self._catalog = catalog
        self._workers = workers
        self._compiled = compiled

    def of(self, table: StreamTable) -> ServedKey:
        """The key of a stream table's result."""
        return self.of_query(self._compiled(table))

    def of_query(self, compiled: Compiled) -> ServedKey:
        """The key of a query's result."""
        return served_key(compiled, self._sources(compiled))

    def _sources(self, compiled: Compiled, above: frozenset[str] = frozenset()) -> Mapping[str, Known]:
        return {name: self._known(name, above) for name in compiled.sources if name not in above}

    def _known(self, name: str, above: frozenset[str]) -> Known:
        """What is known about a source: from the query of a stream table, from the key of a captured table.

        Args:
            above: stream tables that read it, and about which nothing is concluded from themselves.
        """
        parsed = TableName.parse(name)
        for capture in self._catalog.captures(parsed.database) if parsed.database is not None else ():
            if capture.name == name:
                key = frozenset(c.lower() for c in capture.key)
                never = frozenset(c.lower() for c in capture.state.not_null)
                return Known(key or None, key | never)
        upstream = self._catalog.find(parsed)
        if upstream is not None:
            compiled = self._compiled(upstream)
            return known_result(compiled, self._sources(compiled, above | {name}))
        found = self._catalog.lake_object(ObjectKind.TABLE, parsed)
        if found is None or found.provider != "delta" or not found.location:
            return Known()
        schema = self._workers.here().store.snapshot(found.location).schema
        return Known(None, frozenset(column.lower() for column, _, is_nullable in schema if not is_nullable))
