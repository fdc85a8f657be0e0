"""A snapshot of a database, held open so that several readers see exactly the same rows."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeAlias

from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address, ResolvedAddress
from millstream.postgres.connection import Connection, connect, resolved
from millstream.postgres.driver import psycopg, sql
from millstream.postgres.locked_names import FOREIGN, VIEWS, MovedError, hold, lock_only, require, restrict
from millstream.sources.postgres.server.reading_errors import first_line, moved_error, reading_error
from millstream.sources.postgres.server.relations import Relation, RelationKind
from millstream.sources.postgres.server.table_error import TableError

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the rows read so far and the rows expected, which is an estimate."""

_KEEP_ALIVE_SECONDS = 20.0
_REPORT_SECONDS = 0.5
_LOCK_TIMEOUT = "10s"
# A session that wants to alter a table waits for the exporting transaction, and a reader for that session: a deadlock.
_READERS_LOCK_TIMEOUT = "3s"

_COPIED = """
SELECT a.pid, a.backend_start::text, p.tuples_processed
FROM pg_stat_progress_copy p JOIN pg_stat_activity a USING (pid) WHERE a.application_name = %s
"""


class ExportedSnapshot:
    """A transaction that exports its snapshot for as long as the block lasts.

    It also holds the weakest lock on the tables. TRUNCATE and rewrites of a table do not respect snapshots: without the
    lock, a reader that comes after one finds no rows and no error. Under the lock it also checks that the names mean
    what they meant when the tables were found, as they do until the end (see `millstream.postgres.locked_names`).
    Leaving the block fails if the transaction was lost meanwhile, since then the rows that were read may be wrong.

    Args:
        relations: the tables to be read.
        take: returns the name of a snapshot to hold instead of a new one, e.g. that of a new replication slot;
            called once the tables are locked.
        trusted: roles whose functions may run when the tables are read: see `planned_code`.

    Attributes:
        name: for `SET TRANSACTION SNAPSHOT`.
        position: the snapshot as `pg_snapshot` text.
        address: for readers, which may be on other machines.
        connection: sees the snapshot.
    """

    name: str
    position: str
    address: ResolvedAddress
    connection: Connection

    def __init__(
        self,
        address: Address,
        relations: Sequence[Relation] = (),
        take: Callable[[], str] | None = None,
        trusted: Sequence[str] = (),
    ) -> None:
        self.trusted = tuple(trusted)
        self._address = address
        self._relations = relations
        self._take = take
        self._label = f"millstream reader {uuid.uuid4().hex[:12]}"
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._report: tuple[int, Progress] | None = None
        self._seen: dict[tuple[int, str], int] = {}

    def __enter__(self) -> Self:
        self.connection = connect(self._address)
        try:
            self.address = resolved(self._address, self.connection, self._label)
            restrict(self.connection, [VIEWS, FOREIGN])
            self._begin()
        except BaseException:
            self.connection.close()
            raise
        self._thread = threading.Thread(target=self._keep_alive, name="millstream-snapshot", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closing.set()
        self._wake.set()
        self._thread.join()
        try:
            if kind is None:
                self.check()
                if self._report is not None:
                    expected, progress = self._report
                    progress(expected, expected)
        finally:
            self.connection.close()

    def check(self) -> None:
        """Check that the snapshot is still held.

        Raises:
            MillstreamError: SNAPSHOT_LOST.
        """
        try:
            self.connection.execute("SELECT 1")
        except psycopg.Error as e:
            raise snapshot_lost(self._address, e) from e

    def report(self, expected: int, progress: Progress) -> None:
        """Report the rows that readers elsewhere have read, of one table at a time, until the block ends."""
        self._seen.clear()
        self._report = (expected, progress)
        self._wake.set()

    def _begin(self) -> None:
        execute = self.connection.execute
        execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            # None of these statements takes a snapshot: the snapshot must not be older than the locks.
            _set_time_limits(self.connection, _LOCK_TIMEOUT)
            tables = [r for r in self._relations if r.kind in (RelationKind.TABLE, RelationKind.PARTITIONED)]
            for table in tables:
                with self._about(table):
                    lock_only(self.connection, table.named, "ACCESS SHARE", only=False)
            if self._take is not None:
                execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self._take())))
            row = execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
            for relation in self._relations:
                with self._about(relation):
                    if relation in tables:
                        require(self.connection, [relation.named])
                    else:  # LOCK TABLE accepts tables only
                        hold(self.connection, relation.named, forbidden=relation.named.forbidden())
        except psycopg.Error as e:
            raise reading_error(self._address, e, ", ".join(r.qualified for r in self._relations)) from e
        assert row is not None
        self.name, self.position = row

    @contextmanager
    def _about(self, table: Relation) -> Iterator[None]:
        try:
            yield
        except MovedError as e:
            raise TableError.about(table.qualified, moved_error(str(e))) from e
        except psycopg.Error as e:
            error = reading_error(self._address, e, table.qualified)
            if error.code is Code.DATABASE_UNREACHABLE:
                raise error from e
            raise TableError.about(table.qualified, error) from e

    def _keep_alive(self) -> None:
        """Run a statement now and then, so that nothing between us and the server considers the connection dead."""
        while True:
            self._wake.wait(_REPORT_SECONDS if self._report else _KEEP_ALIVE_SECONDS)
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                if self._report is None:
                    self.connection.execute("SELECT 1")
                else:
                    self._report_progress(*self._report)
            except psycopg.Error:
                return  # leaving the block raises the error

    def _report_progress(self, expected: int, progress: Progress) -> None:
        self.connection.execute("SELECT pg_stat_clear_snapshot()")  # else a transaction always sees the same statistics
        for pid, start, rows in self.connection.execute(_COPIED, [self._label]).fetchall():
            self._seen[pid, start] = max(rows, self._seen.get((pid, start), 0))
        progress(min(sum(self._seen.values()), expected), expected)


def import_snapshot(connection: Connection, name: str) -> None:
    """Begin a transaction that sees what the exporting one sees, and reads no view or foreign table unless allowed.

    Raises:
        MillstreamError: SNAPSHOT_LOST.
    """
    restrict(connection, [VIEWS, FOREIGN])
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
    except psycopg.Error as e:
        raise MillstreamError(
            Code.SNAPSHOT_LOST,
            f"the snapshot {name} is no longer held: {first_line(e)}",
            hint="the tables are read again; a pooler in transaction mode loses snapshots: connect without it",
        ) from e
    _set_time_limits(connection, _READERS_LOCK_TIMEOUT)


def _set_time_limits(connection: Connection, lock_timeout: str) -> None:
    unlimited = ["idle_in_transaction_session_timeout", "statement_timeout"]
    if connection.info.server_version >= 170_000:
        unlimited.append("transaction_timeout")
    for setting in unlimited:
        connection.execute(sql.SQL("SET LOCAL {} = 0").format(sql.Identifier(setting)))
    connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(lock_timeout)))


def snapshot_lost(address: Address, error: psycopg.Error) -> MillstreamError:
    """A coded error for an exporting transaction that ended too early."""
    return MillstreamError(
        Code.SNAPSHOT_LOST,
        f"the snapshot of {address} was lost while tables were read under it: {first_line(error)}",
        hint="the tables are read again",
    )
