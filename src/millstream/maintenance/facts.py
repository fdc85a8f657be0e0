"""Gathers the facts about the stored tables of a lake, in the order that makes deleting files safe.

1. The files of each table are listed.
2. The catalog is read: who is writing, and which versions are in use.
3. The logs are read.

A file that a writer had not committed at step 1 is either committed by step 3, or its writer is seen at step 2, or has
failed. A version in use at step 2 may be released later, but an earlier one is never taken into use.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.catalog import Catalog
from millstream.catalog.models import StreamTable
from millstream.engine.storage import DeltaStore
from millstream.engine.storage.log.log_files import LogGoneError
from millstream.engine.storage.write.upkeep import Contents, Excess, TableUpkeep
from millstream.errors import MillstreamError
from millstream.maintenance.owned_tables import CatalogState, OwnedKind, OwnedTable, needed_since
from millstream.maintenance.plan import TableFacts
from millstream.serving.table_server import TableServer

_LANDING_SECONDS = 3600.0
"""A landing is written before its refresh is recorded, so only its age protects a new file."""


@dataclass(frozen=True)
class Surveyed:
    """A stored table with its facts, the upkeep that can change it, and the files that these facts are about."""

    facts: TableFacts
    upkeep: TableUpkeep
    contents: Contents
    excess: Excess


class ServedVersions:
    """The versions that served tables hold; each database is asked at most once after it could not answer."""

    def __init__(self, server: TableServer, catalog: Catalog) -> None:
        self._server = server
        self._catalog = catalog
        self._failed: dict[str, str] = {}

    def of(self, tables: tuple[StreamTable, ...]) -> tuple[dict[str, int | None], dict[str, str]]:
        """The versions by the id of the stream table, and why those of other tables are not known."""
        databases = {s.table_id: s.database for s in self._catalog.servings()}
        versions: dict[str, int | None] = {}
        for table in tables:
            database = databases.get(table.id)
            if database is None or database in self._failed:
                continue
            try:
                versions[table.id] = self._server.served_version(table)
            except MillstreamError as error:
                self._failed[database] = f"{database} could not be asked which version it serves: {error.message}"
        return versions, {i: self._failed[d] for i, d in databases.items() if d in self._failed}


def surveyed(catalog: Catalog, store: DeltaStore, served: ServedVersions, retention_seconds: float) -> list[Surveyed]:
    """The stored tables of the lake that are on this machine, with their facts."""
    listed: dict[str, tuple[TableUpkeep, Contents]] = {}
    for table in CatalogState.read(catalog).owned():
        if (upkeep := store.upkeep(table.path)) is not None:
            listed[table.path] = upkeep, upkeep.contents()
    state = CatalogState.read(catalog)
    versions, unknown = served.of(state.tables)
    needed, cutoff = needed_since(state, versions), time.time() - retention_seconds
    public = {t.public_stage.id: t.id for t in state.tables}
    found: list[Surveyed] = []
    for table in state.owned():
        if table.path in listed:
            keeper = unknown.get(public.get(table.id, ""))
            one = _surveyed(table, *listed[table.path], state, needed, keeper, cutoff)
            found += [one] if one is not None else []
    return found


def _surveyed(
    table: OwnedTable,
    upkeep: TableUpkeep,
    contents: Contents,
    state: CatalogState,
    needed: Mapping[str, int],
    keeper: str | None,
    cutoff: float,
) -> Surveyed | None:
    if table.kind is OwnedKind.LANDING:
        cutoff = min(cutoff, time.time() - _LANDING_SECONDS)
    try:
        since = needed.get(table.path, upkeep.log.version())
        excess = upkeep.excess(contents, since, cutoff)
    except (LogGoneError, MillstreamError):
        return None  # dropped meanwhile, or damaged: the next refresh reports it
    facts = TableFacts(
        table,
        writer=state.writer_of(table),
        keeper=keeper,
        rewritable_files=excess.rewritable[0],
        rewritable_bytes=excess.rewritable[1],
        commits=excess.commits,
        unneeded_files=len(excess.files),
        unneeded_bytes=sum(f.size for f in excess.files),
        log_files=len(excess.log),
        log_bytes=sum(f.size for f in excess.log),
    )
    return Surveyed(facts, upkeep, contents, excess)
