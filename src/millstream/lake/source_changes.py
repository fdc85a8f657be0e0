"""Detects whether the sources of a stream table have changed since its query was compiled."""

from __future__ import annotations

from millstream.catalog import Catalog
from millstream.catalog.models import Dependency, LakeObject, ObjectKind, SourceKind, StreamTable
from millstream.engine.storage import DeltaStore
from millstream.lake import Compiled
from millstream.lake.objects import fingerprint
from millstream.naming import TableName
from millstream.reasons import Reason
from millstream.sql.sources import Source

OBJECTS = {SourceKind.VIEW: ObjectKind.VIEW, SourceKind.FUNCTION: ObjectKind.FUNCTION}


def change_of(catalog: Catalog, dependency: Dependency) -> str | None:
    """How a dependency has changed, as far as the catalog shows it.

    The catalog shows changes of views, functions and stream tables, and of the locations of tables.
    """
    name = TableName.parse(dependency.name)
    if dependency.kind is SourceKind.STREAM_TABLE:
        upstream = catalog.find(name)
        same = upstream is not None and fingerprint_of(upstream) == dependency.fingerprint
        return None if same else "has a different definition"
    if dependency.kind is SourceKind.TABLE:
        found = catalog.lake_object(ObjectKind.TABLE, name)
        if found is not None and place(found) != dependency.source_id:
            return "is stored elsewhere"
        return found.details.stale if found is not None else None
    if name.database is not None:
        return _change_of_attached_view(catalog, dependency, name.database)
    found = catalog.lake_object(OBJECTS[dependency.kind], name)
    if found is None:
        return "was dropped"
    return None if found.fingerprint == dependency.fingerprint else "was replaced"


def change_in_lake(catalog: Catalog, store: DeltaStore, table: StreamTable) -> str | None:
    """How a table, view or function of the lake that a stream table reads was replaced or dropped; None if none was.

    A few files are looked at, and no Spark job is needed. Ticks detect changes of attached databases, and a stream
    table's own definition is followed by its readers.
    """
    for dependency in table.definition.dependencies:
        name = TableName.parse(dependency.name)
        if dependency.kind is SourceKind.STREAM_TABLE or name.database is not None:
            continue
        if (change := change_of(catalog, dependency) or _replacement(catalog, store, table, dependency)) is not None:
            return f"{Reason.SOURCE_CHANGED}: {dependency.name} {change}"
    return None


def _replacement(catalog: Catalog, store: DeltaStore, table: StreamTable, dependency: Dependency) -> str | None:
    known = table.definition.body.sources.get(dependency.name)
    if dependency.kind is not SourceKind.TABLE:
        return None
    if catalog.lake_object(ObjectKind.TABLE, TableName.parse(dependency.name)) is None:
        return "was dropped"
    if known is None or known.table_id is None or not store.exists(dependency.source_id):
        return None
    is_same = store.table_id(dependency.source_id, store.version(dependency.source_id)) == known.table_id
    return None if is_same else "was replaced by another table"


def _change_of_attached_view(catalog: Catalog, dependency: Dependency, database: str) -> str | None:
    """How a view of an attached database has changed, according to the last tick."""
    attached = catalog.find_database(database)
    seen = attached.state.views.get(dependency.name) if attached is not None else None
    if seen is None or seen.mark == dependency.fingerprint:
        return None
    return "was replaced" if seen.mark else "was dropped"


def is_another(store: DeltaStore, source: Source, table: StreamTable, path: str, version: int) -> bool:
    """Whether a table was dropped and created again, perhaps with as many commits as the old one had."""
    known = table.definition.body.sources[source.id].table_id
    if known is None:
        return False
    store.version(path)  # each thread has a store, which may have read the old table: now it forgets that
    return store.table_id(path, version) != known


def misfit(store: DeltaStore, source: Source, compiled: Compiled, path: str, version: int) -> str | None:
    """How a column that the query uses has changed; None if none has."""
    snapshot = store.snapshot(path, version)
    now = {name.lower(): type_ for name, type_, _ in snapshot.schema}
    before = {c.name.lower(): c.type for c in source.columns}
    for column in compiled.used_columns[source.id]:
        if column.lower() not in now:
            return f"has lost its column {column}"
        if now[column.lower()] != before[column.lower()]:
            return f"has changed its column {column} from {before[column.lower()]} to {now[column.lower()]}"
    return None


def place(table: LakeObject) -> str:
    """The path at which a refresh reads a table: its location, or that of its copy in the lake."""
    return table.details.landing or table.location or ""


def fingerprint_of(upstream: StreamTable) -> str:
    """A hash that changes if the dependents of a stream table must be recompiled: its columns or its stage changed."""
    return fingerprint(upstream.id, upstream.public_stage.id, str(upstream.definition.columns))
