"""The stored tables that are millstream's own, and the oldest version of each that is in use, from the catalog alone.

Users' own tables are not among them: they are never touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture
from millstream.catalog.models import Intent, LakeObject, ObjectKind, StreamTable


class OwnedKind(StrEnum):
    """What a stored table holds."""

    STAGE = "STAGE"
    MIRROR = "MIRROR"
    LANDING = "LANDING"


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """A stored table.

    Args:
        name: the stream table, captured table or source, for people.
        id: of the stage or capture; its path for a landing.
        owner: the stream table's id or the attached database's name.
        lock: the lock under which others write it.
        version: the version that the catalog records; None for a landing.
    """

    kind: OwnedKind
    name: str
    path: str
    id: str
    owner: str
    lock: str
    version: int | None

    @property
    def is_rewritten(self) -> bool:
        """Whether small files can accumulate in it: a landing is overwritten as a whole."""
        return self.kind is not OwnedKind.LANDING


@dataclass(frozen=True, slots=True)
class CatalogState:
    """What the catalog records about the tables of a lake and those that read them."""

    tables: tuple[StreamTable, ...]
    captures: tuple[Capture, ...]
    databases: tuple[AttachedDatabase, ...]
    objects: tuple[LakeObject, ...]
    intents: tuple[Intent, ...]

    @classmethod
    def read(cls, catalog: Catalog) -> CatalogState:
        """The state now. Intents are read first: a frontier that moves meanwhile only moves forward."""
        intents = catalog.open_intents()
        return cls(
            tables=catalog.list(),
            captures=catalog.captures(),
            databases=catalog.databases(),
            objects=catalog.lake_objects(ObjectKind.TABLE),
            intents=intents,
        )

    def owned(self) -> list[OwnedTable]:
        """The stored tables that are loaded."""
        return [*self._stages(), *self._mirrors(), *self._landings()]

    def _stages(self) -> Iterator[OwnedTable]:
        for table in self.tables:
            for stage in table.stages:
                name = str(table.name) if stage.is_public else f"{table.name} (stage {stage.ordinal + 1})"
                if stage.version is not None:
                    yield OwnedTable(OwnedKind.STAGE, name, stage.path, stage.id, table.id, table.id, stage.version)

    def _mirrors(self) -> Iterator[OwnedTable]:
        for capture in self.captures:
            if capture.is_kept:
                lock = f"database-{capture.database}"
                yield OwnedTable(
                    OwnedKind.MIRROR, capture.name, capture.path, capture.id, capture.database, lock, capture.version
                )

    def _landings(self) -> Iterator[OwnedTable]:
        for item in self.objects:
            if (path := item.details.landing) is not None:
                lock = f"landing-{hashlib.sha256(str(item.name).encode()).hexdigest()[:16]}"
                yield OwnedTable(OwnedKind.LANDING, str(item.name), path, path, "", lock, None)

    def writer_of(self, table: OwnedTable) -> str | None:
        """Who may have written files of a table that are not committed yet; None if nobody."""
        if table.kind is OwnedKind.STAGE and any(i.table_id == table.owner for i in self.intents):
            return "a refresh is running or was interrupted"
        if table.kind is OwnedKind.MIRROR and any(d.name == table.owner and d.open_tick for d in self.databases):
            return "changes are being captured, or that was interrupted"
        return None


def needed_since(state: CatalogState, served: Mapping[str, int | None] | None = None) -> dict[str, int]:
    """The oldest version of each stored table that somebody needs by its number, by path.

    These are the version that the catalog records (the next refresh looks up rows in it), the versions in the
    frontiers of its dependents and in open intents (their next refresh reads the changes since, `verify` the contents),
    and the version that a served table holds.

    Args:
        served: the version of the public stage that each served table holds, by the id of the stream table.
    """
    paths = {str(t.name): t.public_stage.path for t in state.tables}
    paths |= {c.name: c.path for c in state.captures}
    paths |= {str(o.name): o.details.landing for o in state.objects if o.details.landing is not None}
    needed: dict[str, int] = {}

    def need(path: str | None, version: int | None) -> None:
        if path is not None and version is not None:
            needed[path] = min(needed.get(path, version), version)

    for owned in state.owned():
        need(owned.path, owned.version)
    for frontier in _frontiers(state.tables, state.intents):
        for name, version in frontier.items():
            need(paths.get(name), version)
    for table in state.tables:
        need(table.public_stage.path, (served or {}).get(table.id))
    return needed


def _frontiers(tables: Iterable[StreamTable], intents: Iterable[Intent]) -> Iterator[Mapping[str, int]]:
    for table in tables:
        yield table.frontier
        yield table.base_frontier
    for intent in intents:
        yield from (intent.old_frontier, intent.new_frontier, intent.base_frontier)
