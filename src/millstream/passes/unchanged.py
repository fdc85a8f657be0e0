"""Which stream tables have nothing to read, judged for all due tables together. Pure.

A table is unchanged if a pass over it would find all its inputs at the versions that it was last brought to. All
else that could make a refresh necessary is in `Seen.is_settled`; in doubt a table is not settled, and a pass decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from millstream.passes.agreement import Reads, Versions, agree


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A stream table, as far as this decision is concerned.

    Args:
        frontier: the versions of what it reads directly that its contents reflect.
        base_frontier: the versions of all base tables that its contents stand for.
        version: of its own contents; None if it has none.
        is_settled: only a change of its inputs can make a refresh do anything.
    """

    reads: Reads
    frontier: Versions
    base_frontier: Versions
    version: int | None
    data_timestamp: datetime | None
    is_settled: bool


def unchanged(order: Sequence[str], tables: Mapping[str, Seen], newest: Versions, now: datetime) -> dict[str, datetime]:
    """The tables that need no refresh, with the time that their contents stand for.

    If a table is unchanged, so is every table of `order` that it reads.

    Args:
        order: the tables that are due, what is read before what reads it.
        tables: these, and the stream tables that they read.
        newest: the newest versions of base tables; those that could not be determined are missing.
        now: a time before which `newest` was not read.
    """
    due = set(order)
    outside = {name: seen for name, seen in tables.items() if name not in due}
    reads: dict[str, Reads] = {}
    for name in order:
        read = tables[name].reads
        if read.base <= newest.keys() and all(source in reads or source in outside for source in read.upstream):
            reads[name] = read
    agreement = agree(list(reads), reads, {n: t.base_frontier for n, t in outside.items()}, newest)
    found: dict[str, datetime] = {}
    for name, read in reads.items():
        seen, versions = tables[name], agreement.versions[name]
        if not seen.is_settled or name in agreement.held_back or versions != seen.base_frontier:
            continue
        if any(source not in found and source not in outside for source in read.upstream):
            continue
        inputs = {base: versions[base] for base in read.base} | {s: tables[s].version for s in read.upstream}
        stands_for = _stands_for(read, tables, found, now)
        # contents from the future follow from a clock that was set back
        if inputs == seen.frontier and (seen.data_timestamp is None or seen.data_timestamp <= stands_for):
            found[name] = stands_for
    return found


def _stands_for(read: Reads, tables: Mapping[str, Seen], found: Mapping[str, datetime], now: datetime) -> datetime:
    """The time that contents stand for: that of the oldest table outside the decision behind them, or now."""
    times = [found.get(source) or tables[source].data_timestamp for source in read.upstream]
    return min([now, *(at for at in times if at is not None)])
