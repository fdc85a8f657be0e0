"""Making a replication slot, which takes as long as transactions are open, without waiting for it.

No snapshot is exported: with which transactions the reading begins is decided by a later snapshot (see `wal_position`),
of which one thing must be known: what it does not see, the slot has. That holds for a snapshot in which all
transactions have ended that were running when the slot was complete. One of them may have written its commit before the
place at which the slot begins, and still be running for others.
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

# Temporary tables are not in the WAL. Ids of transactions have 32 bits, and rows keep theirs when they are frozen, also
# 2^31 transactions later and more: new is what is between `since` and now on the circle of ids. After 2^32 transactions
# an old row may be there for a moment, too: that costs one more slot, as a new row does.
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
    """A slot that is being made, which takes until all transactions have ended that run when it begins.

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
            # a slot that standbys keep a copy of survives a failover; servers before 17 know none
            more = sql.SQL(", failover => true") if failover and self._connection.info.server_version >= 170_000 else ""
            query = sql.SQL("SELECT pg_create_logical_replication_slot({}, {}{})").format(
                sql.Literal(name), sql.Literal(PLUGIN), more or sql.SQL("")
            )
            self._connection.pgconn.send_query(query.as_bytes(self._connection))
        except psycopg.Error as e:
            self.close()
            raise slot_error(Slot(name, name), e, self._address) from e

    def poll(self, wait_seconds: float = 0.0) -> bool:
        """Whether it is made, waiting for it a little.

        Raises:
            MillstreamError: LOCK_TIMEOUT when the time was over, PRIVILEGE_MISSING, DATABASE_UNFIT; or
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
        """Leave it: a slot that is not complete by then is not kept by the server."""
        with suppress(psycopg.Error):  # the connection is lost, and with it what it was making
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
    """Make a slot, and wait until it has all that any later snapshot does not see.

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
    """Whether a table was made, truncated, rewritten or altered since: a slot made since may not be able to read it.

    While a slot is being made, PostgreSQL does not note which transactions change the catalog. It would take what they
    did for undone for ever, and fail, or read rows by an old definition.

    Args:
        began: a snapshot taken before the slot was begun.
    """
    row = connection.execute(_NEW_DEFINITIONS, {"since": began.xmax}).fetchone()
    return row != (False,)


def current_snapshot(connection: Connection) -> PgSnapshot:
    """The snapshot of the connection's transaction, or of this moment."""
    row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    return PgSnapshot.parse(row[0])
