"""One attempt at a pass: its frontier, what each of its stream tables is brought to, and how far it has come."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from graphlib import TopologicalSorter

from millstream.catalog import Catalog
from millstream.catalog.models import SourceKind, StreamTable
from millstream.cycles import Cycle, find_cycles, outside_reads
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
        reads: what each table is refreshed after; a member of a cycle after what any member reads outside of it.
        cycles: the cycle of each of its members; they are refreshed as one unit.
        is_locked: the caller holds the locks of all tables.
        reached: the tables that are refreshed, as this pass reads them.
        stopped: the tables that are not refreshed in this pass.
    """

    request: PassRequest
    tables: Mapping[str, StreamTable]
    outside: Mapping[str, StreamTable]
    reads: Mapping[str, Reads]
    cycles: Mapping[str, Cycle]
    frontier: PassFrontier
    agreement: Agreement
    is_locked: bool
    reached: dict[str, StreamTable] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)

    def known(self, name: str) -> StreamTable:
        """A stream table as this pass reads it."""
        return self.reached.get(name) or self.outside.get(name) or self.tables[name]

    def unit(self, name: str) -> tuple[str, ...]:
        """The tables that are refreshed together with a table, itself included."""
        return tuple(sorted(self.cycles.get(name, (name,))))

    def units(self) -> list[str]:
        """The first table of each unit, in the order of the pass."""
        return [name for name in self.tables if name == self.unit(name)[0]]

    def first_of(self, names: Iterable[str]) -> set[str]:
        """The first tables of the units that some tables belong to."""
        return {self.unit(name)[0] for name in names}

    def stands_for(self, table: StreamTable) -> datetime:
        """The time that a table's contents will stand for: that of the oldest table outside the pass that it reads."""
        times = [self.frontier.data_timestamp]
        for name in self.reads[str(table.name)].upstream:
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
            upstream={source: self.known(source) for source in self.reads[str(table.name)].upstream},
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
        if outside and (peers := _peers_outside(tables, outside, catalog)):
            names = [*map(TableName.parse, peers), *names]
            continue
        frontier = frontiers.take(tuple(tables.values()), request.held, request.taken, is_waiting=request.is_waiting)
        if frontier.captured:  # what happened to their sources is recorded with the tables
            tables = {n: t if t is candidate else catalog.get(t.name) for n, t in tables.items()}
        reads = _joint_reads(tables)
        agreement = _agreed(tables, reads, outside, frontier)
        joining = [name for name in agreement.lagging if outside[name].status is Status.ACTIVE]
        if not joining:
            cycles = {member: cycle for cycle in _cycles(tables) for member in cycle}
            return Attempt(request, tables, outside, reads, cycles, frontier, agreement, is_locked)
        _log.info("%s join the pass: tables that read them could not agree otherwise", ", ".join(joining))
        names = [*map(TableName.parse, joining), *names]


def _agreed(
    tables: Mapping[str, StreamTable],
    all_reads: Mapping[str, Reads],
    outside: Mapping[str, StreamTable],
    frontier: PassFrontier,
) -> Agreement:
    """What the tables agree at, as far as what they read could be brought forward."""
    reads: dict[str, Reads] = {}
    for name in tables:
        read = all_reads[name]
        is_known = name not in frontier.failures and read.base <= frontier.versions.keys()
        if is_known and read.upstream <= reads.keys() | outside.keys():
            reads[name] = read
    return agree(list(reads), reads, {n: t.base_frontier for n, t in outside.items()}, frontier.versions)


def _ordered(tables: Sequence[StreamTable]) -> dict[str, StreamTable]:
    """What is read before what reads it, otherwise in the given order; members of a cycle follow each other."""
    named = {str(table.name): table for table in tables}
    graph = {name: sorted(reads.upstream & named.keys()) for name, reads in _joint_reads(named).items()}
    members = {min(cycle): sorted(cycle) for cycle in _cycles(named)}
    inside = {name for names in members.values() for name in names[1:]}
    order = [name for name in TopologicalSorter(graph).static_order() if name not in inside]
    return {name: named[name] for unit in order for name in members.get(unit, [unit])}


def _cycles(tables: Mapping[str, StreamTable]) -> tuple[Cycle, ...]:
    return find_cycles({name: reads_of(table).upstream for name, table in tables.items()})


def _joint_reads(tables: Mapping[str, StreamTable]) -> dict[str, Reads]:
    """What each table reads outside of its cycle, if it is in one; members read what any of them reads."""
    own = {name: reads_of(table) for name, table in tables.items()}
    upstream = outside_reads({name: read.upstream for name, read in own.items()})
    base = {name: read.base for name, read in own.items()}
    for cycle in _cycles(tables):
        joint = frozenset[str]().union(*(base[member] for member in cycle))
        base |= dict.fromkeys(cycle, joint)
    return {name: Reads(base[name], upstream[name]) for name in tables}


def _peers_outside(
    tables: Mapping[str, StreamTable], outside: Mapping[str, StreamTable], catalog: Catalog
) -> list[str]:
    """The members of the pass's cycles that are not in the pass: a cycle is refreshed as a whole or not at all."""
    reads = {name: reads_of(table).upstream for name, table in {**tables, **outside}.items()}
    pending = [name for table in outside.values() for name in reads_of(table).upstream]
    while pending:
        name = pending.pop()
        if name not in reads:
            reads[name] = reads_of(catalog.get(TableName.parse(name))).upstream
            pending += reads[name]
    return sorted(name for cycle in find_cycles(reads) if cycle & tables.keys() for name in cycle - tables.keys())


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
