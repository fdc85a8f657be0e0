"""A tick: brings all mirrors of a database from where they are to one snapshot of it.

What is to come is read first; then the tick is recorded; each mirror's commit carries its number; and the catalog moves
last, in one transaction. A process that dies in between leaves the record, and the next tick looks at the mirrors: each
is where its commit says, and goes on from there. So mirrors may be at different positions for a while, but nobody is
told of their versions until they are all at one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pyarrow as pa

from millstream.catalog import Catalog
from millstream.catalog.attached import STALE, VIEWS, AttachedDatabase, Capture, OpenTick
from millstream.engine.storage import RangeKind, Rows, Txn
from millstream.engine.worker import Worker
from millstream.errors import Code, MillstreamError
from millstream.naming import quote
from millstream.refresh.capture.cut import Cut, cutting
from millstream.refresh.capture.readers import Readers
from millstream.refresh.capture.record import (
    BUFFER,
    MISSING,
    POSITION,
    RESYNC,
    buffer_of,
    buffer_settings,
    columns_of,
    is_whole,
    with_buffer,
)
from millstream.refresh.capture.verdicts import Answer, Verdict, judge, judge_closely, key_of
from millstream.settings import Settings
from millstream.sources.postgres.address import Address
from millstream.sources.postgres.buffers import install, remove
from millstream.sources.postgres.connection import Connection, Identity
from millstream.sources.postgres.installed import capture_states
from millstream.sources.postgres.looks import Look, look_at
from millstream.sources.postgres.mirror import Mirror, land, resync
from millstream.sources.postgres.poll import where
from millstream.sources.postgres.relations import Relation, find_named
from millstream.sources.postgres.slot import flush_wal
from millstream.sources.postgres.types import MirrorColumn, mirror_schema
from millstream.sources.postgres.windows import Window, changed_buffers, read_window, trim

_TRIES = 10
WIDER = "wider"
"""What the application id of a commit ends with that gives a mirror more columns."""


class _RereadError(Exception):
    """The changes of a table do not tell what became of it."""

    def __init__(self, capture_id: str, reason: str) -> None:
        super().__init__(reason)
        self.capture_id = capture_id
        self.reason = reason


@dataclass
class Tick:
    """One tick of one database; the caller holds the database's lock.

    Args:
        connection: in autocommit mode.
        wanted: names of tables; of those that nothing captures only these are read.
        wider: further columns that a capture shall have from now on.
        is_first: the first tick of this process, which looks at every mirror: an older copy of the catalog may have
            been put in its place, and then the buffers no longer have what came since.
    """

    catalog: Catalog
    worker: Worker
    settings: Settings
    now: Callable[[], datetime]
    progress: Callable[[str], None]
    connection: Connection
    database: AttachedDatabase
    wanted: Collection[str] = ()
    wider: Mapping[str, Sequence[MirrorColumn]] = field(default_factory=dict)
    is_first: bool = False
    captures: dict[str, Capture] = field(default_factory=dict, init=False)
    again: dict[str, str] = field(default_factory=dict, init=False)
    """Why captures are to be compared with their tables, as far as it is known yet."""
    looks: dict[str, Look] = field(default_factory=dict, init=False)
    """What tables look like to captures that have got more columns."""
    identity: Identity = field(init=False)
    landed: list[str] = field(default_factory=list, init=False)
    released: list[int] = field(default_factory=list, init=False)
    """The tables that are no longer captured."""

    def run(self) -> dict[str, int]:
        """Bring the mirrors forward; gives their versions by the tables' names.

        Raises:
            MillstreamError: CAPTURE_LOST, DATABASE_UNFIT, PRIVILEGE_MISSING, VALUE_UNSUPPORTED, LOCK_TIMEOUT, ...
        """
        self.captures = {c.id: c for c in self.catalog.captures(self.database.name) if c.version is not None}
        if self.database.open_tick is not None:
            self._recover(self.database.open_tick)
        here = where(self.connection)
        self.again, self.identity = self._known_reasons(), _identity(self.database)
        if here.identity == self.identity and not self.again and self._is_there(here.snapshot):
            return self._versions()
        for _ in range(_TRIES):
            if self._try():
                return self._versions()
        raise MillstreamError(
            Code.LOCK_TIMEOUT,
            f"the tables of {self.database.name} are being altered all the time",
            hint="refresh again when that has ended",
        )

    # What there is to do

    def _known_reasons(self) -> dict[str, str]:
        found = {id_: f"it gets the columns {', '.join(c.name for c in cs)}" for id_, cs in self.wider.items()}
        for capture in self.captures.values():
            if is_whole(capture) and capture.name in self.wanted:
                found[capture.id] = "nothing records its changes"
            elif reason := capture.details.get(RESYNC) or (self.is_first and self._moved(capture)):
                found[capture.id] = str(reason)
        return found

    def _is_there(self, snapshot: str) -> bool:
        """Whether nothing was written anywhere since the last tick."""
        position = self.database.position
        if position is None or position.get("snapshot") != snapshot:
            return False
        return not any(POSITION in c.details for c in self.captures.values() if not is_whole(c))

    def _distrust(self) -> None:
        """Another database answers: nothing that was captured before says anything about it."""
        self.identity = where(self.connection).identity
        self.progress(f"another database answers as {self.database.name}: its tables are read anew")
        for capture in self.captures.values():
            details = {k: v for k, v in capture.details.items() if k != BUFFER} | {RESYNC: Code.DATABASE_REPLACED}
            self.captures[capture.id] = replace(capture, details=details)

    def _try(self) -> bool:
        """One attempt, which fails if tables turn out to need more than it had prepared for."""
        if where(self.connection).identity != self.identity:
            self._distrust()
        relations = {id_: r for id_ in self.again if (r := self._relation(self.connection, id_)) is not None}
        with cutting(Address(self.database.address), self.connection, relations) as cut:
            if cut.identity != self.identity:
                return False
            verdicts = self._judge(cut.connection)
            for id_, verdict in verdicts.items():
                if verdict.answer in (Answer.RESYNC, Answer.REINSTALL):
                    self.again.setdefault(id_, verdict.reason)
            reinstalled = {id_: v for id_, v in verdicts.items() if v.answer is Answer.REINSTALL}
            readable = {i for i in self.again if i in relations or verdicts[i].answer in (Answer.GIVE_UP, Answer.MISS)}
            if not reinstalled and readable == set(self.again):
                try:
                    self._advance(cut, verdicts)
                except _RereadError as e:
                    self.again[e.capture_id] = e.reason
                    return False
                done = True
            else:
                done = False
        for id_, verdict in reinstalled.items():
            self._reinstall(id_, verdict)
        if done:
            self._clean_up()
        return done

    def _judge(self, connection: Connection) -> dict[str, Verdict]:
        schema = buffer_settings(self.database, self.catalog).schema
        looks = look_at(connection, {c.oid: [n for n, _, _ in c.columns] for c in self.captures.values()})
        states = capture_states(connection, list(looks), schema) if looks else {}
        found: dict[str, Verdict] = {}
        for capture in self.captures.values():
            verdict = judge(capture, looks.get(capture.oid), states.get(capture.oid))
            if verdict is None:
                relation = self._relation(connection, capture.id)
                oids = {relation.oid: [n for n, _, _ in capture.columns]} if relation is not None else {}
                look = next(iter(look_at(connection, oids).values()), None)
                state = capture_states(connection, list(oids), schema).get(relation.oid) if relation else None
                verdict = judge_closely(capture, relation, look, state)
            if verdict.answer is Answer.RESYNC and is_whole(capture) and capture.id not in self.again:
                verdict = replace(verdict, answer=Answer.FOLLOW)  # when it is read
            found[capture.id] = verdict
        return found

    def _relation(self, connection: Connection, capture_id: str) -> Relation | None:
        capture = self.captures[capture_id]
        return find_named(connection, capture.schema, capture.table)

    def _reinstall(self, capture_id: str, verdict: Verdict) -> None:
        """Capture a table anew; its mirror is compared with it under a later snapshot."""
        capture = self.captures[capture_id]
        relation = verdict.relation or self._relation(self.connection, capture_id)
        if relation is None:
            return
        self.progress(f"capturing {capture.name} anew: {verdict.reason}")
        if relation.oid != capture.oid:
            self.released.append(capture.oid)
        columns = verdict.columns or capture.columns
        capture = replace(capture, oid=relation.oid, columns=columns)
        if not is_whole(capture):
            settings = buffer_settings(self.database, self.catalog)
            capture = with_buffer(capture, install(self.connection, relation, columns_of(capture), settings))
        details = {k: v for k, v in capture.details.items() if k != MISSING} | {RESYNC: verdict.reason}
        self.captures[capture_id] = replace(capture, details=details)

    # Doing it

    def _advance(self, cut: Cut, verdicts: Mapping[str, Verdict]) -> None:
        windows = self._windows(cut, verdicts)
        reread = {i: r for i, r in self.again.items() if verdicts[i].answer in (Answer.FOLLOW, Answer.RESYNC)}
        for capture_id in windows:
            if reason := self._moved(self.captures[capture_id]):
                raise _RereadError(capture_id, reason)
        flush_wal(self.connection)  # a crash of the server must not undo what is counted as read
        tick_id = self.database.last_tick
        if windows or reread:
            tick_id = self._begin(cut, {*windows, *reread})
        versions: dict[str, int] = {}
        for capture_id, window in windows.items():
            versions[capture_id] = self._land(cut, capture_id, verdicts[capture_id], window, tick_id)
        for capture_id, reason in reread.items():
            versions[capture_id] = self._reread(cut, capture_id, verdicts[capture_id], reason, tick_id)
        self._complete(cut, verdicts, versions, tick_id)
        self.landed = list(versions)

    def _windows(self, cut: Cut, verdicts: Mapping[str, Verdict]) -> dict[str, Window]:
        """The windows that hold something, of the captures that go on."""
        following: dict[str, list[Capture]] = {}
        for capture in self.captures.values():
            if verdicts[capture.id].answer is Answer.FOLLOW and not is_whole(capture) and capture.id not in self.again:
                following.setdefault(self._position(capture), []).append(capture)
        windows: dict[str, Window] = {}
        for old, captures in following.items():
            changed = changed_buffers(cut.connection, [buffer_of(c) for c in captures], old, cut.position)
            for capture in captures:
                if capture.oid in changed:
                    window = read_window(cut.connection, buffer_of(capture), columns_of(capture), old, cut.position)
                    if window.must_reread:
                        raise _RereadError(capture.id, "a part of it was truncated")
                    windows[capture.id] = window
        return windows

    def _position(self, capture: Capture) -> str:
        """Where a mirror is: with the others, or where it was loaded or left."""
        own = capture.details.get(POSITION)
        if own is not None:
            return str(own)
        assert self.database.position is not None, "a loaded mirror has a position"
        return str(self.database.position["snapshot"])

    def _moved(self, capture: Capture) -> str | None:
        """Why a mirror is not where it is said to be: somebody else has written it, or the catalog is an older one."""
        store = self.worker.store
        assert capture.version is not None
        now = store.version(capture.path)
        if now == capture.version or store.classify(capture.path, capture.version, now).kind is RangeKind.NOTHING:
            return None
        return f"its mirror is at version {now}, the catalog knows {capture.version}"

    def _begin(self, cut: Cut, capture_ids: Collection[str]) -> int:
        made = [self.worker.store.transaction_version(self.captures[i].path, i) or 0 for i in capture_ids]
        tick_id = max(self.database.last_tick, *made) + 1
        self.database = replace(
            self.database, last_tick=tick_id, open_tick=OpenTick(id=tick_id, position={"snapshot": cut.position})
        )
        self.catalog.put_database(self.database)
        return tick_id

    def _land(self, cut: Cut, capture_id: str, verdict: Verdict, window: Window, tick_id: int) -> int:
        capture = self.captures[capture_id]
        try:
            version = land(
                self.worker.store,
                self._mirror(capture, verdict),
                window.rows,
                Txn(capture.id, tick_id),
                commit_metadata(cut),
                self.settings.direct_max_rows,
                truncated=window.truncated,
            )
        except MillstreamError as error:
            if error.code is Code.CAPTURE_LOST:
                marked = replace(capture, details={**capture.details, RESYNC: f"{error.code}: {error.message}"})
                self.catalog.put_database(self.database, captures=[marked])
            raise
        return self._at(capture, version)

    def _reread(self, cut: Cut, capture_id: str, verdict: Verdict, reason: str, tick_id: int) -> int:
        """Land what differs between a table and its mirror, and give the mirror more columns if it should have them."""
        capture, store = self.captures[capture_id], self.worker.store
        self.progress(f"comparing {capture.name} with its mirror: {reason}")
        wider = self.wider.get(capture_id, ())
        txn, metadata, limit = Txn(capture.id, tick_id), commit_metadata(cut), self.settings.direct_max_rows
        with cut.contents(self.worker, capture_id, [*columns_of(capture), *wider], self.progress) as contents:
            narrow = _selected(contents, [name for name, _, _ in capture.columns]) if wider else contents
            version = resync(store, self._mirror(capture, verdict), narrow, txn, metadata, limit)
            if not wider:
                return self._at(capture, version)
            columns = (*capture.columns, *((c.name, c.pg_type, c.spark_type) for c in wider))
            capture = replace(capture, columns=columns)
            schema = mirror_schema(columns_of(capture))
            metadata = {**metadata, "columns": [list(c) for c in columns]}
            made = store.widen(capture.path, schema, contents, Txn(f"{capture.id}-{WIDER}", tick_id), metadata)
            self.captures[capture_id] = capture
            self.looks |= {capture_id: look_at(cut.connection, {capture.oid: schema.names})[capture.oid]}
            return made.version

    def _mirror(self, capture: Capture, verdict: Verdict) -> Mirror:
        """With its key, if that told rows apart before and still does."""
        assert verdict.look is not None
        key = capture.key if capture.key == key_of(capture, verdict.look) else ()
        return Mirror(capture.name, capture.path, key)

    def _at(self, capture: Capture, version: int | None) -> int:
        return version if version is not None else self.worker.store.version(capture.path)

    # Recording it

    def _complete(self, cut: Cut, verdicts: Mapping[str, Verdict], versions: Mapping[str, int], tick_id: int) -> None:
        readers = Readers(self.catalog)
        if cut.identity != _identity(self.database):
            readers.reinitialise(self.database.name, f"{Code.DATABASE_REPLACED}: {self.database.name} was replaced")
        for capture in self.captures.values():
            verdict = verdicts[capture.id]
            readers.tell(capture, verdict.answer, verdict.reason)
            after = self._recorded(capture, verdict, versions)
            if BUFFER in capture.details and BUFFER not in after.details:
                self.released.append(capture.oid)
            self.captures[capture.id] = after
        views = readers.views(cut.connection, self.database)
        details = {**self.database.details, VIEWS: views} if views else self.database.details
        is_replaced = details.get(VIEWS) != self.database.details.get(VIEWS)
        self.database = replace(
            self.database,
            system=cut.identity.system,
            timeline=cut.identity.timeline,
            database=cut.identity.database,
            position={"snapshot": cut.position},
            reached_at=self.now(),
            last_tick=tick_id,
            open_tick=None,
            details=details,
        )
        self.catalog.put_database(self.database, captures=list(self.captures.values()), is_seen=is_replaced)

    def _recorded(self, capture: Capture, verdict: Verdict, versions: Mapping[str, int]) -> Capture:
        details = dict(capture.details)
        match verdict.answer:
            case Answer.GIVE_UP:
                details = {k: v for k, v in details.items() if k not in (BUFFER, MISSING)} | {STALE: verdict.reason}
            case Answer.MISS:
                details = {k: v for k, v in details.items() if k not in (BUFFER, STALE)} | {MISSING: verdict.reason}
        is_there = capture.id in versions or (verdict.answer is Answer.FOLLOW and not is_whole(capture))
        if not is_there:
            own = details.get(POSITION) or (self.database.position or {}).get("snapshot")
            return replace(capture, details={**details, POSITION: own})
        details = {k: v for k, v in details.items() if k not in (POSITION, RESYNC, MISSING)}
        look, version = self.looks.get(capture.id, verdict.look), versions.get(capture.id, capture.version)
        assert look is not None
        changed = replace(capture, version=version, key=key_of(capture, look), details=details)
        return replace(changed, shape=look.shape, filenodes=look.storage)

    def _versions(self) -> dict[str, int]:
        return {c.name: c.version for c in self.captures.values() if c.version is not None}

    # Afterwards

    def _clean_up(self) -> None:
        """Let go of what was landed from the buffers, and of buffers that nothing follows any more."""
        assert self.database.position is not None
        settings = buffer_settings(self.database, self.catalog)
        landed = [self.captures[id_] for id_ in self.landed]
        trim(self.connection, [buffer_of(c) for c in landed if BUFFER in c.details], self.database.position["snapshot"])
        for oid in self.released:
            remove(self.connection, oid, settings)

    # Recovery

    def _recover(self, tick: OpenTick) -> None:
        """Find out where the mirrors are that a tick was bringing forward when it was cut short."""
        self.progress(f"recovering an interrupted tick of {self.database.name}")
        for capture in self.captures.values():
            self.captures[capture.id] = self._recovered(capture, tick)
        self.database = replace(self.database, last_tick=max(self.database.last_tick, tick.id), open_tick=None)
        self.catalog.put_database(self.database, captures=list(self.captures.values()))

    def _recovered(self, capture: Capture, tick: OpenTick) -> Capture:
        store = self.worker.store
        position = capture.details.get(POSITION) or (self.database.position or {}).get("snapshot")
        version, columns, details = capture.version, capture.columns, {**capture.details, POSITION: position}
        if (made := store.committed(capture.path, Txn(capture.id, tick.id))) is not None:
            version, details = made[0], {**details, POSITION: tick.position["snapshot"]}
        if (wide := store.committed(capture.path, Txn(f"{capture.id}-{WIDER}", tick.id))) is not None:
            version, details = wide[0], {**details, POSITION: tick.position["snapshot"]}
            columns = tuple(tuple(c) for c in wide[1]["columns"])  # type: ignore[attr-defined]
        return replace(capture, version=version, columns=columns, details=details)


def _selected(rows: Rows, names: Sequence[str]) -> Rows:
    return rows.select(names) if isinstance(rows, pa.Table) else rows.select(*(quote(n) for n in names))


def _identity(database: AttachedDatabase) -> Identity:
    return Identity(database.system, database.timeline, database.database)


def commit_metadata(cut: Cut) -> dict[str, object]:
    """What a mirror's commit says: where in which database it is."""
    identity = cut.identity
    return {
        "postgres": {
            "position": {"snapshot": cut.position},
            "system": str(identity.system),
            "timeline": identity.timeline,
            "database": identity.database,
        }
    }
