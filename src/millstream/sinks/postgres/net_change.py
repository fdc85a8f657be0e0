"""The net change of a result, as lines to be copied: rows to put, and rows to delete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream import naming
from millstream.postgres.connection import Connection
from millstream.reasons import Reason
from millstream.sinks.postgres.dml import Counts
from millstream.sinks.postgres.encode import lines_of
from millstream.sinks.postgres.failures import MisfitError
from millstream.sinks.postgres.incoming_rows import copy_incoming
from millstream.sinks.postgres.target import Target

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Change:
    """The net change.

    Args:
        puts: new rows; with a key, preceded by the rows that replace another. Duplicates are repeated.
        gone: old rows to delete; with a key, only those whose key has no new row.
        replaced: how many of `puts` replace another row.
        null_keys: the columns of the key that are NULL in any of the rows.
    """

    puts: list[str]
    gone: list[str]
    null_keys: frozenset[str] = frozenset()
    replaced: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.puts and not self.gone


@dataclass(frozen=True, slots=True)
class IncomingChange:
    """What was copied: how many rows are inserted, updated and deleted, and which of the key's columns have NULLs."""

    counts: Counts
    null_keys: frozenset[str]


def copy_change(connection: Connection, target: Target, change: Change, new: str) -> IncomingChange:
    """Copy a change; `new` is the op of a row that replaces no other."""
    puts = [("P" if i < change.replaced else new, line) for i, line in enumerate(change.puts)]
    copy_incoming(connection, target, [*(("D", line) for line in change.gone), *puts])
    return IncomingChange(
        Counts(len(change.puts) - change.replaced, change.replaced, len(change.gone)), change.null_keys
    )


def net_change(target: Target, zset: pa.Table) -> Change:
    """The net change a Z-set with `naming.WEIGHT` stands for; it need not be consolidated.

    Raises:
        MillstreamError: SERVE_FAILED for a value that PostgreSQL cannot hold.
        MisfitError: two new rows have the same key.
    """
    names = [c.name for c in target.columns]
    lines = lines_of(zset, names)
    net: dict[str, int] = {}
    for line, weight in zip(lines, zset[naming.WEIGHT].to_pylist(), strict=True):
        net[line] = net.get(line, 0) + weight
    if target.key is None:
        puts = [line for line, w in net.items() for _ in range(w)]
        return Change(puts, [line for line, w in net.items() for _ in range(-w)])
    nulls = frozenset(k for k in target.key if zset[k].null_count)
    places = [target.position(k) for k in target.key]
    put: dict[tuple[str, ...], str] = {}
    for line, w in net.items():
        if w > 0 and (w > 1 or put.setdefault(_key(line, places), line) is not line):
            raise MisfitError(f"{Reason.KEY_REPEATED}: two rows have the same key ({', '.join(target.key)})")
    old = {_key(line, places): line for line, w in net.items() if w < 0}
    gone = [line for key, line in old.items() if key not in put]
    puts = [line for key, line in put.items() if key in old]
    return Change([*puts, *(line for key, line in put.items() if key not in old)], gone, nulls, len(puts))


def _key(line: str, places: Sequence[int]) -> tuple[str, ...]:
    texts = line.split("\t")  # a tab inside a value is escaped
    return tuple(texts[place] for place in places)
