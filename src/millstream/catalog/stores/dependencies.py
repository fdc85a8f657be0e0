"""What stream tables read: the edges of the dependency graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import sqlalchemy as sa

from millstream.catalog.capture_events import Reader
from millstream.catalog.models import Dependency, SourceKind
from millstream.catalog.schema import dependencies, stream_tables
from millstream.cycles import cycle_of
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName

CYCLE_HINT = "read the base tables instead; or set allow_circular, if every query of the cycle only adds rows"

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


def replace(connection: Connection, table_id: str, items: Iterable[Dependency]) -> None:
    """Replace the recorded dependencies of a stream table."""
    connection.execute(sa.delete(dependencies).where(dependencies.c.stream_table_id == table_id))
    rows = [
        {
            "stream_table_id": table_id,
            "source_kind": d.kind,
            "source_name": d.name,
            "source_id": d.source_id,
            "ordinal": i,
            "columns_used": list(d.columns_used),
            "fingerprint": d.fingerprint,
        }
        for i, d in enumerate(items)
    ]
    if rows:
        connection.execute(sa.insert(dependencies), rows)


def refuse_missing_or_cyclic(
    connection: Connection,
    table_id: str,
    name: TableName,
    items: Iterable[Dependency],
    allowed: frozenset[str] = frozenset(),
) -> None:
    """Check new edges inside the transaction that adds them: another process may have changed the graph since.

    Args:
        allowed: the ids of the stream tables with which it may form a cycle.
    """
    read = {d.source_id: d.name for d in items if d.kind is SourceKind.STREAM_TABLE}
    if not read:
        return
    names = {row.id: str(TableName(row.schema_name, row.name)) for row in connection.execute(_names())}
    for source_id, source_name in read.items():
        if source_id not in names and source_id != table_id:
            raise MillstreamError(Code.UNKNOWN_TABLE, f"the stream table {source_name} was dropped")
    edges: dict[str, list[str]] = {table_id: list(read)}
    for row in connection.execute(stream_edges()):
        if row.stream_table_id != table_id:
            edges.setdefault(row.stream_table_id, []).append(row.source_id)
    path = _path_back(edges, table_id)
    if path and not cycle_of(table_id, edges) <= allowed:
        shown = " -> ".join(str(name) if i == table_id else names.get(i, i) for i in path)
        raise MillstreamError(Code.CYCLE, f"{name} would read itself: {shown}", hint=CYCLE_HINT)


def dependents_closure(connection: Connection, table_id: str) -> list[str]:
    """The ids of all direct and indirect dependents of a stream table; each comes before the tables it reads."""
    readers: dict[str, list[str]] = {}
    for row in connection.execute(stream_edges()):
        readers.setdefault(row.source_id, []).append(row.stream_table_id)
    ordered: list[str] = []
    seen: set[str] = {table_id}

    def visit(node: str) -> None:
        for reader in sorted(readers.get(node, [])):
            if reader not in seen:
                seen.add(reader)
                visit(reader)
                ordered.append(reader)

    visit(table_id)
    return ordered


def readers_of(connection: Connection, sources: Collection[str]) -> dict[str, list[Reader]]:
    """The stream tables that read some sources directly or through views, by the sources' names."""
    d, t = dependencies.c, stream_tables.c
    chosen = sa.select(d.source_name, d.fingerprint, t.schema_name, t.name).join(
        stream_tables, t.id == d.stream_table_id
    )
    found: dict[str, list[Reader]] = {}
    for row in connection.execute(chosen.where(d.source_name.in_(sorted(sources))).order_by(t.schema_name, t.name)):
        reader = Reader(TableName(row.schema_name, row.name), row.fingerprint)
        found.setdefault(row.source_name, []).append(reader)
    return found


def _names() -> sa.Select[tuple[str, str, str]]:
    return sa.select(stream_tables.c.id, stream_tables.c.schema_name, stream_tables.c.name)


def stream_edges() -> sa.Select[tuple[str, str]]:
    """Which stream table reads which, by their ids."""
    chosen = sa.select(dependencies.c.stream_table_id, dependencies.c.source_id)
    return chosen.where(dependencies.c.source_kind == SourceKind.STREAM_TABLE)


def _path_back(edges: dict[str, list[str]], start: str) -> list[str]:
    """A shortest path of reads from `start` to itself; empty if there is none."""
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for source in edges.get(node, []):
            if source == start:
                path = [start, node]
                while node != start:
                    node = came_from[node]
                    path.append(node)
                return path[::-1]
            if source not in came_from:
                came_from[source] = node
                waiting.append(source)
    return []
