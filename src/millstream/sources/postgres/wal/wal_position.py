"""How far a database's WAL was read: in transactions, as with buffers, so that both capture modes share a position.

A position counts a transaction as read if its snapshot sees it, or if its commit starts before `lsn`. A tick ends at
the snapshot of its own transaction, under which it has also checked the tables; only a reader that is far behind reads
pieces, which end at an `lsn`. Neither includes a transaction without those that it depends on, and a piece includes
none that the snapshot of its tick does not see: so its snapshot alone gives the end of a whole tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.wal.lsn import parse_lsn, print_lsn
from millstream.sources.postgres.wal.pgoutput import Begin


@dataclass(frozen=True, slots=True)
class WalPosition:
    """How far the WAL was read.

    Args:
        snapshot: all that it sees was read, from buffers or the WAL.
        lsn: all that commits before it was read too; the slot may be advanced to it.
    """

    snapshot: PgSnapshot
    lsn: int

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> WalPosition:
        """The position that the catalog holds."""
        return cls(PgSnapshot.parse(stored["snapshot"]), parse_lsn(stored["lsn"]))

    def dump(self) -> dict[str, str]:
        """What the catalog holds."""
        return {"snapshot": str(self.snapshot), "lsn": print_lsn(self.lsn)}

    def has_read(self, transaction: Begin) -> bool:
        """Whether it counts a committed transaction as read."""
        return transaction.final_lsn < self.lsn or self.snapshot.sees(self.snapshot.full_xid(transaction.xid))
