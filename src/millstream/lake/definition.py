"""A query compiled: its inputs, its stages, and whether and why it can only be recomputed.

A definition is compiled when it is created and again by each process that refreshes it; the catalog keeps the query's
text and the columns its sources had, so that `SELECT *` means the same later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from millstream.diff import rules as _rules  # noqa: F401  (registers the delta rules)
from millstream.diff.plan import Kind, Layout
from millstream.diff.stages import PUBLIC, NamedStage, split
from millstream.engine.analyzer import SparkAnalyzer
from millstream.errors import Code, MillstreamError
from millstream.naming import RESERVED_PREFIX
from millstream.ops import Column, Item, Project, Scan, walk
from millstream.ops.expressions import cast, col
from millstream.results import RefreshMode
from millstream.sql.lower import lower
from millstream.sql.parse import parse_query
from millstream.sql.rewrites import rewrite
from millstream.sql.sources import Source, Sources, View
from millstream.sql.text import table_references, uses_current_time
from millstream.sql.unsupported import RECOMPUTE
from millstream.sql.validate import validate

# Reasons for which AUTO and FULL take a query that DIFFERENTIAL refuses.
_ONLY_RECOMPUTED = {Code.UNSUPPORTED_SQL, Code.VOLATILE_FUNCTION, Code.UNFAITHFUL_SQL, Code.UNSUPPORTED_TYPE}


@dataclass(frozen=True)
class Compiled:
    """What a query reads and how it is maintained; without stages it is recomputed each time."""

    query: str
    columns: tuple[Column, ...]
    sources: Mapping[str, Source]
    views: Mapping[str, str]
    stages: tuple[NamedStage, ...]
    reasons: tuple[str, ...]
    notices: tuple[str, ...]
    follows_time: bool
    """Whether it calls a function of the current time, so that it changes without its sources changing."""

    @property
    def is_incremental(self) -> bool:
        """Whether it can be maintained by deltas."""
        return bool(self.stages)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """The stored tables, the public one last."""
        if self.stages:
            return tuple(named.stage.layout for named in self.stages)
        columns = tuple(Column(f"c{i}", c.type) for i, c in enumerate(self.columns, start=1))
        return (Layout(Kind.BAG, columns, (), tuple(c.name for c in columns)),)

    @cached_property
    def used_columns(self) -> Mapping[str, tuple[str, ...]]:
        """The columns of each source the query reads; all of them where it is only recomputed."""
        used: dict[str, set[str]] = {source: set() for source in self.sources}
        for named in self.stages:
            for node in walk(named.stage.body):
                if isinstance(node, Scan) and node.source in used:
                    used[node.source].update(node.origin)
        if not self.stages:
            used = {s.id: {c.name for c in s.columns} for s in self.sources.values()}
        return {name: tuple(sorted(names)) for name, names in used.items()}

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the stored tables' layout: what was stored under another one cannot be maintained."""
        shape = [[layout.kind, [[c.name, c.type] for c in layout.columns], layout.outputs] for layout in self.layouts]
        return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]


def compile_query(query: str, mode: RefreshMode, sources: Sources, analyzer: SparkAnalyzer) -> Compiled:
    """Compile a query for a refresh mode.

    Raises:
        MillstreamError: the query is wrong, or the mode is DIFFERENTIAL and it cannot be maintained.
    """
    found = _Recorded(sources)
    columns = analyzer.describe_text(query)
    _check_columns(columns)
    tables, views = _tables_of(query, found)
    stages: tuple[NamedStage, ...] = ()
    reasons: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    if mode is RefreshMode.FULL:
        reasons = ("the refresh mode is FULL",)
    else:
        try:
            stages, notices = _maintained(query, columns, found, analyzer)
        except MillstreamError as error:
            if mode is not RefreshMode.AUTO or error.code not in _ONLY_RECOMPUTED:
                raise
            reasons = (f"{error.code}: {error.message}",)
    return Compiled(query, columns, tables, views, stages, reasons, notices, uses_current_time(query))


def _maintained(
    query: str, columns: tuple[Column, ...], sources: Sources, analyzer: SparkAnalyzer
) -> tuple[tuple[NamedStage, ...], tuple[str, ...]]:
    lowered = lower(parse_query(query), query, sources, analyzer)
    relation = rewrite(lowered.relation)
    validate(relation, query, analyzer)
    if not analyzer.prints_faithfully(query, len(columns)):
        raise MillstreamError(
            Code.UNFAITHFUL_SQL,
            "the query could not be rewritten without a doubt about its meaning",
            hint=f"a literal or function in it is read differently when printed again; {RECOMPUTE}",
        )
    if [c.type for c in relation.schema] != [c.type for c in columns]:
        items = tuple(
            Item(cast(col(c.name), wanted.type) if c.type != wanted.type else col(c.name), Column(c.name, wanted.type))
            for c, wanted in zip(relation.schema, columns, strict=True)
        )
        relation = Project(relation, items)
    stages = split(relation)
    assert stages[-1].name == PUBLIC
    return stages, lowered.notices


def _check_columns(columns: Sequence[Column]) -> None:
    seen: set[str] = set()
    for column in columns:
        name = column.name.lower()
        if name in seen:
            raise MillstreamError(
                Code.DUPLICATE_COLUMN, f"two output columns are called {column.name}", hint="give one of them an alias"
            )
        if name.startswith(RESERVED_PREFIX):
            raise MillstreamError(Code.NAME_INVALID, f"column names starting with {RESERVED_PREFIX} are reserved")
        if column.type == "void":
            raise MillstreamError(
                Code.UNSUPPORTED_TYPE, f"the column {column.name} has no type", hint="cast the NULL to a type"
            )
        seen.add(name)


class _Recorded:
    """Looks each object up once, so that one compilation sees one state of the lake."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._found: dict[tuple[str, ...], Source | View | None] = {}

    def find(self, parts: Sequence[str]) -> Source | View | None:
        key = tuple(p.lower() for p in parts)
        if key not in self._found:
            self._found[key] = self._sources.find(parts)
        return self._found[key]


def _tables_of(query: str, sources: Sources) -> tuple[dict[str, Source], dict[str, str]]:
    """All tables a query reads, through views, and the views' texts."""
    tables: dict[str, Source] = {}
    views: dict[str, str] = {}
    pending = [query]
    while pending:
        for reference in table_references(pending.pop()):
            found = sources.find(reference.parts)
            if found is None:
                raise MillstreamError(Code.UNKNOWN_TABLE, f"there is no table {'.'.join(reference.parts)} in the lake")
            if isinstance(found, View):
                if found.id not in views:
                    views[found.id] = found.text
                    pending.append(found.text)
            else:
                tables[found.id] = found
    return tables, views
