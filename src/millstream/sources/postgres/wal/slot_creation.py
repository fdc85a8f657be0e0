"""Creates a replication slot without blocking: the server waits until all open transactions have ended.

No snapshot is exported: a later snapshot decides with which transactions reading begins (see `wal_position`). The slot
must have everything that this snapshot does not see. That holds for a snapshot in which all transactions have ended
that were running when the slot was complete. Such a transaction may have written its commit before the place at which
the slot begins, and still be running for other sessions.
"""

from __future__ import annotations

import select
import time
from contextlib import suppress

from millstream.postgres.address import Address
from millstream.postgres.connection import Connection, connect
from millstream.postgres.driver import pq, psycopg, sql
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.wal.slot import PLUGIN, Slot, drop_slot, slot_error, slot_timeout

_LEAVE_SECONDS = 5.0

# Temporary tables are not in the WAL. Transaction ids have 32 bits, and frozen rows keep theirs, even after 2^31
# transactions and more: a row is new if its id lies between `since` and now on the circle of ids. After 2^32
# transactions an old row's id may briefly lie there too: the slot is then created once more, as for a new row.
_NEW_DEFINITIONS = """
WITH since AS (
  SELECT %(since)s::bigint AS first, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - %(since)s AS transactions),
defined AS (
  SELECT xmin FROM pg_class WHERE relpersistence <> 't'
  UNION ALL
  SELECT a.xmin FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE c.relpersistence <> 't'
  UNION ALL
  SELECT xmin FROM pg_enum
  UNION ALL
  SELECT xmin FROM pg_publication
  UNION ALL
  SELECT xmin FROM pg_publication_rel)
SELECT EXISTS (SELECT FROM since, defined WHERE (xmin::text::bigint - first) & 4294967295 < transactions)
"""


class SlotCreation:
    """A slot that is being created, which takes until all transactions have ended that were running at its start.

    Args:
        timeout_seconds: the server gives up after that time.
    """

    def __init__(self, address: Address, name: str, timeout_seconds: float, *, failover: bool = True) -> None:
        self._address = address
        self._name = name
        self._is_done = False
        self._connection = connect(address)
        try:
            self._connection.execute(
                sql.SQL("SET statement_timeout = {}").format(sql.Literal(max(1, round(timeout_seconds * 1000))))
            )
            # standbys keep a copy of such a slot, so it survives a failover; from PostgreSQL 17 on
            more = sql.SQL(", failover => true") if failover and self._connection.info.server_version >= 170_000 else ""
            query = sql.SQL("SELECT pg_create_logical_replication_slot({}, {}{})").format(
                sql.Literal(name), sql.Literal(PLUGIN), more or sql.SQL("")
            )
            self._connection.pgconn.send_query(query.as_bytes(self._connection))
        except psycopg.Error as e:
            self.close()
            raise slot_error(Slot(name, name), e, self._address) from e

    def poll(self, wait_seconds: float = 0.0) -> bool:
        """Wait a little for the slot; returns whether it is complete.

        Raises:
            MillstreamError: LOCK_TIMEOUT when the time is up, PRIVILEGE_MISSING, DATABASE_UNFIT; or
                DATABASE_UNREACHABLE if its connection was lost. It is closed then.
        """
        deadline = time.monotonic() + wait_seconds
        pgconn = self._connection.pgconn
        while not self._is_done:
            try:
                select.select([pgconn.socket], [], [], max(0.0, deadline - time.monotonic()))
                pgconn.consume_input()
                if pgconn.is_busy():
                    if time.monotonic() >= deadline:
                        return False
                    continue
                result = pgconn.get_result()
                if result is not None and result.status != pq.ExecStatus.TUPLES_OK:
                    raise psycopg.errors.error_from_result(result)
            except psycopg.Error as e:
                self.close()
                raise slot_error(Slot(self._name, self._name), e, self._address) from e
            self._is_done = True
            self.close()
        return True

    def close(self) -> None:
        """Stop creating it: the server does not keep an incomplete slot."""
        with suppress(psycopg.Error):  # the connection is lost, and with it the incomplete slot
            self._cancel()
        self._connection.close()

    def _cancel(self) -> None:
        pgconn = self._connection.pgconn
        if self._is_done or pgconn.status != pq.ConnStatus.OK:
            return
        self._connection.cancel_safe(timeout=_LEAVE_SECONDS)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while pgconn.is_busy() and select.select([pgconn.socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
            pgconn.consume_input()


def create_slot(address: Address, name: str, timeout_seconds: float, *, failover: bool = True) -> None:
    """Create a slot, and wait until it has everything that any later snapshot does not see.

    Raises:
        MillstreamError: as `SlotCreation.poll`.
    """
    deadline = time.monotonic() + timeout_seconds
    with connect(address) as connection:
        while True:
            began = current_snapshot(connection)
            left = max(deadline - time.monotonic(), 0.001)
            SlotCreation(address, name, left, failover=failover).poll(left + _LEAVE_SECONDS)
            complete = current_snapshot(connection)
            while not current_snapshot(connection).has_outlived(complete) and time.monotonic() < deadline:
                time.sleep(0.01)
            is_sound = not has_new_definitions(connection, began)
            if is_sound and current_snapshot(connection).has_outlived(complete):
                return
            drop_slot(connection, name)
            if time.monotonic() >= deadline:
                raise slot_timeout(name)


def has_new_definitions(connection: Connection, began: PgSnapshot) -> bool:
    """Whether a table was created, truncated, rewritten or altered since: the slot may not be able to read it.

    While a slot is being created, PostgreSQL does not record which transactions change the catalog. It would always
    treat their changes as rolled back, and fail, or read rows by an old definition.

    Args:
        began: a snapshot taken before the creation of the slot began.
    """
    row = connection.execute(_NEW_DEFINITIONS, {"since": began.xmax}).fetchone()
    return row != (False,)


def current_snapshot(connection: Connection) -> PgSnapshot:
    """The snapshot of the connection's transaction, or a new one if none is open."""
    row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    return PgSnapshot.parse(row[0])
