"""Declares the served tables of one database, brings them to the version of their stream table, and drops them.

A table's contents and their version are written together, so a crash on either side leaves a table that is exactly at
the recorded version, and the next call continues from there: nothing is applied twice, nothing is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.ddl_turns import CollidedError
from millstream.postgres.driver import errors
from millstream.postgres.locked_names import MovedError
from millstream.reasons import Reason
from millstream.sinks.postgres.failures import MisfitError, coded_errors
from millstream.sinks.postgres.full_reasons import full_reason
from millstream.sinks.postgres.keys import Key
from millstream.sinks.postgres.ledger import Entry, Ledger
from millstream.sinks.postgres.locks import in_short_waits
from millstream.sinks.postgres.net_change import net_change
from millstream.sinks.postgres.search_path import pin_path
from millstream.sinks.postgres.table import (
    create_table,
    drop_table,
    find_table,
    grant,
    is_ours,
    name_of,
    refuse_taken,
)
from millstream.sinks.postgres.table_writer import OvertakenError, Served, TableWriter
from millstream.sinks.postgres.target import Feed, Mark, Target


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
        """Create the table, empty, under a name that is free.

        Args:
            live: the stream tables of the lake that are served. A table that was created for any other one and never
                filled, because the connection was lost, is dropped first.

        Raises:
            MillstreamError: NAME_TAKEN, UNKNOWN_TABLE, PRIVILEGE_MISSING, SERVE_FAILED.
        """
        with self._work(target), self._connection.transaction():
            self._ledger.prepare(self._connection)
            self._remove_never_served(target, lake_id, live)
            refuse_taken(self._connection, target)
            found = create_table(self._connection, target)
            self._ledger.add(
                self._connection, target, lake_id, stream_table, found.oid, key=Key.of(target), types=target.types
            )

    def entry(self, target: Target) -> Entry | None:
        """What the ledger records about a served table."""
        return self._ledger.find(self._connection, target)

    def accounting_in(self, ledger: Ledger) -> PostgresSink:
        """The same connection, and the same transaction if there is one, with another ledger."""
        return PostgresSink(self._connection, ledger, self._sources)

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Roll back everything done inside the block at its end; errors are raised."""
        with self._connection.transaction(force_rollback=True):
            yield

    @contextmanager
    def together(self, target: Target) -> Iterator[None]:
        """Everything done to a table inside the block is done in one transaction, or not at all.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE if the connection is lost during the commit.
        """
        with coded_errors(self._connection, target, self._ledger.schema), self._connection.transaction():
            yield

    def grant(self, target: Target) -> None:
        """Set the table's owner, and let the chosen roles read it.

        Raises:
            MillstreamError: PRIVILEGE_MISSING, SERVE_FAILED.
        """
        with self._work(target), self._connection.transaction():
            found = find_table(self._connection, target)
            if found is None:
                raise MillstreamError(
                    Code.SERVE_FAILED, f"there is no table {target.name}", hint="the next refresh creates it again"
                )
            grant(self._connection, target, found.oid)

    def _remove_never_served(self, target: Target, lake_id: str, live: Collection[str]) -> None:
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
        writer = TableWriter(self._connection, self._ledger, self._sources, target, mark)
        with self._work(target):
            while True:
                try:
                    return self._serve(writer, feed)
                except OvertakenError:
                    continue

    def _serve(self, writer: TableWriter, feed: Feed) -> Served:
        target, mark = writer.target, writer.mark
        known = self._ledger.find(self._connection, target)
        reason = full_reason(known, target, mark, feed)
        if known is not None and not reason:
            assert known.version is not None
            if known.version == mark.version and writer.is_there(known):
                return writer.record_unchanged(known)
            delta = feed.delta(known.version)
            try:
                if isinstance(delta, str):
                    raise MisfitError(delta)
                return writer.apply(known, net_change(target, delta) if isinstance(delta, pa.Table) else delta)
            except MisfitError as misfits:
                reason = str(misfits)
            except errors.UniqueViolation as e:  # of the table itself; one inside a trigger is the trigger's failure
                if (e.diag.schema_name, e.diag.table_name) != (target.schema, target.table):
                    raise
                reason = f"{Reason.SERVED_CHANGED}: the served table has a row that conflicts with a new one"
        if known is not None and known.key.forbids(Key.of(target)):
            known = writer.remove_key(known)
        return writer.rewrite(known, feed, reason)

    @contextmanager
    def _work(self, target: Target) -> Iterator[None]:
        """Wraps all work in the database: names refer to PostgreSQL's own objects, and errors are coded."""
        with coded_errors(self._connection, target, self._ledger.schema):
            pin_path(self._connection)
            yield

    def drop(self, target: Target, *, cascade: bool) -> None:
        """Drop the table, and remove it from the ledger.

        Raises:
            MillstreamError: DEPENDENTS_EXIST if objects of the database depend on it, unless `cascade`; LOCK_TIMEOUT.
        """

        def work() -> None:
            entry = self._ledger.find(self._connection, target, lock=True)
            if entry is not None and (named := self._present_name(target, entry)) is not None:
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
                    f"{target.name} cannot be dropped: other sessions hold locks on it",
                    hint="look in pg_stat_activity for long transactions that read it, and try again",
                ) from e

    def drop_if_served(self, target: Target) -> None:
        """Drop the table of exactly that name if it is the one that the ledger records.

        Raises:
            MillstreamError: as `drop`.
        """
        with self._work(target):
            entry, found = self._ledger.find(self._connection, target), find_table(self._connection, target)
        if entry is not None and found is not None and entry.relation == found.oid:
            self.drop(target, cascade=False)

    def _present_name(self, target: Target, entry: Entry) -> tuple[Target, int] | None:
        """The served table under its current name: it may have been renamed, or restored from a dump."""
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
        """Remove the table from the ledger, and leave it to its users as it is."""
        with self._work(target), self._connection.transaction():
            self._ledger.remove(self._connection, target)
