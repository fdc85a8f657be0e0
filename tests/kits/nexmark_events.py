"""Persons, auctions and bids as Nexmark makes them, the same at every run, and the changes a database adds to them.

Of fifty events one is a person, three are auctions and the rest are bids; an event's number is its time in seconds, and
everything else about it is a hash of that. Nexmark's events only come; here a few are also corrected and withdrawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream import Millstream

TABLES = {
    "person": "id BIGINT, name STRING, city STRING, state STRING, ts BIGINT",
    "auction": "id BIGINT, item STRING, category INT, seller BIGINT, reserve BIGINT, ts BIGINT, expires BIGINT",
    "bid": "id BIGINT, auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, ts BIGINT, at TIMESTAMP_NTZ",
    "hop": "k INT",
}
_EVENTS_EACH = 50

# an event's number is `id`; those of persons end in 0 of 50, those of auctions in 1, 2 or 3
_ROWS = {
    "person": """SELECT id, concat('person ', {h} % 97), concat('city ', {h} % 7),
        element_at(array('OR', 'ID', 'CA', 'WA', 'AZ'), CAST({h} % 5 + 1 AS INT)), id
        FROM range({first}, {last}) WHERE id % 50 = 0""",
    "auction": """SELECT id, concat('item ', {h} % 11), CAST(10 + {h} % 5 AS INT), ({h} % (id DIV 50 + 1)) * 50,
        100 + {h} % 900, id, id + 20 + {h} % 400 FROM range({first}, {last}) WHERE id % 50 BETWEEN 1 AND 3""",
    "bid": """SELECT id, greatest(0, id DIV 50 - {h} % 6) * 50 + 1 + {h} % 3, ({h} % (id DIV 50 + 1)) * 50,
        50 + {h} % 1000, concat('channel ', {h} % 4), id,
        timestamp_seconds(1700000000 + id)::TIMESTAMP_NTZ FROM range({first}, {last}) WHERE id % 50 > 3""",
}
_CORRECTIONS = (
    "UPDATE bid SET price = price + 17 WHERE {h} % 40 = {cycle}",
    "UPDATE bid SET auction = auction + 1 WHERE {h} % 90 = {cycle} AND auction % 50 < 3",
    "UPDATE auction SET category = 10, expires = expires + 60 WHERE {h} % 25 = {cycle}",
    "UPDATE person SET state = 'OR', name = concat(name, '!') WHERE {h} % 12 = {cycle}",
    "UPDATE auction SET seller = 0 WHERE {h} % 30 = {cycle}",
)
_WITHDRAWALS = (
    "DELETE FROM bid WHERE {h} % 35 = {cycle}",
    "DELETE FROM auction WHERE {h} % 40 = {cycle}",
    "DELETE FROM person WHERE {h} % 20 = {cycle}",
)


@dataclass
class Events:
    """The stream of events, and how far it has come."""

    ms: Millstream
    seed: int = 7
    seen: int = 0
    cycle: int = 0

    def create(self) -> None:
        """Make the tables; `hop` has the number of steps by which a window of five steps may have begun earlier."""
        for name, columns in TABLES.items():
            self.ms.sql(
                f"CREATE TABLE {name} ({columns}) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
            )
        self.ms.sql("INSERT INTO hop VALUES (0), (1), (2), (3), (4)")

    def arrive(self, count: int) -> None:
        """The next events."""
        first, self.seen = self.seen, self.seen + count
        for name, rows in _ROWS.items():
            self.ms.sql(f"INSERT INTO {name} {rows.format(h=self._hash(name), first=first, last=self.seen)}")

    def go_on(self, count: int) -> None:
        """One cycle: events, a correction of one kind and a withdrawal of another."""
        self.cycle += 1
        self.arrive(count)
        for kinds in (_CORRECTIONS, _WITHDRAWALS):
            text = kinds[self.cycle % len(kinds)]
            self.ms.sql(text.format(h=self._hash(str(self.cycle)), cycle=self.cycle))

    def _hash(self, salt: str) -> str:
        return f"(xxhash64(id, '{salt}', {self.seed}) & 1073741823)"
