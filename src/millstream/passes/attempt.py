"""One attempt at a pass: its frontier, what each of its stream tables is brought to, and how far it has come."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from graphlib import TopologicalSorter

from millstream.catalog import Catalog
from millstream.catalog.models import SourceKind, StreamTable
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.passes.agreement import Agreement, Reads, agree
from millstream.passes.frontier import Frontiers, PassFrontier
from millstream.passes.pass_request import PassRequest
from millstream.passes.table_refresh import Goal
from millstream.results import Status

_log = logging.getLogger(__name__)


@dataclass
class Attempt:
    """What was prepared, and how far it has come.

    Args:
        tables: the stream tables of the pass, what is read before what reads it.
        outside: the stream tables that they read and the pass does not refresh.
        is_locked: the caller holds the locks of all tables.
        reached: the tables that are refreshed, as this pass reads them.
        stopped: the tables that are not refreshed in this pass.
    """

    request: PassRequest
    tables: Mapping[str, StreamTable]
    outside: Mapping[str, StreamTable]
    frontier: PassFrontier
    agreement: Agreement
    is_locked: bool
    reached: dict[str, StreamTable] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)

    def known(self, name: str) -> StreamTable:
        """A stream table as this pass reads it."""
        return self.reached.get(name) or self.outside.get(name) or self.tables[name]

    def stands_for(self, table: StreamTable) -> datetime:
        """The time that a table's contents will stand for: that of the oldest table outside the pass that it reads."""
        times = [self.frontier.data_timestamp]
        for name in reads_of(table).upstream:
            if name not in self.tables:
                times += [at for at in [self.outside[name].data_timestamp] if at is not None]
            else:
                times.append(self.stands_for(self.tables[name]))
        return min(times)

    def goal(self, table: StreamTable) -> Goal:
        """What a table is to be brought to."""
        frontier = self.agreement.versions[str(table.name)]
        return Goal(
            data_timestamp=self.stands_for(table),
            paths=self.frontier.paths,
            versions=frontier,
            frontier=frontier,
            upstream={source: self.known(source) for source in reads_of(table).upstream},
            initiated_by=self.request.initiated_by,
            mode=self.request.modes.get(table.name),
            deadline=self.request.deadlines.get(table.name),
            counts=partial(self.request.counts, str(table.name)),
            is_served=self.request.serves(str(table.name)),
            is_unservable=partial(self.request.is_unservable, str(table.name)),
        )


def prepare(
    request: PassRequest,
    catalog: Catalog,
    frontiers: Frontiers,
    *,
    is_locked: bool,
    candidate: StreamTable | None = None,
) -> Attempt:
    """Take a frontier, and decide what each table is brought to; a table that holds others back joins the pass.

    Args:
        candidate: a stream table with a new definition that is to be loaded at the same frontier.
    """
    names = list(request.order)
    while True:
        tables = _ordered([*map(catalog.get, names), *([candidate] if candidate is not None else [])])
        read = {source for table in tables.values() for source in reads_of(table).upstream}
        outside = {name: catalog.get(TableName.parse(name)) for name in sorted(read - tables.keys())}
        frontier = frontiers.take(tuple(tables.values()), request.held, request.taken, is_waiting=request.is_waiting)
        if frontier.captured:  # what happened to their sources is recorded with the tables
            tables = {n: t if t is candidate else catalog.get(t.name) for n, t in tables.items()}
        agreement = _agreed(tables, outside, frontier)
        joining = [name for name in agreement.lagging if outside[name].status is Status.ACTIVE]
        if not joining:
            return Attempt(request, tables, outside, frontier, agreement, is_locked)
        _log.info("%s join the pass: tables that read them could not agree otherwise", ", ".join(joining))
        names = [*map(TableName.parse, joining), *names]


def _agreed(tables: Mapping[str, StreamTable], outside: Mapping[str, StreamTable], frontier: PassFrontier) -> Agreement:
    """What the tables agree at, as far as what they read could be brought forward."""
    reads: dict[str, Reads] = {}
    for name, table in tables.items():
        read = reads_of(table)
        if name not in frontier.failures and read.upstream <= reads.keys() | outside.keys():
            reads[name] = read
    return agree(list(reads), reads, {n: t.base_frontier for n, t in outside.items()}, frontier.versions)


def _ordered(tables: Sequence[StreamTable]) -> dict[str, StreamTable]:
    """What is read before what reads it; otherwise in the given order."""
    named = {str(table.name): table for table in tables}
    graph = {name: sorted(reads_of(table).upstream & named.keys()) for name, table in named.items()}
    return {name: named[name] for name in TopologicalSorter(graph).static_order()}


def reads_of(table: StreamTable) -> Reads:
    """The base tables and stream tables that a stream table reads directly."""
    dependencies = table.definition.dependencies
    return Reads(
        frozenset(d.name for d in dependencies if d.kind is SourceKind.TABLE),
        frozenset(d.name for d in dependencies if d.kind is SourceKind.STREAM_TABLE),
    )


def refuse_suspended(tables: Sequence[StreamTable]) -> None:
    """Refuse to refresh suspended tables.

    Raises:
        MillstreamError: SUSPENDED.
    """
    for table in tables:
        if table.status is Status.SUSPENDED:
            raise MillstreamError(
                Code.SUSPENDED,
                f"{table.name} is suspended",
                hint=f"ALTER STREAM TABLE {table.name} SET STATUS ACTIVE resumes it",
            )
