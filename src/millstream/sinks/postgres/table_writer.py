"""Writes one served table in one transaction: applies a change of the result, or brings the table to the whole result.

The transaction also records the version that the rows stand for, so a crash leaves a table that is exactly at the
version recorded for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.postgres.locked_names import MovedError, lock, require
from millstream.reasons import Reason
from millstream.sinks.postgres import full_difference, match_by_ctid, match_by_key
from millstream.sinks.postgres.dml import Counts, run_statements
from millstream.sinks.postgres.encode import lines_of
from millstream.sinks.postgres.failures import MisfitError
from millstream.sinks.postgres.foreign_code import foreign_function_notice, foreign_functions
from millstream.sinks.postgres.incoming_rows import copy_incoming
from millstream.sinks.postgres.keys import Key, change_key, revoke_key
from millstream.sinks.postgres.large_net_change import copy_pieces
from millstream.sinks.postgres.ledger import Entry, Ledger
from millstream.sinks.postgres.locks import lock_out_readers
from millstream.sinks.postgres.net_change import Change, copy_change
from millstream.sinks.postgres.notify import CHANNEL, message
from millstream.sinks.postgres.retype import retype
from millstream.sinks.postgres.table import (
    MERGE,
    Found,
    create_table,
    find_table,
    is_ours,
    misfit,
    name_of,
    refuse_taken,
)
from millstream.sinks.postgres.target import Feed, Mark, Target, UserTriggers
from millstream.sinks.postgres.triggers import (
    UserTrigger,
    WrittenElsewhere,
    new_trigger_notice,
    suppressed,
    user_triggers,
    written_source_notice,
)

if TYPE_CHECKING:
    import pyarrow as pa

# computing the rows may take long
_TIMEOUTS = "SET LOCAL lock_timeout = '60s'; SET LOCAL idle_in_transaction_session_timeout = 0"
NONE, DIFFERENTIAL, FULL = "NONE", "DIFFERENTIAL", "FULL"


@dataclass(frozen=True, slots=True)
class Served:
    """What was done; `notices` are texts of warnings for the user, each reported once."""

    mode: str
    counts: Counts = field(default_factory=Counts)
    reason: str = ""
    notices: tuple[str, ...] = ()


class OvertakenError(Exception):
    """Another session has served or replaced the table meanwhile."""


@dataclass(frozen=True, slots=True)
class TableWriter:
    """Brings one served table to a mark.

    Args:
        sources: the oids and names of the tables the stream table reads in the same database.
    """

    connection: Connection
    ledger: Ledger
    sources: Mapping[int, str]
    target: Target
    mark: Mark

    def is_there(self, known: Entry) -> bool:
        """Whether the table of the entry still has its name."""
        found = find_table(self.connection, self.target)
        return found is not None and found.oid == known.relation

    def record_unchanged(self, known: Entry) -> Served:
        """Record that the table is at the mark without a change.

        Raises:
            OvertakenError: another session has served it since `known` was read.
        """
        if not self.ledger.record_unchanged(self.connection, self.target, self.mark, known):
            raise OvertakenError
        return Served(NONE)

    # A change

    def apply(self, known: Entry, change: Change | Iterable[pa.Table]) -> Served:
        """Apply a net change, or the pieces of a large one.

        Raises:
            MisfitError: the table is not what the ledger says.
            OvertakenError: as `record_unchanged`.
        """
        connection, target = self.connection, self.target
        with connection.transaction():
            entry = self._locked_entry(known)
            found = find_table(connection, target)
            if entry is None or found is None or found.oid != entry.relation:
                raise MisfitError(f"{Reason.SERVED_MISSING}: the served table was dropped or replaced")
            _require_fit(target, found, entry)
            if isinstance(change, Change) and change.is_empty:
                return self.record_unchanged(entry)
            self._lock(found, "ROW EXCLUSIVE")
            triggers = user_triggers(connection, found.oid)
            live = triggers if target.user_triggers is UserTriggers.AUTO else ()
            ctids = self.ledger.ctid_table(target) if entry.by_ctid or _needs_ctids(target, live) else None
            if ctids is not None and entry.by_ctid and entry.filenode != found.filenode:
                raise MisfitError(f"{Reason.SERVED_MOVED}: the served table was rewritten, e.g. by VACUUM FULL")
            if ctids is not None and not entry.by_ctid:
                self._prepare_ctids(ctids)
                match_by_ctid.record_existing(connection, target, ctids)
            written = WrittenElsewhere(connection, self.sources if live else {})
            with suppressed(connection, target, () if live else triggers):
                counts = self._write_change(found, change, live, ctids)
            done = Served(DIFFERENTIAL, counts, str(Reason.CHANGED))
            return self._record(entry, found, done, live, written, by_ctid=ctids is not None)

    def _write_change(
        self,
        found: Found,
        change: Change | Iterable[pa.Table],
        live: tuple[UserTrigger, ...],
        ctids: sql.Identifier | None,
    ) -> Counts:
        connection, target = self.connection, self.target
        new = "A" if target.key is not None and ctids is None else "P"
        if isinstance(change, Change):
            incoming = copy_change(connection, target, change, new)
        else:
            incoming = copy_pieces(connection, target, change, new)
        may_veto = any(t.may_veto for t in live)
        if ctids is not None:
            match_by_ctid.locate(connection, target, ctids)
            counts = run_statements(connection, target, by_ctid=True, may_veto=may_veto)
            match_by_ctid.record(connection, ctids)
            return counts
        if live or found.has_rules or connection.info.server_version < MERGE:
            match_by_key.locate(connection, target, incoming.null_keys)
            return run_statements(connection, target, by_ctid=False, may_veto=may_veto or found.has_rules)
        match_by_key.merge(connection, target, incoming.null_keys)
        return incoming.counts

    # The whole result

    def rewrite(self, known: Entry | None, feed: Feed, reason: str) -> Served:
        """Bring the table to the whole result, and create it if it is missing.

        Raises:
            OvertakenError: as `record_unchanged`.
        """
        connection, target = self.connection, self.target
        with connection.transaction():
            self.ledger.prepare(connection)
            found = self._ensure_table(self._locked_entry(known))
            entry = self.ledger.find(connection, target, lock=True)
            assert entry is not None
            self._lock(found, "SHARE ROW EXCLUSIVE")  # no other session may move compared rows
            triggers = user_triggers(connection, found.oid)
            is_auto = target.user_triggers is UserTriggers.AUTO
            live = tuple(t for t in triggers if is_auto and not t.is_row)
            ctids = self.ledger.ctid_table(target) if _needs_ctids(target, triggers if is_auto else ()) else None
            names = [c.name for c in target.columns]
            rows = (("P", line) for piece in feed.contents() for line in lines_of(piece, names))
            copy_incoming(connection, target, rows)
            written = WrittenElsewhere(connection, self.sources if live else {})
            with suppressed(connection, target, [t for t in triggers if t not in live]):
                deleted = retype(connection, target, found)
                full_difference.locate(connection, target)
                if ctids is not None:
                    self._prepare_ctids(ctids)
                    match_by_ctid.fill_keys(connection, target)
                counts = run_statements(connection, target, by_ctid=ctids is not None, may_veto=found.has_rules)
                counts = replace(counts, deleted=counts.deleted + deleted)
                if ctids is not None:
                    match_by_ctid.record_all(connection, ctids)
            if entry.key != Key.of(target):
                change_key(connection, target, found.oid, entry.key)
            done = Served(FULL, counts, reason)
            seen = triggers if is_auto else ()
            return self._record(entry, found, done, seen, written, by_ctid=ctids is not None)

    def remove_key(self, known: Entry) -> Entry | None:
        """Remove a key that new rows may violate, in a transaction of its own: readers wait until its end."""
        connection, target = self.connection, self.target
        with connection.transaction():
            self._locked_entry(known)
            found = find_table(connection, target)
            if found is None or (found.oid != known.relation and not is_ours(connection, target, found)):
                return known
            _require_fit(target, found, known)
            try:
                lock_out_readers(connection, target.named(found.oid))
            except MovedError as e:
                raise OvertakenError from e
            revoke_key(connection, target, found.oid, known.key)
            self.ledger.forget_key(connection, target)
            return self.ledger.find(connection, target)

    def _ensure_table(self, entry: Entry | None) -> Found:
        """The table, created if it is missing; another one of its name is used only if it was restored from a dump."""
        connection, target = self.connection, self.target
        found = find_table(connection, target)
        key, types = (entry.key, entry.types) if entry is not None else (Key.of(target), target.types)
        if found is None:
            if entry is not None and (other := name_of(connection, entry.relation)) is not None:
                raise MillstreamError(
                    Code.SERVE_FAILED,
                    f"the table {target.name} was renamed to {'.'.join(other)}",
                    hint="rename it back, or STOP SERVING and SERVE TO the new name",
                )
            found, key, types = create_table(connection, target), Key.of(target), target.types
        elif entry is None or (entry.relation != found.oid and not is_ours(connection, target, found)):
            refuse_taken(connection, target)
        _require_fit(target, found, entry)
        if entry is None or entry.relation != found.oid:
            lake_id, stream_table = self.mark.lake_id, self.mark.stream_table
            self.ledger.add(connection, target, lake_id, stream_table, found.oid, key=key, types=types)
        return found

    # Both

    def _prepare_ctids(self, ctids: sql.Identifier) -> None:
        if match_by_ctid.create_ctid_table(self.connection, ctids):
            self.ledger.close_ctid_table(self.connection, self.target)

    def _locked_entry(self, known: Entry | None) -> Entry | None:
        """The ledger's entry, locked until the end of the transaction."""
        self.connection.execute(_TIMEOUTS)
        entry = self.ledger.find(self.connection, self.target, lock=True)
        if entry != known:
            raise OvertakenError
        return entry

    def _lock(self, found: Found, mode: str) -> None:
        """Lock the table that was found, unless the owner of its schema has put another in its place meanwhile."""
        try:
            lock(self.connection, self.target.named(found.oid), mode)
        except MovedError as e:
            raise OvertakenError from e

    def _record(
        self,
        entry: Entry,
        found: Found,
        done: Served,
        triggers: tuple[UserTrigger, ...],
        written: WrittenElsewhere,
        *,
        by_ctid: bool,
    ) -> Served:
        connection, target, mark = self.connection, self.target, self.mark
        try:
            require(connection, [target.named(found.oid)])  # no lock protects the name of its schema
        except MovedError as e:
            raise OvertakenError from e
        name = mark.stream_table
        notices = {f"trigger {t.name}": new_trigger_notice(name, target, t) for t in triggers}
        notices |= {f"source {s}": written_source_notice(name, target, s) for s in written.tables()}
        functions = foreign_functions(connection, found)
        notices |= {f"function {f.name}": foreign_function_notice(name, target, f) for f in functions}
        notified = entry.notified | notices.keys()
        self.ledger.record_served(connection, target, mark, done.mode, done.reason, by_ctid=by_ctid, notified=notified)
        connection.execute("SELECT pg_notify(%s, %s)", [CHANNEL, message(target, mark, done.mode, done.counts)])
        new = tuple(text for key, text in notices.items() if key not in entry.notified)
        return Served(done.mode, done.counts, done.reason, new)


def _needs_ctids(target: Target, triggers: tuple[UserTrigger, ...]) -> bool:
    return not target.is_keyed or any(t.may_alter for t in triggers)


def _require_fit(target: Target, found: Found, entry: Entry | None) -> None:
    if (what := misfit(target, found, entry.types if entry is not None else {})) is not None:
        raise MillstreamError(
            Code.SERVE_FAILED,
            f"{target.name} was altered: {what}",
            hint="undo that, or STOP SERVING and SERVE TO it again",
        )
