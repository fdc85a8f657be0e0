"""Decides what to maintain: from facts about tables to a list of bites, the most useful for their cost first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millstream.maintenance.owned_tables import OwnedTable
from millstream.results import MaintenanceKind

MAX_DELETED_FILES = 2_000
"""Files that one bite deletes."""
MAX_REWRITTEN_BYTES = 256 << 20
"""Bytes that one bite rewrites; a file with many dead rows may be larger."""
MIN_COMMITS = 20
"""Commits that a checkpoint must replace to be worth its size."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What is known about one stored table.

    Args:
        writer: who may be writing it; None if nobody.
        keeper: why its versions in use are not known; None if they are.
        rewritable_files, rewritable_bytes: files that are small or have many dead rows.
        commits: commits that a checkpoint would replace.
        unneeded_files, unneeded_bytes: files that no version in use needs.
        log_files, log_bytes: files of the log that no version in use needs.
    """

    table: OwnedTable
    writer: str | None = None
    keeper: str | None = None
    rewritable_files: int = 0
    rewritable_bytes: int = 0
    commits: int = 0
    unneeded_files: int = 0
    unneeded_bytes: int = 0
    log_files: int = 0
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Bite:
    """One bounded piece of work on a table: how many files it will delete or replace, and their size.

    `skipped` says why it cannot be done now.
    """

    kind: MaintenanceKind
    table: OwnedTable
    files: int
    bytes: int
    skipped: str | None = None


def planned(facts: Iterable[TableFacts]) -> list[Bite]:
    """The work to do: first what frees space without reading data, the largest first; then rewriting, smallest first.

    A checkpoint allows commits to be deleted, and rewriting allows files to be: a later plan contains that.
    """
    bites = [bite for one in facts for bite in _bites(one)]
    return sorted(bites, key=lambda bite: (_ORDER.index(bite.kind), _cost(bite)))


def _cost(bite: Bite) -> int:
    return bite.bytes if bite.kind is MaintenanceKind.COMPACT else -bite.bytes


_ORDER = (MaintenanceKind.VACUUM, MaintenanceKind.CHECKPOINT, MaintenanceKind.LOG, MaintenanceKind.COMPACT)


def _bites(facts: TableFacts) -> Iterator[Bite]:
    table, deleting = facts.table, facts.writer or facts.keeper
    if facts.keeper is not None:
        yield Bite(MaintenanceKind.VACUUM, table, 0, 0, facts.keeper)
    elif facts.unneeded_files:
        count = min(facts.unneeded_files, MAX_DELETED_FILES)
        size = round(facts.unneeded_bytes * count / facts.unneeded_files)
        yield Bite(MaintenanceKind.VACUUM, table, count, size, deleting)
    if facts.keeper is None and facts.commits >= MIN_COMMITS:
        yield Bite(MaintenanceKind.CHECKPOINT, table, facts.commits, 0)
    if facts.keeper is None and facts.log_files:
        yield Bite(MaintenanceKind.LOG, table, facts.log_files, facts.log_bytes)
    if facts.rewritable_files and table.is_rewritten:
        yield Bite(MaintenanceKind.COMPACT, table, facts.rewritable_files, facts.rewritable_bytes, facts.writer)
