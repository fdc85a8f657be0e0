"""How far a database's WAL was read: by transactions, as buffers are, so that both ways of capture share one position.

A position counts a transaction as read if its snapshot sees it, or if its commit starts before `lsn`. A tick cuts by
the snapshot of its own transaction, under which it has checked the tables too; only a reader that is far behind takes
pieces, which are cut by `lsn`. Either cut holds no transaction without those that it depends on, and a piece none that
the snapshot of its tick does not see: so the end of a whole tick is given by its snapshot alone.
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
        snapshot: what it sees was read, from buffers or the WAL.
        lsn: so was what commits before it; the slot may be advanced to it.
    """

    snapshot: PgSnapshot
    lsn: int

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> WalPosition:
        """From what the catalog holds."""
        return cls(PgSnapshot.parse(stored["snapshot"]), parse_lsn(stored["lsn"]))

    def dump(self) -> dict[str, str]:
        """What the catalog holds."""
        return {"snapshot": str(self.snapshot), "lsn": print_lsn(self.lsn)}

    def has_read(self, transaction: Begin) -> bool:
        """Whether a committed transaction is part of it."""
        return transaction.final_lsn < self.lsn or self.snapshot.sees(self.snapshot.full_xid(transaction.xid))
