"""What a tick knows: the captures of its database as they are recorded, as it has made them, and what is to be done."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from millstream.catalog import Catalog
from millstream.catalog.attached import BEHIND, POSITION, RESYNC, AttachedDatabase, Capture, CaptureMode
from millstream.engine.worker import Worker
from millstream.errors import MillstreamError
from millstream.refresh.capture.behind import is_about_one_table, left_behind, recorded_error
from millstream.refresh.capture.cut import Cut
from millstream.refresh.capture.landing import moved
from millstream.refresh.capture.readers import Readers
from millstream.refresh.capture.record import BUFFER, buffer_of, is_kept, is_whole
from millstream.refresh.capture.switch import Switch
from millstream.settings import Settings
from millstream.sources.postgres.connection import Connection, Identity
from millstream.sources.postgres.installed import BufferInfo
from millstream.sources.postgres.relations import Relation, find_named
from millstream.sources.postgres.table_error import TableError
from millstream.sources.postgres.types import MirrorColumn


@dataclass
class TickState:
    """The state of a tick of one database.

    Args:
        connection: in autocommit mode; `second` gives another one.
        switch: what this process knows of the way the database is captured.
        wanted: names of tables; of those that nothing captures, or that were left behind, only these must be read.
        wider: further columns that a capture shall have from now on.
        at_cut: called with the cut that the mirrors were brought to, while its transaction is open; there is one then,
            also where nothing was written since the last tick.
        is_first: the first tick of this process, which looks at every mirror: an older copy of the catalog may have
            been put in its place, and then the buffers no longer have what came since.
    """

    catalog: Catalog
    readers: Readers
    worker: Worker
    settings: Settings
    now: Callable[[], datetime]
    progress: Callable[[str], None]
    connection: Connection
    second: Callable[[], Connection]
    switch: Switch
    database: AttachedDatabase
    wanted: Collection[str] = ()
    wider: Mapping[str, Sequence[MirrorColumn]] = field(default_factory=dict)
    at_cut: Callable[[Cut], None] | None = None
    is_first: bool = False
    captures: dict[str, Capture] = field(default_factory=dict, init=False)
    recorded: tuple[Capture, ...] = field(default=(), init=False)
    """All captures of the database, also those that are being loaded."""
    known: dict[str, Capture] = field(default_factory=dict, init=False)
    """The captures as they are recorded."""
    again: dict[str, str] = field(default_factory=dict, init=False)
    """Why captures are to be compared with their tables, as far as it is known yet."""
    behind: dict[str, MillstreamError] = field(default_factory=dict, init=False)
    """Why captures are left where they are."""
    began: float = field(default_factory=time.monotonic, init=False)
    identity: Identity = field(init=False)
    started: str = field(init=False)
    """When the database's server did."""
    landed: set[str] = field(default_factory=set, init=False)
    obstacle: str | None = field(default=None, init=False)
    """What has come in the way of a move to the WAL."""
    hindrance: str | None = field(default=None, init=False)
    unfit: Collection[str] = field(default=(), init=False)
    """Captures that the WAL cannot give."""

    def _known_reasons(self) -> dict[str, str]:
        """Why captures have to be compared, as far as nothing has to be asked of the database."""
        found = {id_: f"it gets the columns {', '.join(c.name for c in cs)}" for id_, cs in self._missing_columns()}
        for capture in self.captures.values():
            if capture.id in self.behind:
                continue
            if is_whole(capture) and capture.name in self.wanted:
                found[capture.id] = "nothing records its changes"
            elif reason := capture.details.get(RESYNC):
                found[capture.id] = str(reason)
            elif self.is_first and is_kept(capture) and (reason := moved(self.worker.store, capture)):
                found[capture.id] = reason
        return found

    def _missing_columns(self) -> list[tuple[str, list[MirrorColumn]]]:
        """What of `wider` the mirrors do not have: a tick that is tried again may have given it to them already."""
        have = {id_: {name for name, _, _ in capture.columns} for id_, capture in self.captures.items()}
        more = [(id_, [c for c in columns if c.name not in have[id_]]) for id_, columns in self.wider.items()]
        return [(id_, columns) for id_, columns in more if columns]

    def _is_there(self, snapshot: str) -> bool:
        """Whether nothing was written anywhere since the last tick, and nobody needs a cut."""
        if self.at_cut is not None:
            return False
        position, mode = self.database.position, self.database.mode
        if position is None or position.get("snapshot") != snapshot or mode is CaptureMode.TRANSITIONING:
            return False
        if mode is CaptureMode.WAL and self.database.cdc == "trigger":  # nobody has to write for it to go back
            return False
        if not self.readers.views(self.database.name) <= self.database.seen_views.keys():
            return False
        return not any(POSITION in c.details for c in self._followed())

    def _followed(self) -> list[Capture]:
        return [c for c in self.captures.values() if is_kept(c) and not is_whole(c) and c.id not in self.behind]

    def _is_unasked(self, capture: Capture) -> bool:
        """Whether it was left behind, and nobody asks for it now."""
        return BEHIND in capture.details and capture.name not in self.wanted and capture.id not in self.wider

    def _leave(self, capture_id: str, error: MillstreamError) -> None:
        """Go on without a table, unless the error is about more than that."""
        if not is_about_one_table(error):
            raise error
        capture = self.captures[capture_id]
        self.progress(f"{capture.name} is left as it is for now: {error.code}: {error.message}")
        took = timedelta(seconds=time.monotonic() - self.began)
        self.captures[capture_id] = left_behind(capture, error, self.now(), took)
        self.behind[capture_id] = error
        self.again.pop(capture_id, None)

    def _leave_all(self, error: TableError) -> None:
        found = [c.id for c in self.captures.values() if f"{c.schema}.{c.table}" in error.tables]
        if not found:
            raise error
        for id_ in found:
            self._leave(id_, error)

    def _relation(self, connection: Connection, capture_id: str) -> Relation | None:
        capture = self.captures[capture_id]
        return find_named(connection, capture.schema, capture.table)

    def _buffers(self, capture_ids: Collection[str]) -> list[BufferInfo]:
        return [buffer_of(self.captures[id_]) for id_ in capture_ids if BUFFER in self.captures[id_].details]

    @property
    def versions(self) -> dict[str, int]:
        """The mirrors' versions, by the tables' names."""
        current = [c for c in self.captures.values() if c.id not in self.behind]
        return {c.name: c.version for c in current if c.version is not None}

    def refuse(self, names: Collection[str], named_views: Collection[str] = ()) -> None:
        """See that none of some tables was left behind, and that the rights to read through some views are there.

        Args:
            named_views: those that queries name themselves.

        Raises:
            MillstreamError: why one was left behind; PRIVILEGE_MISSING.
        """
        for name, seen in self.database.seen_views.items():
            if seen.reading is not None and name in names:
                raise recorded_error(seen.reading)
            if seen.naming is not None and name in named_views:
                raise recorded_error(seen.naming)
        for id_, error in self.behind.items():
            if self.captures[id_].name in names:
                raise error


def identity_of(database: AttachedDatabase) -> Identity:
    """Which database it was when a tick saw it last."""
    return Identity(database.system, database.timeline, database.database, database.database_oid)
