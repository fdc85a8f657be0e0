"""Decides which transactions a `pg_snapshot` sees, without asking the server: the WAL names its transactions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

_EPOCH = 1 << 32
_HALF = 1 << 31


@dataclass(frozen=True, slots=True)
class PgSnapshot:
    """`xmin:xmax:running`, all of them 64-bit ids of top-level transactions.

    Args:
        xmin: all transactions before it have ended.
        xmax: this transaction and all after it have not begun, as far as the snapshot knows.
        running: those in between that had not ended.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> PgSnapshot:
        """Parse the server's text.

        >>> PgSnapshot.parse("10:14:10,12").sees(11)
        True
        """
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(x) for x in running.split(",") if x))

    def sees(self, xid: int) -> bool:
        """Whether it sees the effects of a committed transaction."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def covers(self, other: PgSnapshot) -> bool:
        """Whether it sees all that another snapshot sees: it was taken at the same time or later."""
        return self.xmax >= other.xmax and all(x >= other.xmax or x in other.running for x in self.running)

    def has_outlived(self, other: PgSnapshot) -> bool:
        """Whether all transactions have ended that were running in another snapshot of the same time or earlier."""
        return self.covers(other) and not self.running & other.running

    def ended_since(self, older: PgSnapshot) -> Iterator[int]:
        """The ids of the transactions that this snapshot sees and an older one did not, in growing order.

        Aborted transactions and subtransactions may be among them.

        >>> list(PgSnapshot.parse("12:15:12").ended_since(PgSnapshot.parse("10:13:10,12")))
        [10, 13, 14]
        """
        unseen = chain(sorted(older.running), range(older.xmax, self.xmax))
        return (xid for xid in unseen if self.sees(xid))

    def full_xid(self, xid: int) -> int:
        """The 64-bit id of a transaction from its lower 32 bits, if it is less than 2³¹ transactions old.

        >>> PgSnapshot(2**32 + 5, 2**32 + 5, frozenset()).full_xid(2**32 - 1) == 2**32 - 1
        True
        """
        full = (self.xmax & ~(_EPOCH - 1)) | xid
        if full >= self.xmax + _HALF:
            return full - _EPOCH
        return full + _EPOCH if full < self.xmax - _HALF else full

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(str(x) for x in sorted(self.running))}"
