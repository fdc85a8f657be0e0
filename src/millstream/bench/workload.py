"""The five queries of the specification's benchmark guide, their tables, and the mix of changes.

70 % UPDATE, 15 % DELETE, 15 % INSERT, scattered over the whole table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.service import Millstream

QUERIES = {
    "scan": "SELECT id, region, category, amount, score FROM {src}",
    "filter": "SELECT id, region, amount FROM {src} WHERE amount > 5000",
    "aggregate": "SELECT region, SUM(amount) AS total, COUNT(*) AS n FROM {src} GROUP BY region",
    "join": "SELECT s.id, s.region, s.amount, d.region_name FROM {src} s JOIN {dim} d ON s.region = d.region",
    "join_agg": (
        "SELECT d.region_name, SUM(s.amount) AS total, COUNT(*) AS n "
        "FROM {src} s JOIN {dim} d ON s.region = d.region GROUP BY d.region_name"
    ),
}
GROUPS = "SELECT pmod(id, 1000000) AS g, SUM(amount) AS total, COUNT(*) AS n FROM {src} GROUP BY pmod(id, 1000000)"

_REGIONS = 100


@dataclass
class Workload:
    """A source table of `rows` rows, its dimension, and the state of its random changes."""

    ms: Millstream
    rows: int
    round: int = 0

    @property
    def src(self) -> str:
        return f"src_{self.rows}"

    @property
    def dim(self) -> str:
        return f"dim_{self.rows}"

    def build(self) -> None:
        """Create and fill the tables."""
        feed = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
        self.ms.sql(
            f"CREATE TABLE {self.src} "
            f"(id BIGINT, region STRING, category STRING, amount DECIMAL(12,2), score INT) {feed}"
        )
        self.ms.sql(f"CREATE TABLE {self.dim} (region STRING, region_name STRING) {feed}")
        self.ms.sql(f"INSERT INTO {self.src} {self._rows(0, self.rows)}")
        self.ms.sql(f"INSERT INTO {self.dim} SELECT concat('r', id), concat('Region ', id) FROM range({_REGIONS})")

    def query(self, text: str) -> str:
        """A query over this workload's tables."""
        return text.format(src=self.src, dim=self.dim)

    def change(self, rows: int) -> None:
        """Change that many rows: the mix, each row picked by a hash that differs from round to round."""
        self.round += 1
        updates, deletes = rows * 70 // 100, rows * 15 // 100
        inserts = rows - updates - deletes
        pick = f"pmod(xxhash64(id, 'round', {self.round}), {self.rows})"
        self.ms.sql(f"UPDATE {self.src} SET amount = amount + 1 WHERE {pick} < {updates}")
        self.ms.sql(f"DELETE FROM {self.src} WHERE {pick} >= {updates} AND {pick} < {updates + deletes}")
        first = self.rows * (self.round + 1) * 10
        self.ms.sql(f"INSERT INTO {self.src} {self._rows(first, inserts)}")

    def _rows(self, first: int, count: int) -> str:
        return (
            f"SELECT id, concat('r', pmod(xxhash64(id, 'region'), {_REGIONS})), concat('c', id % 20), "
            f"CAST(pmod(xxhash64(id, 'amount'), 1000000) / 100 AS DECIMAL(12,2)), CAST(id % 1000 AS INT) "
            f"FROM range({first}, {first + count})"
        )
