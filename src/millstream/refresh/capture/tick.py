"""A tick: brings all mirrors of a database from where they are to one snapshot of it.

What is to come is read first; then the tick is recorded; each mirror's commit carries its number; and the catalog moves
last, in one transaction. A process that dies in between leaves the record, and the next tick looks at the mirrors: each
is where its commit says, and goes on from there. So mirrors may be at different positions for a while, but nobody is
told of their versions until they are all at one; a table that cannot be brought there is left behind, and not told of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import Enum, auto

from millstream.catalog.attached import (
    BEHIND,
    HINDERED,
    MISSING,
    RESYNC,
    VIEWS,
    AttachedDatabase,
    Capture,
    CaptureMode,
    OpenTick,
    Position,
)
from millstream.catalog.numeric_ranges import NumericRanges
from millstream.errors import Code, MillstreamError
from millstream.refresh.capture.behind import error_of, rests
from millstream.refresh.capture.continuity import MARK, STARTED, is_older, unrecognised
from millstream.refresh.capture.cut import Cut, cutting
from millstream.refresh.capture.landing import Landing, moved, recovered
from millstream.refresh.capture.left import leaving, let_go
from millstream.refresh.capture.leftovers import clear_if_free, with_leftovers
from millstream.refresh.capture.record import (
    BUFFER,
    buffer_of,
    buffer_settings,
    is_whole,
    with_buffer_for,
)
from millstream.refresh.capture.refused_writes import accept_writes
from millstream.refresh.capture.source import Source
from millstream.refresh.capture.switch import INSTALLED, with_details, with_loss
from millstream.refresh.capture.tick_state import TickState, identity_of
from millstream.refresh.capture.verdicts import Answer, Verdict, judge, judge_closely, recorded
from millstream.refresh.capture.ways import (
    WAL,
    Reading,
    RereadError,
    read_buffers,
    read_slot,
    slot_in,
    without_published,
)
from millstream.sources.postgres.address import Address
from millstream.sources.postgres.connection import Connection
from millstream.sources.postgres.installed import capture_states
from millstream.sources.postgres.looks import look_at
from millstream.sources.postgres.own_objects import buffered_rows
from millstream.sources.postgres.partition_owners import let_owners_add_partitions
from millstream.sources.postgres.poll import where
from millstream.sources.postgres.positions import WalPosition
from millstream.sources.postgres.relations import RelationKind
from millstream.sources.postgres.slot import advance, can_flush_within_transaction, flush_wal
from millstream.sources.postgres.snapshots import PgSnapshot
from millstream.sources.postgres.table_error import TableError
from millstream.sources.postgres.transition import may_cut_to_triggers, reason_of
from millstream.sources.postgres.trims import note_mark
from millstream.sources.postgres.windows import trim

_TRIES = 10
_SYNCED_AT_ONCE = 8


class _Outcome(Enum):
    DONE = auto()
    AGAIN = auto()
    """Tables turned out to need more than was prepared for."""
    FEWER = auto()
    """Tables are to be left behind."""
    PIECE = auto()
    """Some of the way is done."""


class Tick(TickState):
    """One tick of one database; the caller holds the database's lock."""

    def run(self) -> None:
        """Bring the mirrors forward that can be; then there are `versions`, and `refuse` tells of the others.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, DATABASE_UNFIT, SNAPSHOT_LOST, LOCK_TIMEOUT, ...
        """
        self.recorded = self.catalog.captures(self.database.name)
        self.captures = {c.id: c for c in self.recorded if c.version is not None}
        if self.database.open_tick is not None:
            self._recover(self.database.open_tick)
        self.known = dict(self.captures)
        self._let_go()
        here = where(self.connection)
        if (accepting := self._accept_writes()) != self.database:
            self.database, here = accepting, where(self.connection)
        self.behind = {c.id: error_of(c) for c in self.captures.values() if self._is_unasked(c)}
        self.again, self.identity = self._known_reasons(), identity_of(self.database)
        self.started = here.started
        if here.identity == self.identity and not self.again and self._is_there(here.snapshot):
            return
        self.behind = {id_: e for id_, e in self.behind.items() if rests(self.captures[id_], self.now())}
        self.again = self._known_reasons()
        if here.identity == self.identity and is_older(self.connection, here, self.database, self._followed()):
            self.database = unrecognised(self.database)
            self.catalog.put_database(self.database)  # once there are as many new transactions, nothing tells it
            self.identity = identity_of(self.database)
        if here.identity != self.identity:
            self.progress(f"{self.database.name} was replaced or restored: its tables are read anew")
        elif self.database.mode is not CaptureMode.WAL:
            self.database = self.switch.forward(
                self.catalog, self.settings, self.now, self.connection, self.database, self._followed()
            )
        else:
            self._publish()
        tries = 0
        while tries < _TRIES:
            outcome = self._try()
            if outcome is _Outcome.DONE:
                return
            tries += outcome is _Outcome.AGAIN
        raise MillstreamError(
            Code.LOCK_TIMEOUT,
            f"the tables of {self.database.name} are being altered all the time",
            hint="refresh again when that has ended",
        )

    def _accept_writes(self) -> AttachedDatabase:
        return accept_writes(self.connection, self.catalog, self.database, self.recorded, self.progress)

    # Trying

    def _distrust(self, reason: str) -> None:
        """Nothing that was captured before says anything about the tables as they are."""
        self.switch.close()
        database = with_details(with_leftovers(leaving(self.database)), {MARK: None})
        if database.mode is not CaptureMode.TRIGGER:
            database = with_details(database, {HINDERED: reason})
        self.database = replace(database, mode=CaptureMode.TRIGGER)
        for capture in self.captures.values():
            details = {k: v for k, v in capture.details.items() if k != BUFFER} | {RESYNC: reason}
            self.captures[capture.id] = replace(capture, details=details)

    def _publish(self) -> None:
        """Captures that the WAL did not give: begun by triggers meanwhile, or once published as a part of another."""
        for capture in self._followed():
            if capture.id not in self.database.details[WAL]["published"]:
                verdict = Verdict(Answer.REINSTALL, "the WAL did not give its changes")
                self.again[capture.id] = verdict.reason
                self._reinstall(capture.id, verdict)

    def _try(self) -> _Outcome:
        """One attempt."""
        try:
            outcome, reinstalled = self._cut()
        except TableError as error:
            if error.code is Code.SOURCE_CHANGED:  # it was there before it was to be locked
                return _Outcome.AGAIN
            self._leave_all(error)
            return _Outcome.FEWER
        for id_, verdict in reinstalled.items():
            self._reinstall(id_, verdict)
        if outcome in (_Outcome.DONE, _Outcome.PIECE):
            self._clean_up()
        return outcome

    def _cut(self) -> tuple[_Outcome, Mapping[str, Verdict]]:
        """What has come of an attempt, and the tables that are to be captured anew."""
        found = where(self.connection).identity
        if found != self.identity:
            self.identity = found
            self._distrust(Code.DATABASE_REPLACED)
        found_now = {id_: self._relation(self.connection, id_) for id_ in self.again}
        relations = {id_: r for id_, r in found_now.items() if r is not None and r.kind is not RelationKind.VIEW}
        polled = self.second() if self.database.mode is CaptureMode.WAL else self.connection
        with cutting(Address(self.database.address), polled, relations, self.settings.trusted_roles) as cut:
            if cut.identity != self.identity:
                return _Outcome.AGAIN, {}
            verdicts = self._judge(cut.connection)
            for id_, verdict in verdicts.items():
                if verdict.answer in (Answer.RESYNC, Answer.REINSTALL):
                    self.again.setdefault(id_, verdict.reason)
            reinstalled = {id_: v for id_, v in verdicts.items() if v.answer is Answer.REINSTALL}
            readable = {i for i in self.again if i in relations or verdicts[i].answer in (Answer.GIVE_UP, Answer.MISS)}
            if reinstalled or readable != set(self.again):
                return _Outcome.AGAIN, reinstalled
            outcome = self._advance(cut, verdicts)
            if outcome is _Outcome.DONE and self.at_cut is not None:
                self.at_cut(cut)
            return outcome, {}

    def _judge(self, connection: Connection) -> dict[str, Verdict]:
        looks = look_at(connection, {c.oid: [n for n, _, _ in c.columns] for c in self.captures.values()})
        states, declared = self._states(connection, list(looks)), NumericRanges.of(self.database)
        found: dict[str, Verdict] = {}
        for capture in self.captures.values():
            ranges = declared.of_table(capture.schema, capture.table)
            verdict = judge(capture, looks.get(capture.oid), states.get(capture.oid), ranges)
            if verdict is None:
                relation = self._relation(connection, capture.id)
                oids = {relation.oid: [n for n, _, _ in capture.columns]} if relation is not None else {}
                look = next(iter(look_at(connection, oids).values()), None)
                state = self._states(connection, list(oids)).get(relation.oid) if relation else None
                verdict = judge_closely(capture, relation, look, state, ranges)
            if verdict.answer is Answer.RESYNC and is_whole(capture) and capture.id not in self.again:
                verdict = replace(verdict, answer=Answer.FOLLOW)  # when it is read
            if capture.id in self.behind:
                if verdict.answer in (Answer.GIVE_UP, Answer.MISS):
                    del self.behind[capture.id]
                else:
                    verdict = replace(verdict, answer=Answer.LEAVE)
            found[capture.id] = verdict
        return found

    def _states(self, connection: Connection, oids: Sequence[int]) -> dict[int, str]:
        """The states of triggers; where the WAL is read they do not matter, and are taken for what they were."""
        if self.database.mode is CaptureMode.WAL:
            return {c.oid: c.details[BUFFER]["state"] for c in self.captures.values() if BUFFER in c.details}
        return capture_states(connection, oids, buffer_settings(self.database, self.catalog).schema) if oids else {}

    def _reinstall(self, capture_id: str, verdict: Verdict) -> None:
        """Capture a table anew, if that can be done; its mirror is compared with it under a later snapshot."""
        capture = self.captures[capture_id]
        relation = verdict.relation or self._relation(self.connection, capture_id)
        if relation is None:
            return
        if relation.kind is RelationKind.VIEW:  # nothing of it may be read, or its owner's functions would run
            error = MillstreamError(
                Code.SOURCE_NO_CHANGE_FEED,
                f"{relation.qualified} is a view now, and was none when it was captured",
                hint="define what reads it again: queries read through views to their tables",
            )
            self._leave(capture_id, error)
            return
        self.progress(f"capturing {capture.name} anew: {verdict.reason}")
        self._remember(capture_id, verdict.reason, is_another=relation.oid != capture.oid)
        capture = replace(capture, oid=relation.oid, columns=verdict.columns or capture.columns)
        if not is_whole(capture):
            source = Source(self.connection, self.catalog, self.database)
            try:
                capture, self.database = source.capture(capture, relation)
            except MillstreamError as error:
                self._leave(capture_id, error)
                return
        if BUFFER in capture.details and verdict.look is not None:
            capture = with_buffer_for(capture, verdict.look.shape)
        details = {k: v for k, v in capture.details.items() if k != MISSING} | {RESYNC: verdict.reason}
        self.captures[capture_id] = replace(capture, details=details)

    def _remember(self, capture_id: str, reason: str, *, is_another: bool) -> None:
        """Record that a mirror is to be compared, before what its changes are read from is gone.

        The database is left as it is recorded: of what this tick makes of it nothing is done yet.

        Args:
            is_another: there is another table of that name to be captured.
        """
        database = self.catalog.find_database(self.database.name)
        capture = next((c for c in self.catalog.captures(self.database.name) if c.id == capture_id), None)
        if database is not None and capture is not None:
            marked = replace(capture, details={**capture.details, RESYNC: reason})
            if is_another:
                database, self.database = with_leftovers(database), with_leftovers(self.database)
            self.catalog.put_database(database, captures=[marked])
            self.known[capture_id] = marked

    # Doing it

    def _advance(self, cut: Cut, verdicts: Mapping[str, Verdict]) -> _Outcome:
        following = [c for c in self._followed() if verdicts[c.id].answer is Answer.FOLLOW and c.id not in self.again]
        try:
            reading = self._read(cut, following)
        except RereadError as error:
            self.again |= error.reasons
            return _Outcome.AGAIN
        except MillstreamError as error:
            if self.database.mode is not CaptureMode.WAL or error.code is not Code.CAPTURE_LOST:
                raise
            self._distrust(reason_of(error))
            self.database = with_loss(self.database, self.now(), reason_of(error))
            return _Outcome.AGAIN
        answers = (Answer.FOLLOW, Answer.RESYNC)
        reread = {i: r for i, r in self.again.items() if verdicts[i].answer in answers} if reading.is_whole else {}
        self._land(cut, verdicts, reading, reread)
        return _Outcome.DONE if reading.is_whole else _Outcome.PIECE

    def _read(self, cut: Cut, following: Sequence[Capture]) -> Reading:
        if self.database.mode is CaptureMode.WAL:
            others = [c for c in self._followed() if c not in following]
            reading = read_slot(self.connection, cut, self.database, following, others)
        else:
            reading = self._marked(cut, read_buffers(cut, self.database, following))
        found = {i: moved(self.worker.store, self.captures[i]) for i in reading.windows}
        if wrong := {i: reason for i, reason in found.items() if reason is not None}:
            raise RereadError(wrong)
        return reading

    def _marked(self, cut: Cut, reading: Reading) -> Reading:
        """Make durable what is about to be counted as read, which a crash must not undo; with a mark if it is landed.

        Without one where there is nothing to land, or that is tried again in vain: it is a transaction, after which no
        tick finds that nothing was written.
        """
        is_free, is_marked = cut.connection is not self.connection, False
        compared = [self.captures[id_].details for id_ in self.again]
        if reading.windows or any(BUFFER in details and BEHIND not in details for details in compared):
            is_marked = self._leave_mark(cut, is_free=is_free)
        if not is_marked:
            is_free = is_free or can_flush_within_transaction(self.connection)
            flush_wal(self.connection if is_free else self.second())
        cut.connection.execute("SELECT")  # fails unless this is the server still that gave the snapshot
        return replace(reading, mark=cut.position) if is_marked else reading

    def _leave_mark(self, cut: Cut, *, is_free: bool) -> bool:
        """Whether a mark was left: the role may have no second connection, and then the tick goes on without one."""
        schema = buffer_settings(self.database, self.catalog).schema
        try:
            connection = self.connection if is_free else self.second()
        except MillstreamError as error:
            if error.code is not Code.DATABASE_UNREACHABLE:
                raise
            return False
        return note_mark(connection, schema, cut.position, self.started)

    def _land(self, cut: Cut, verdicts: Mapping[str, Verdict], reading: Reading, reread: Mapping[str, str]) -> None:
        touched, before = {*reading.windows, *reread}, dict(self.captures)
        tick_id = self._begin(reading.position, touched) if touched else self.database.last_tick
        limit = self.settings.direct_max_rows
        landing = Landing(self.worker, cut, tick_id, cut.metadata(reading.position), limit, self.progress)
        for id_, window in reading.windows.items():
            with self._leaving_if_unfit(before[id_]):
                self.captures[id_] = landing.land(before[id_], verdicts[id_], window)
        wider = dict(self._missing_columns())
        for id_, reason in reread.items():
            with self._leaving_if_unfit(before[id_]):
                self.captures[id_] = landing.compare(before[id_], verdicts[id_], reason, wider.get(id_, ()))
        self._check_held(cut, [before[id_] for id_ in reread])
        self._make_durable({id_: self.known[id_] for id_ in touched})
        touched -= self.behind.keys()
        self.landed |= touched
        for id_, look in landing.looks.items():
            verdicts = {**verdicts, id_: replace(verdicts[id_], look=look)}
        self.hindrance, self.unfit = reading.hindrance, reading.unfit
        self._complete(cut, verdicts, reading, touched, tick_id)

    def _make_durable(self, before: Mapping[str, Capture]) -> None:
        """Wait for the disk: what came to mirrors since is about to be forgotten by the database."""

        def sync(id_: str) -> None:
            old, new = before[id_].version, self.captures[id_].version
            assert old is not None
            assert new is not None
            self.worker.store.make_durable(self.captures[id_].path, old, new)

        if before:
            with ThreadPoolExecutor(min(_SYNCED_AT_ONCE, len(before))) as pool:  # a disk syncs many at once as fast
                list(pool.map(sync, before))

    def _check_held(self, cut: Cut, compared: Sequence[Capture]) -> None:
        """See that nobody could have altered the tables while they were compared; else that is to be done again."""
        if cut.snapshot is None:
            return
        try:
            cut.snapshot.check()
        except MillstreamError as error:
            marked = [replace(c, details={**c.details, RESYNC: f"{error.code}: {error.message}"}) for c in compared]
            self.catalog.put_database(self.database, captures=marked)
            raise

    @contextmanager
    def _leaving_if_unfit(self, before: Capture) -> Iterator[None]:
        """Around what is done to one mirror: if that fails, it is where its last commit has brought it."""
        try:
            yield
        except MillstreamError as error:
            tick = self.database.open_tick
            assert tick is not None
            self.captures[before.id] = recovered(self.worker.store, before, tick, self.database.position)
            self._leave(before.id, error)

    # Recording it

    def _begin(self, position: Position, capture_ids: Collection[str]) -> int:
        made = [self.worker.store.transaction_version(self.captures[i].path, i) or 0 for i in capture_ids]
        tick_id = max(self.database.last_tick, *made) + 1
        self.database = replace(self.database, last_tick=tick_id, open_tick=OpenTick(id=tick_id, position=position))
        self.catalog.put_database(self.database)
        return tick_id

    def _complete(
        self, cut: Cut, verdicts: Mapping[str, Verdict], reading: Reading, touched: Collection[str], tick_id: int
    ) -> None:
        readers = self.readers
        if cut.identity != identity_of(self.database):
            readers.reinitialise(self.database.name, f"{Code.DATABASE_REPLACED}: {self.database.name} was replaced")
        before = self.database
        for capture in self.captures.values():
            verdict = verdicts[capture.id]
            if capture.id in self.behind:
                verdict = replace(verdict, answer=Answer.LEAVE)
            is_back = bool(self.known[capture.id].details.get(MISSING))
            readers.tell(capture, verdict.answer, verdict.reason, is_back=is_back)
            pending = self.again.get(capture.id) if capture.id not in touched else None
            if capture.id in reading.ahead:
                continue
            after = recorded(capture, verdict, before, is_landed=capture.id in touched, pending=pending)
            if BUFFER in capture.details and BUFFER not in after.details:
                self.database = with_leftovers(self.database)
            self.captures[capture.id] = after
        database = replace(
            self.database,
            system=cut.identity.system,
            timeline=cut.identity.timeline,
            database=cut.identity.database,
            database_oid=cut.identity.oid,
            position=reading.position,
            reached_at=self.now(),
            last_tick=tick_id,
            open_tick=None,
        )
        database = with_details(database, {STARTED: self.started, MARK: reading.mark or database.details.get(MARK)})
        if reading.unpublished:
            database = without_published(database, reading.unpublished)
        if views := readers.see_views(cut.connection, self.database.name):
            database = with_details(database, {VIEWS: {name: asdict(seen) for name, seen in views.items()}})
        is_seen = database.details.get(VIEWS) != self.database.details.get(VIEWS)
        self.database = self._switched(cut, database) if reading.is_whole else database
        changed = [c for c in self.captures.values() if c != self.known[c.id]]
        forgets = touched or self.behind or CaptureMode.WAL in (database.mode, self.database.mode)
        self.catalog.put_database(self.database, captures=changed, is_seen=is_seen, is_durable=bool(forgets))
        self.known = dict(self.captures)

    def _switched(self, cut: Cut, database: AttachedDatabase) -> AttachedDatabase:
        """The database with its changes read the other way from now on, if the tick can be the last one by this way."""
        followed = self._followed()
        if database.mode is CaptureMode.TRANSITIONING:
            try:
                return self.switch.cut(cut, database, followed)
            except MillstreamError as error:
                self.obstacle = reason_of(error)
                return database
        installed = database.details.get(INSTALLED)
        if installed is None or not all(BUFFER in c.details for c in followed):
            return database
        assert database.position is not None
        if not may_cut_to_triggers(WalPosition.load(database.position), PgSnapshot.parse(str(installed))):
            return database
        moved_back = with_details(leaving(database), {HINDERED: self.hindrance})
        return replace(moved_back, mode=CaptureMode.TRIGGER, position={"snapshot": database.position["snapshot"]})

    # Afterwards

    def _clean_up(self) -> None:
        """Let go of what was landed, and of what nothing is read from any more."""
        source, position = Source(self.connection, self.catalog, self.database), self.database.position
        assert position is not None
        if self.obstacle is not None:
            self.database = self.switch.abandon(self.catalog, self.connection, self.database, self.obstacle)
        if self.database.mode is CaptureMode.WAL:
            advance(self.connection, slot_in(self.database), WalPosition.load(position).lsn)
            self._settle(source)
        else:
            trim(self.connection, self._buffers(self.landed), position["snapshot"])
            self._trim_behind(position["snapshot"])
            self._let_owners_add_partitions()
        self._let_go()
        self.landed, self.obstacle = set(), None

    def _settle(self, source: Source) -> None:
        """Those first that the WAL cannot give: if triggers cannot either, the others need none."""
        followed = sorted(self._followed(), key=lambda c: c.id not in self.unfit)
        behind = [self.captures[id_] for id_ in self.behind]
        try:
            after, self.database = source.settle(followed, behind, is_hindered=self.hindrance is not None)
        except TableError as error:
            self._leave_all(error)
            verdict = Verdict(Answer.LEAVE)
            after = [
                recorded(self.captures[id_], verdict, self.database, is_landed=False, pending=None)
                for id_ in self.behind
            ]
            self.database = with_leftovers(self.database)  # the others may have got triggers
            self.catalog.put_database(self.database, captures=after)
        self.captures |= {c.id: c for c in after}
        self.known = dict(self.captures)

    def _trim_behind(self, snapshot: str) -> None:
        """Nothing will be read from the buffers of those that are to be compared; they may be gone as well."""
        buffers = self._buffers(self.behind)
        if buffers:
            settings = buffer_settings(self.database, self.catalog)
            waiting = buffered_rows(self.connection, settings, [b.oid for b in buffers])
            # Only if there is something to delete: to note a trim is a transaction, after which no tick finds nothing.
            trim(self.connection, [b for b in buffers if waiting.get(b.oid)], snapshot)

    def _let_owners_add_partitions(self) -> None:
        by_row = [c.oid for c in self._followed() if BUFFER in c.details and buffer_of(c).by_row]
        if by_row:
            schema = buffer_settings(self.database, self.catalog).schema
            let_owners_add_partitions(self.connection, by_row, schema)

    def _let_go(self) -> None:
        self.database = let_go(self.connection, self.catalog, self.database, self.progress)
        self.database = clear_if_free(self.connection, self.catalog, self.database, self.progress)

    def _recover(self, tick: OpenTick) -> None:
        """Find out where the mirrors are that a tick was bringing forward when it was cut short."""
        self.progress(f"recovering an interrupted tick of {self.database.name}")
        before = dict(self.captures)
        for capture in before.values():
            self.captures[capture.id] = recovered(self.worker.store, capture, tick, self.database.position)
        self._make_durable(before)
        self.database = replace(self.database, last_tick=max(self.database.last_tick, tick.id), open_tick=None)
        self.catalog.put_database(self.database, captures=list(self.captures.values()))
