"""The inputs of a refresh: each with the version it was last read at and the version to read now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millstream.catalog import Catalog
from millstream.catalog.models import LakeObject, ObjectKind, SourceKind, StreamTable
from millstream.engine.storage import DeltaStore, RangeKind, RangeSummary
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.lake.source_changes import place
from millstream.naming import TableName
from millstream.planner import Change, InputFacts
from millstream.sources.delta import DeltaInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGES = {
    RangeKind.NOTHING: Change.NOTHING,
    RangeKind.APPEND_ONLY: Change.APPENDED,
    RangeKind.MUTATING: Change.MUTATED,
    RangeKind.REPLACED: Change.REPLACED,
}


@dataclass(frozen=True)
class BoundInput:
    """An input, the columns used, and the range of versions this refresh covers; `old` is None at the first refresh.

    `summary` describes the changes in the range; it is None for an empty range and before `classified`.
    """

    delta: DeltaInput
    columns: tuple[str, ...]
    old: int | None
    new: int
    summary: RangeSummary | None = None

    def classified(self, store: DeltaStore) -> BoundInput:
        """The input with its summary, which is read from the log once for the whole refresh."""
        if self.old is None or self.old == self.new:
            return self
        return replace(self, summary=self.delta.classify(store, self.old, self.new, self.columns))

    def facts(self, store: DeltaStore) -> InputFacts:
        """What the planner needs to know about a classified input."""
        if self.old is None:
            return InputFacts(self.delta.id, Change.MUTATED, 0, None)
        if self.old == self.new:
            return InputFacts(self.delta.id, Change.NOTHING, 0, self.num_rows(store))
        assert self.summary is not None, "it was not classified"
        change = _CHANGES.get(self.summary.kind, Change.IMPOSSIBLE)
        rows = self.num_rows(store) if change is not Change.IMPOSSIBLE else None
        return InputFacts(self.delta.id, change, self.summary.changed_rows, rows, self.summary.reason)

    def contents(self, store: DeltaStore, columns: Sequence[str]) -> DataFrame:
        """Its rows at the version to read now."""
        return self.delta.contents(store, self.new, columns)

    def changes(self, store: DeltaStore) -> DataFrame:
        """Its changes in the range, as a Z-set."""
        assert self.old is not None, "an input that was never read has no changes"
        return self.delta.changes(store, self.old, self.new, self.columns, self.summary)

    def num_rows(self, store: DeltaStore) -> int | None:
        """The number of its rows now, if that is known without reading them."""
        return store.snapshot(self.delta.path, self.new).num_rows


def base_tables(catalog: Catalog, tables: tuple[StreamTable, ...]) -> dict[str, LakeObject]:
    """The lake's own tables behind some stream tables.

    Raises:
        MillstreamError: SOURCE_MISSING if one was dropped.
    """
    found: dict[str, LakeObject] = {}
    for table in tables:
        for dependency in table.definition.dependencies:
            if dependency.kind is SourceKind.TABLE and dependency.name not in found:
                found[dependency.name] = _object(catalog, dependency.name, table)
    return found


def paths_of(tables: Mapping[str, LakeObject]) -> dict[str, str]:
    """The paths at which refreshes read tables: their locations, or those of their copies in the lake."""
    return {name: place(t) for name, t in tables.items()}


def _object(catalog: Catalog, name: str, table: StreamTable) -> LakeObject:
    found = catalog.lake_object(ObjectKind.TABLE, TableName.parse(name))
    if found is None or not found.location:
        raise MillstreamError(
            Code.SOURCE_MISSING,
            f"{table.name} reads {name}, which was dropped",
            hint=f"create {name} again, or drop {table.name}",
        )
    return found


def bind_inputs(
    table: StreamTable,
    compiled: Compiled,
    versions: Mapping[str, int],
    paths: Mapping[str, str],
    upstream: Mapping[str, StreamTable],
    *,
    at_frontier: bool = False,
    without: Collection[str] = (),
) -> dict[str, BoundInput]:
    """The inputs of a table at the given versions.

    Args:
        without: inputs that the caller binds.
        versions: of base tables; with `at_frontier`, of stream tables, too.
        paths: where the base tables lie.
        upstream: the stream tables that it reads, each at the version to read.
    """
    bound: dict[str, BoundInput] = {}
    for name in compiled.sources:
        if name in without:
            continue
        columns = compiled.used_columns[name]
        if name not in paths and name in upstream:
            source = stream_input(upstream[name])
            new = versions[name] if at_frontier else upstream[name].public_stage.version
            if new is None:
                raise MillstreamError(Code.NOT_POPULATED, f"{name} has never been refreshed")
        else:
            recorded = table.definition.body.sources.get(name)
            table_id = recorded.table_id if recorded is not None else None
            source, new = DeltaInput(name, paths[name], table_id=table_id), versions[name]
        bound[name] = BoundInput(source, columns, table.frontier.get(name), new)
    return bound


def upstream_of(catalog: Catalog, table: StreamTable) -> dict[str, StreamTable]:
    """The stream tables that a table reads directly, as the catalog records them now."""
    names = [d.name for d in table.definition.dependencies if d.kind is SourceKind.STREAM_TABLE]
    return {name: found for name in names if (found := catalog.find(TableName.parse(name))) is not None}


def stream_input(upstream: StreamTable) -> DeltaInput:
    """The public stage of a stream table as an input."""
    body = upstream.definition.body
    stored = {n: s for (n, _), s in zip(upstream.definition.columns, body.outputs, strict=True)}
    return DeltaInput(str(upstream.name), upstream.public_stage.path, stored, body.hides_rows)
