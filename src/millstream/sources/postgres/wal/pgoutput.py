"""Parses the messages of PostgreSQL's own output plugin, `pgoutput`, protocols 1 and 2 without streaming.

Values are texts as the server's output functions write them; `decode` converts them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeAlias

from millstream.errors import Code, MillstreamError


class Unchanged(Enum):
    """A value that is stored outside the row (TOAST) and was not changed, so that the WAL does not repeat it."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED
Value: TypeAlias = "str | Unchanged | None"
Row: TypeAlias = "tuple[Value, ...]"


@dataclass(frozen=True, slots=True)
class Begin:
    """A committed transaction begins; `final_lsn` is where its commit record starts, `xid` its top-level id."""

    final_lsn: int
    committed_at: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction ends; `end_lsn` is where the next record may start."""

    commit_lsn: int
    end_lsn: int
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction came from another server."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as it was when the change was made."""

    name: str
    type_oid: int
    type_modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """The columns of a table from here on."""

    oid: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class TypeMessage:
    """The name of a type that is not one of PostgreSQL's own."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    oid: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """A row was replaced.

    Args:
        old: the whole old row (`is_old_whole`), or one that has only the key's columns, or None if the key is the same.
    """

    oid: int
    old: Row | None
    is_old_whole: bool
    new: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """A row was deleted; `old` is the whole row, or has only the key's columns."""

    oid: int
    old: Row
    is_old_whole: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables were truncated."""

    oids: tuple[int, ...]
    is_cascade: bool
    restarts_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message that was written by `pg_logical_emit_message`."""

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


Change: TypeAlias = "Insert | Update | Delete | Truncate"
Message: TypeAlias = "Begin | Commit | Origin | RelationMessage | TypeMessage | Change | LogicalMessage"

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")
_OID = struct.Struct("!I")
_COUNT = struct.Struct("!H")
_COLUMN = struct.Struct("!Ii")
_TRUNCATE = struct.Struct("!IB")
_MESSAGE = struct.Struct("!BQ")
_N, _U, _T, _OLD, _KEY, _NEW = b"nutOKN"


class _Malformed(Exception):
    """The bytes are not a message."""


def parse(data: bytes) -> Message:
    """Parse one message.

    Raises:
        MillstreamError: DATABASE_UNFIT for bytes that are not a message of these protocols.
    """
    try:
        message, end = _PARSERS[data[0]](data)
        if end != len(data):
            raise _Malformed
    except (_Malformed, KeyError, IndexError, struct.error, ValueError, OverflowError) as e:
        raise MillstreamError(
            Code.DATABASE_UNFIT,
            f"the server's WAL has a message that cannot be parsed: {data[:40]!r} ({len(data)} bytes)",
            hint="ATTACH POSTGRES '<its address>' AS <its name> CDC 'trigger' captures it by triggers instead; "
            "report this as a bug",
        ) from e
    return message


def _begin(data: bytes) -> tuple[Message, int]:
    lsn, micros, xid = _BEGIN.unpack_from(data, 1)
    return Begin(lsn, _time(micros), xid), 1 + _BEGIN.size


def _commit(data: bytes) -> tuple[Message, int]:
    _, lsn, end_lsn, micros = _COMMIT.unpack_from(data, 1)
    return Commit(lsn, end_lsn, _time(micros)), 1 + _COMMIT.size


def _origin(data: bytes) -> tuple[Message, int]:
    (lsn,) = struct.unpack_from("!Q", data, 1)
    name, at = _string(data, 9)
    return Origin(lsn, name), at


def _relation(data: bytes) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, 1)
    schema, at = _string(data, 5)
    name, at = _string(data, at)
    identity = chr(data[at])
    (count,) = _COUNT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(data[at] & 1)
        column, at = _string(data, at + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(RelationColumn(column, type_oid, modifier, is_key))
    return RelationMessage(oid, schema or "pg_catalog", name, identity, tuple(columns)), at


def _type(data: bytes) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, 1)
    schema, at = _string(data, 5)
    name, at = _string(data, at)
    return TypeMessage(oid, schema or "pg_catalog", name), at


def _insert(data: bytes) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, 1)
    new, at = _row(data, 5, _NEW)
    return Insert(oid, new), at


def _update(data: bytes) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, 1)
    kind = data[5]
    old, at = (None, 5) if kind == _NEW else _row(data, 5, kind)
    if kind not in (_NEW, _OLD, _KEY):
        raise _Malformed
    new, at = _row(data, at, _NEW)
    return Update(oid, old, kind == _OLD, new), at


def _delete(data: bytes) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, 1)
    kind = data[5]
    if kind not in (_OLD, _KEY):
        raise _Malformed
    old, at = _row(data, 5, kind)
    return Delete(oid, old, kind == _OLD), at


def _truncate(data: bytes) -> tuple[Message, int]:
    count, options = _TRUNCATE.unpack_from(data, 1)
    at = 1 + _TRUNCATE.size
    if at + 4 * count != len(data):  # else a count of four billion would make a tuple of that size
        raise _Malformed
    oids = struct.unpack_from(f"!{count}I", data, at)
    return Truncate(oids, bool(options & 1), bool(options & 2)), len(data)


def _message(data: bytes) -> tuple[Message, int]:
    flags, lsn = _MESSAGE.unpack_from(data, 1)
    prefix, at = _string(data, 1 + _MESSAGE.size)
    (length,) = _OID.unpack_from(data, at)
    at += 4
    return LogicalMessage(bool(flags & 1), lsn, prefix, data[at : at + length]), at + length


_PARSERS: dict[int, Callable[[bytes], tuple[Message, int]]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("O"): _origin,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("M"): _message,
}


def _row(data: bytes, at: int, kind: int) -> tuple[Row, int]:
    if data[at] != kind:
        raise _Malformed
    (count,) = _COUNT.unpack_from(data, at + 1)
    at += 3
    values: list[Value] = []
    for _ in range(count):
        what = data[at]
        if what == _T:
            start = at + 5
            at = start + int.from_bytes(data[at + 1 : start])
            values.append(data[start:at].decode())
            continue
        at += 1
        if what == _N:
            values.append(None)
        elif what == _U:
            values.append(UNCHANGED)
        else:
            raise _Malformed
    return tuple(values), at


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
