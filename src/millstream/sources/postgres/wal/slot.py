"""A replication slot: reading without consuming, advancing, monitoring and dropping it."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime

from millstream.errors import Code, MillstreamError
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection, unreachable
from millstream.postgres.driver import pq, psycopg, sql
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.wal.lsn import parse_lsn, print_lsn

PLUGIN = "pgoutput"
MESSAGE_PREFIX = "millstream"
_NAME_LENGTH = 63


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot, and the publication that says which tables it is read for."""

    name: str
    publication: str


def slot_of(lake: str, database: str) -> Slot:
    """The slot of one lake for one attached database; several lakes may capture the same database.

    >>> slot_of("l1", "Shop").name.startswith("millstream_shop_")
    True
    """
    digest = hashlib.sha256(f"{lake}\0{database}".encode()).hexdigest()[:12]
    plain = re.sub("[^a-z0-9_]", "_", database.lower())[: _NAME_LENGTH - len("millstream__") - len(digest)]
    name = f"millstream_{plain}_{digest}"
    return Slot(name, name)


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of pg_replication_slots; None for what a server's version does not have."""

    plugin: str | None
    database: str | None
    active: bool
    restart_lsn: int | None
    confirmed_flush_lsn: int | None
    retained_bytes: int | None
    lag_bytes: int | None
    wal_status: str | None
    safe_wal_size: int | None
    inactive_since: datetime | None
    invalidation_reason: str | None

    @property
    def is_lost(self) -> bool:
        """Whether WAL that it still needs is gone."""
        return self.wal_status == "lost" or self.invalidation_reason is not None

    @property
    def is_ready(self) -> bool:
        """Whether it is complete: until then it has no confirmed place, or its creator still uses it."""
        return self.confirmed_flush_lsn is not None and not self.active


def slot_state(connection: Connection, name: str) -> SlotState | None:
    """The state of a slot; None if it does not exist."""
    row = connection.execute(
        "SELECT to_jsonb(s), pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint,"
        " pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint"
        " FROM pg_replication_slots s WHERE s.slot_name = %s",
        [name],
    ).fetchone()
    if row is None:
        return None
    said, retained, lag = row
    restart, confirmed, since = (said.get(k) for k in ("restart_lsn", "confirmed_flush_lsn", "inactive_since"))
    return SlotState(
        plugin=said["plugin"],
        database=said["database"],
        active=said["active"],
        restart_lsn=parse_lsn(restart) if restart else None,
        confirmed_flush_lsn=parse_lsn(confirmed) if confirmed else None,
        retained_bytes=retained,
        lag_bytes=lag,
        wal_status=said.get("wal_status"),
        safe_wal_size=said.get("safe_wal_size"),
        inactive_since=datetime.fromisoformat(since) if since else None,
        invalidation_reason=said.get("invalidation_reason"),
    )


def check_slot(connection: Connection, slot: Slot, read_to: int) -> SlotState:
    """Check that a slot still has everything after `read_to`, and return its state.

    Raises:
        MillstreamError: CAPTURE_LOST with the reason.
    """
    state = slot_state(connection, slot.name)
    if state is None:
        raise slot_lost(slot, "the slot no longer exists")
    if state.is_lost:
        raise slot_lost(slot, f"the slot was invalidated ({state.invalidation_reason or 'wal_removed'})")
    if state.plugin != PLUGIN or state.database != connection.info.dbname:
        raise slot_lost(slot, f"a slot of that name reads {state.database} with the plugin {state.plugin}")
    if state.confirmed_flush_lsn is not None and state.confirmed_flush_lsn > read_to:
        raise slot_lost(slot, f"the slot was advanced to {print_lsn(state.confirmed_flush_lsn)} by another reader")
    return state


def drop_slot(connection: Connection, name: str, wait_seconds: float = 5.0) -> bool:
    """Drop a slot, waiting a little for a reader to finish; returns whether the slot existed.

    Raises:
        MillstreamError: LOCK_TIMEOUT while another session reads it, PRIVILEGE_MISSING.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
        except psycopg.errors.UndefinedObject:
            return False
        except psycopg.errors.ObjectInUse as e:
            if time.monotonic() >= deadline:
                raise slot_error(Slot(name, name), e) from e
            time.sleep(0.05)
        except psycopg.Error as e:
            raise slot_error(Slot(name, name), e) from e
        else:
            return True


def peek(connection: Connection, slot: Slot, upto: int) -> Generator[bytes, None, None]:
    """The messages of all transactions whose commit starts before `upto`, and perhaps of later ones, in commit order.

    Nothing is consumed. The server keeps the result in a file of its own; the client holds one row at a time.

    Raises:
        MillstreamError: CAPTURE_LOST, PRIVILEGE_MISSING, LOCK_TIMEOUT if another session reads the slot.
    """
    query = sql.SQL("COPY (SELECT data FROM {}) TO STDOUT (FORMAT binary)").format(_peeking(slot, upto, None))
    try:
        with connection.cursor() as cursor, cursor.copy(query) as copy:
            copy.set_types(["bytea"])
            for (data,) in copy.rows():
                yield data
    except psycopg.Error as e:
        raise slot_error(slot, e) from e


# A 'B'egin holds the LSN of its commit; the lower half of a transaction's id decides whether a snapshot sees it.
_BOUNDED_END = """
SELECT count(*), max(lsn)::text, min(encode(substring(data FROM 2 FOR 8), 'hex')) FILTER (
  WHERE get_byte(data, 0) = 66
    AND (xid::text = ANY(%(running)s) OR ((xid::text::bigint - %(xmax)s) & 4294967295) < 2147483648))
