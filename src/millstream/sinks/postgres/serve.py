"""Serves a result: brings the real table from the version it has recorded to the present one, in one transaction.

What the table holds and the version that stands for are written together, so a crash on either side leaves a table that
is exactly at the version it says, and the next call goes on from there: nothing is applied twice, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
from psycopg import errors, sql

from millstream.errors import Code, MillstreamError
from millstream.postgres.named import MovedError, lock, require
from millstream.postgres.turns import CollidedError
from millstream.sinks.postgres import by_key, by_place, rewrite
from millstream.sinks.postgres.changes import Change, net_change, stage_change
from millstream.sinks.postgres.encode import lines_of
from millstream.sinks.postgres.failures import MisfitError, told
from millstream.sinks.postgres.foreign_code import about_function, foreign_functions
from millstream.sinks.postgres.keys import Key, change_key, revoke_key
from millstream.sinks.postgres.large_changes import stage_pieces
from millstream.sinks.postgres.ledger import Entry, Ledger
from millstream.sinks.postgres.locks import in_short_waits, lock_out_readers
from millstream.sinks.postgres.moves import Counts, move
from millstream.sinks.postgres.news import CHANNEL, message
from millstream.sinks.postgres.no_delta import Feed, no_delta
from millstream.sinks.postgres.paths import pin_path
from millstream.sinks.postgres.retype import retype
from millstream.sinks.postgres.staging import stage
from millstream.sinks.postgres.table import (
    MERGE,
    Found,
    create_table,
    drop_table,
    find_table,
    grant,
    is_ours,
    misfit,
    name_of,
    refuse_taken,
)
from millstream.sinks.postgres.target import Connection, Mark, Target, UserTriggers
from millstream.sinks.postgres.triggers import (
    UserTrigger,
    WrittenElsewhere,
    about_new,
    about_source,
    suppressed,
    user_triggers,
)

# rows may be long in coming
_TIMEOUTS = "SET LOCAL lock_timeout = '60s'; SET LOCAL idle_in_transaction_session_timeout = 0"
NONE, DIFFERENTIAL, FULL = "NONE", "DIFFERENTIAL", "FULL"


@dataclass(frozen=True, slots=True)
class Served:
    """What was done; `notices` are things its user should know, each said once."""

    mode: str
    counts: Counts = field(default_factory=Counts)
    reason: str = ""
    notices: tuple[str, ...] = ()


class _OvertakenError(Exception):
    """Somebody else has served the table meanwhile."""


class PostgresSink:
    """Served tables of one database, over one connection in autocommit mode.

    Args:
        sources: the oids and names of the tables the stream table reads in the same database.
    """

    def __init__(self, connection: Connection, ledger: Ledger, sources: Mapping[int, str] | None = None) -> None:
        self._connection = connection
        self._ledger = ledger
        self._sources = sources or {}

    def declare(self, target: Target, lake_id: str, stream_table: str, live: Collection[str] = ()) -> None:
        """Make the table, empty, under a name that is free.

        Args:
            live: the stream tables of the lake that are served. A table that was made for another of them and never
                served, because the connection was lost when it was made, is not in the way.

        Raises:
            MillstreamError: NAME_TAKEN, UNKNOWN_TABLE, PRIVILEGE_MISSING, SERVE_FAILED.
        """
        with self._work(target), self._connection.transaction():
            self._ledger.prepare(self._connection)
            self._remove_stillborn(target, lake_id, live)
            refuse_taken(self._connection, target)
            found = create_table(self._connection, target)
            self._ledger.add(
                self._connection, target, lake_id, stream_table, found.oid, key=Key.of(target), types=target.types
            )

    def accounting_in(self, ledger: Ledger) -> PostgresSink:
        """The same connection, and the same transaction if there is one, with other bookkeeping."""
        return PostgresSink(self._connection, ledger, self._sources)

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """What is done meanwhile is taken back at the end: its errors are all that comes of it."""
        with self._connection.transaction(force_rollback=True):
            yield

    @contextmanager
    def together(self, target: Target) -> Iterator[None]:
        """What is done meanwhile to a table is done in one transaction, or not at all.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE if the connection is lost when that is to be committed.
        """
        with told(self._connection, target, self._ledger.schema), self._connection.transaction():
            yield

    def grant(self, target: Target) -> None:
        """Give the table to its owner and its readers.

        Raises:
            MillstreamError: PRIVILEGE_MISSING, SERVE_FAILED.
        """
        with self._work(target), self._connection.transaction():
            found = find_table(self._connection, target)
            if found is None:
                raise MillstreamError(
                    Code.SERVE_FAILED, f"there is no table {target.name}", hint="the next refresh makes it again"
                )
            grant(self._connection, target, found.oid)

    def _remove_stillborn(self, target: Target, lake_id: str, live: Collection[str]) -> None:
        found = find_table(self._connection, target)
        if found is None or not is_ours(self._connection, target, found):
            return
        for table_id in self._ledger.never_served(self._connection, lake_id, found.oid):
            if table_id not in live:
                drop_table(self._connection, target, found.oid, cascade=False)
                self._ledger.remove(self._connection, replace(target, table_id=table_id), keep_schema=True)

    def serve(self, target: Target, mark: Mark, feed: Feed) -> Served:
        """Bring the table to a mark.

        Raises:
            MillstreamError: SERVE_FAILED, PRIVILEGE_MISSING, DATABASE_UNREACHABLE; the table is as it was.
        """
        with self._work(target):
            while True:
                try:
                    return self._serve(target, mark, feed)
                except _OvertakenError:
                    continue

    def _serve(self, target: Target, mark: Mark, feed: Feed) -> Served:
        known = self._ledger.find(self._connection, target)
        reason = no_delta(known, target, mark, feed)
        if known is not None and not reason:
            assert known.version is not None
            if known.version == mark.version and self._is_there(target, known):
                return self._touched(target, mark, known)
            delta = feed.delta(known.version)
            try:
                if isinstance(delta, str):
                    raise MisfitError(delta)
                change = net_change(target, delta) if isinstance(delta, pa.Table) else delta
                return self._apply(target, mark, known, change)
            except MisfitError as misfits:
                reason = str(misfits)
            except errors.UniqueViolation as e:  # of the table itself; one inside of a trigger is its user's business
                if (e.diag.schema_name, e.diag.table_name) != (target.schema, target.table):
                    raise
                reason = "SERVED_CHANGED: the served table has a row that stands in the way"
        if known is not None and known.key.forbids(Key.of(target)):
            known = self._without_key(target, known)
        return self._rewrite(target, mark, known, feed, reason)

    def _touched(self, target: Target, mark: Mark, known: Entry) -> Served:
        if not self._ledger.touch(self._connection, target, mark, known):
            raise _OvertakenError
        return Served(NONE)

    def _is_there(self, target: Target, known: Entry) -> bool:
        found = find_table(self._connection, target)
        return found is not None and found.oid == known.relation

    # A delta

    def _apply(self, target: Target, mark: Mark, known: Entry, change: Change | Iterable[pa.Table]) -> Served:
        connection = self._connection
        with connection.transaction():
            entry = self._locked(target, known)
            found = find_table(connection, target)
            if entry is None or found is None or found.oid != entry.relation:
                raise MisfitError("SERVED_MISSING: the served table was dropped or replaced")
            _require_fit(target, found, entry)
            if isinstance(change, Change) and change.is_empty:
                return self._touched(target, mark, entry)
            self._lock(target, found, "ROW EXCLUSIVE")
            triggers = user_triggers(connection, found.oid)
            live = triggers if target.user_triggers is UserTriggers.AUTO else ()
            places = self._ledger.places(target) if entry.by_place or _needs_places(target, live) else None
            if places is not None and entry.by_place and entry.filenode != found.filenode:
                raise MisfitError("SERVED_MOVED: the served table was rewritten, e.g. by VACUUM FULL")
            if places is not None and not entry.by_place:
                self._prepare_places(target, places)
                by_place.adopt(connection, target, places)
            written = WrittenElsewhere(connection, self._sources if live else {})
            with suppressed(connection, target, () if live else triggers):
                counts = self._move(target, found, change, live, places)
            done = Served(DIFFERENTIAL, counts, "CHANGED")
            return self._record(target, mark, entry, found, done, live, written, by_place=places is not None)

    def _move(
        self,
        target: Target,
        found: Found,
        change: Change | Iterable[pa.Table],
        live: tuple[UserTrigger, ...],
        places: sql.Identifier | None,
    ) -> Counts:
        connection = self._connection
        new = "A" if target.key is not None and places is None else "P"
        if isinstance(change, Change):
            staged = stage_change(connection, target, change, new)
        else:
            staged = stage_pieces(connection, target, change, new)
        may_veto = any(t.may_veto for t in live)
        if places is not None:
            by_place.locate(connection, target, places)
            counts = move(connection, target, by_place=True, may_veto=may_veto)
            by_place.record(connection, places)
            return counts
        if live or found.has_rules or connection.info.server_version < MERGE:
            by_key.locate(connection, target, staged.null_keys)
            return move(connection, target, by_place=False, may_veto=may_veto or found.has_rules)
        by_key.merge(connection, target, staged.null_keys)
        return staged.counts

    # The whole

    def _rewrite(self, target: Target, mark: Mark, known: Entry | None, feed: Feed, reason: str) -> Served:
        connection = self._connection
        with connection.transaction():
            self._ledger.prepare(connection)
            found = self._ensure(target, mark, self._locked(target, known))
            entry = self._ledger.find(connection, target, lock=True)
            assert entry is not None
            self._lock(target, found, "SHARE ROW EXCLUSIVE")  # nobody else moves rows that were compared
            triggers = user_triggers(connection, found.oid)
            is_auto = target.user_triggers is UserTriggers.AUTO
            live = tuple(t for t in triggers if is_auto and not t.is_row)
            places = self._ledger.places(target) if _needs_places(target, triggers if is_auto else ()) else None
            names = [c.name for c in target.columns]
            stage(connection, target, (("P", line) for piece in feed.contents() for line in lines_of(piece, names)))
            written = WrittenElsewhere(connection, self._sources if live else {})
            with suppressed(connection, target, [t for t in triggers if t not in live]):
                gone = retype(connection, target, found)
                rewrite.locate(connection, target)
                if places is not None:
                    self._prepare_places(target, places)
                    by_place.note_keys(connection, target)
                counts = move(connection, target, by_place=places is not None, may_veto=found.has_rules)
                counts = replace(counts, deleted=counts.deleted + gone)
                if places is not None:
                    by_place.record_all(connection, places)
            if entry.key != Key.of(target):
                change_key(connection, target, found.oid, entry.key)
            done = Served(FULL, counts, reason)
            seen = triggers if is_auto else ()
            return self._record(target, mark, entry, found, done, seen, written, by_place=places is not None)

    def _without_key(self, target: Target, known: Entry) -> Entry | None:
        """Take away a key that new rows may break, in a transaction of its own: readers wait until its end."""
        with self._connection.transaction():
            self._locked(target, known)
            found = find_table(self._connection, target)
            if found is None or (found.oid != known.relation and not is_ours(self._connection, target, found)):
                return known
            _require_fit(target, found, known)
            try:
                lock_out_readers(self._connection, target.named(found.oid))
            except MovedError as e:
                raise _OvertakenError from e
            revoke_key(self._connection, target, found.oid, known.key)
            self._ledger.forget_key(self._connection, target)
            return self._ledger.find(self._connection, target)

    def _ensure(self, target: Target, mark: Mark, entry: Entry | None) -> Found:
        """The table, made if it is not there; never somebody else's, but one that was restored from a dump."""
        connection = self._connection
        found = find_table(connection, target)
        key, types = (entry.key, entry.types) if entry is not None else (Key.of(target), target.types)
        if found is None:
            if entry is not None and (other := name_of(connection, entry.relation)) is not None:
                raise MillstreamError(
                    Code.SERVE_FAILED,
                    f"the table {target.name} is called {'.'.join(other)} now",
                    hint="give it its name back, or STOP SERVING and SERVE TO the new one",
                )
            found, key, types = create_table(connection, target), Key.of(target), target.types
        elif entry is None or (entry.relation != found.oid and not is_ours(connection, target, found)):
            refuse_taken(connection, target)
        _require_fit(target, found, entry)
        if entry is None or entry.relation != found.oid:
            self._ledger.add(connection, target, mark.lake_id, mark.stream_table, found.oid, key=key, types=types)
        return found

    # Both

    def _prepare_places(self, target: Target, places: sql.Identifier) -> None:
        if by_place.prepare(self._connection, places):
            self._ledger.close_places(self._connection, target)

    @contextmanager
    def _work(self, target: Target) -> Iterator[None]:
        """All that is done in the database is done inside of one: names are PostgreSQL's own, and errors coded."""
        with told(self._connection, target, self._ledger.schema):
            pin_path(self._connection)
            yield

    def _locked(self, target: Target, known: Entry | None) -> Entry | None:
        """The bookkeeping's entry, which nobody else changes until the end of the transaction."""
        self._connection.execute(_TIMEOUTS)
        entry = self._ledger.find(self._connection, target, lock=True)
        if entry != known:
            raise _OvertakenError
        return entry

    def _lock(self, target: Target, found: Found, mode: str) -> None:
        """Lock the table that was looked at: in between, the owner of its schema may have put another in its place."""
        try:
            lock(self._connection, target.named(found.oid), mode)
        except MovedError as e:
            raise _OvertakenError from e

    def _record(
        self,
        target: Target,
        mark: Mark,
        entry: Entry,
        found: Found,
        done: Served,
        triggers: tuple[UserTrigger, ...],
        written: WrittenElsewhere,
        *,
        by_place: bool,
    ) -> Served:
        try:
            require(self._connection, [target.named(found.oid)])  # no lock holds the name of its schema
        except MovedError as e:
            raise _OvertakenError from e
        said = {f"trigger {t.name}": about_new(mark.stream_table, target, t) for t in triggers}
        said |= {f"source {s}": about_source(mark.stream_table, target, s) for s in written.tables()}
        functions = foreign_functions(self._connection, found)
        said |= {f"function {f.name}": about_function(mark.stream_table, target, f) for f in functions}
        self._ledger.move(
            self._connection, target, mark, done.mode, done.reason, by_place=by_place, told=entry.told | said.keys()
        )
        self._connection.execute("SELECT pg_notify(%s, %s)", [CHANNEL, message(target, mark, done.mode, done.counts)])
        new = tuple(text for key, text in said.items() if key not in entry.told)
        return Served(done.mode, done.counts, done.reason, new)

    # The end

    def drop(self, target: Target, *, cascade: bool) -> None:
        """Drop the table, and forget it.

        Raises:
            MillstreamError: DEPENDENTS_EXIST if others depend on it in the database, unless `cascade`; LOCK_TIMEOUT.
        """

        def work() -> None:
            entry = self._ledger.find(self._connection, target, lock=True)
            if entry is not None and (named := self._whichever(target, entry)) is not None:
                try:
                    drop_table(self._connection, *named, cascade=cascade)
                except MovedError as e:
                    raise CollidedError from e
            self._ledger.remove(self._connection, target)

        with self._work(target):
            try:
                in_short_waits(self._connection, work)
            except (errors.LockNotAvailable, errors.DeadlockDetected, CollidedError) as e:
                raise MillstreamError(
                    Code.LOCK_TIMEOUT,
                    f"{target.name} cannot be dropped: others hold locks on it",
                    hint="look in pg_stat_activity for long transactions that read it, and try again",
                ) from e

    def drop_if_served(self, target: Target) -> None:
        """Drop the table of exactly that name if the bookkeeping is about it, rather than about one that came after.

        Raises:
            MillstreamError: as `drop`.
        """
        with self._work(target):
            entry, found = self._ledger.find(self._connection, target), find_table(self._connection, target)
        if entry is not None and found is not None and entry.relation == found.oid:
            self.drop(target, cascade=False)

    def _whichever(self, target: Target, entry: Entry) -> tuple[Target, int] | None:
        """The served table by the name it has now: somebody may have renamed it, or restored it from a dump."""
        other = name_of(self._connection, entry.relation)
        names = [(target.schema, target.table), *([other] if other is not None else [])]
        for schema, table in names:
            named: Target = replace(target, schema=schema, table=table)
            found = find_table(self._connection, named)
            is_same = named == target and found is not None and found.oid == entry.relation
            if found is not None and (is_same or is_ours(self._connection, target, found)):
                return named, found.oid
        return None

    def release(self, target: Target) -> None:
        """Leave the table to its users as it is, and forget it."""
        with self._work(target), self._connection.transaction():
            self._ledger.remove(self._connection, target)


def _needs_places(target: Target, triggers: tuple[UserTrigger, ...]) -> bool:
    return not target.is_keyed or any(t.may_alter for t in triggers)


def _require_fit(target: Target, found: Found, entry: Entry | None) -> None:
    if (what := misfit(target, found, entry.types if entry is not None else {})) is not None:
        raise MillstreamError(
            Code.SERVE_FAILED,
            f"{target.name} is not as it was made: {what}",
            hint="undo that, or STOP SERVING and SERVE TO it again",
        )