FROM {}
"""


def bounded_end(connection: Connection, slot: Slot, changes: int, snapshot: PgSnapshot) -> int | None:
    """Where the transactions end that hold the next `changes` changes; None if there are fewer.

    It is before the commit of any transaction that `snapshot` does not see: one may wait for a synchronous standby with
    its commit in the WAL already, and later snapshots would count it as not read.

    Raises:
        MillstreamError: as `peek`.
    """
    query = sql.SQL(_BOUNDED_END).format(_peeking(slot, None, changes))
    running = [str(xid & 0xFFFFFFFF) for xid in snapshot.running]
    try:
        row = connection.execute(query, {"running": running, "xmax": snapshot.xmax}).fetchone()
    except psycopg.Error as e:
        raise slot_error(slot, e) from e
    assert row is not None
    found, end, unseen = row
    if found < changes:
        return None
    last = parse_lsn(end)  # the row of a commit has its end's lsn
    return min(last, int(unseen, 16)) if unseen is not None else last


def advance(connection: Connection, slot: Slot, lsn: int) -> None:
    """Let the server discard what comes before `lsn`; call it only once that is durable elsewhere.

    Raises:
        MillstreamError: CAPTURE_LOST, PRIVILEGE_MISSING.
    """
    state = slot_state(connection, slot.name)
    if state is None:
        raise slot_lost(slot, "the slot no longer exists")
    if state.confirmed_flush_lsn is not None and state.confirmed_flush_lsn >= lsn:
        return
    try:
        connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [slot.name, print_lsn(lsn)])
    except psycopg.Error as e:
        raise slot_error(slot, e) from e


def flush_wal(connection: Connection) -> int:
    """Make everything durable that a snapshot taken before this call sees; returns where the WAL's durable part ends.

    A commit with synchronous_commit = off is visible before it is durable. A slot does not return it yet; and a crash
    of the server undoes it, and its transaction id is used again: a position that counts it as read would skip another
    transaction. So a snapshot may become a position only after this call.

    Args:
        connection: one without an open transaction, unless `can_flush_within_transaction`.
    """
    inserted, flushed = _wal_ends(connection)
    if flushed >= inserted:
        return flushed
    if can_flush_within_transaction(connection):
        connection.execute("SELECT pg_logical_emit_message(false, %s, '', true)", [MESSAGE_PREFIX])
    else:  # the server writes incomplete pages for commits only, and no other session may commit
        assert connection.info.transaction_status == pq.TransactionStatus.IDLE
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = local")
            connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [MESSAGE_PREFIX])
    return _wal_ends(connection)[1]


def can_flush_within_transaction(connection: Connection) -> bool:
    """Whether `flush_wal` may be called by a connection whose transaction is open: from PostgreSQL 17 on."""
    return connection.info.server_version >= 170_000


def slot_error(slot: Slot, error: psycopg.Error, address: Address | None = None) -> MillstreamError:
    """The coded error for an error of the server about a slot."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    match error:
        case psycopg.errors.ObjectNotInPrerequisiteState() | psycopg.errors.UndefinedFile():
            if "wal_level" in said:
                return MillstreamError(Code.DATABASE_UNFIT, said, hint="ALTER SYSTEM SET wal_level = logical; restart")
            return slot_lost(slot, said)
        case psycopg.errors.UndefinedObject() | psycopg.errors.InternalError_():
            return slot_lost(slot, said)
        case psycopg.errors.InsufficientPrivilege():
            return MillstreamError(Code.PRIVILEGE_MISSING, said, hint="ALTER ROLE <role> REPLICATION")
        case psycopg.errors.ConfigurationLimitExceeded():
            return MillstreamError(Code.DATABASE_UNFIT, said, hint="raise max_replication_slots")
        case psycopg.errors.ObjectInUse():
            return MillstreamError(Code.LOCK_TIMEOUT, said, hint="end the other reader of the slot")
        case psycopg.errors.QueryCanceled():
            return slot_timeout(slot.name)
        case _ if address is not None:
            return unreachable(address, error)
        case _:
            return MillstreamError(Code.DATABASE_UNREACHABLE, f"the slot {slot.name} cannot be read: {said}")


def slot_timeout(name: str) -> MillstreamError:
    """The error for a slot that was not complete in time."""
    return MillstreamError(
        Code.LOCK_TIMEOUT,
        f"the slot {name} could not be created in time: a slot waits for all open transactions to end",
        hint="end long transactions (pg_stat_activity, pg_prepared_xacts), or raise wal_transition_timeout",
    )


def slot_lost(slot: Slot, reason: str) -> MillstreamError:
    """The error for a slot that no longer has all changes."""
    return MillstreamError(
        Code.CAPTURE_LOST,
        f"changes are missing from the slot {slot.name}: {reason}",
        hint="the tables are read again at the next refresh; if the slot fell behind, raise max_slot_wal_keep_size",
    )


def _peeking(slot: Slot, upto: int | None, changes: int | None) -> sql.Composed:
    return sql.SQL(
        "pg_logical_slot_peek_binary_changes({}, {}, {}, 'proto_version', '1', 'publication_names', {})"
    ).format(
        sql.Literal(slot.name),
        sql.SQL("{}::pg_lsn").format(sql.Literal(print_lsn(upto) if upto is not None else None)),
        sql.Literal(changes),
        sql.Literal('"' + slot.publication.replace('"', '""') + '"'),
    )


def _wal_ends(connection: Connection) -> tuple[int, int]:
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return parse_lsn(row[0]), parse_lsn(row[1])
