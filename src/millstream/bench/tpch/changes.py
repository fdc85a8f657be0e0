"""Cycles of changes to TPC-H's tables, the same for the same seed.

New orders with their lines and deleted orders with theirs are the standard's refresh functions RF1 and RF2; updates of
both, and all three kinds of change to the tables around them, are added, so that every join sees keys appear and
disappear. A new order is a copy of a generated one with another key. Rows that a cycle deletes from the other tables
are inserted again by the next such cycle: new rows without orders would join with nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.bench.tpch.data import ORIGINAL

if TYPE_CHECKING:
    from millstream.service import Millstream

ORDERS = ("orders", "lineitem")
OTHERS = ("customer", "part", "supplier", "partsupp")
_PARTS = 1_000_000

# the column that picks a table's rows; a line changes with its order, a part's supply by itself
_PICKED_BY = {
    "orders": "o_orderkey",
    "lineitem": "l_orderkey",
    "customer": "c_custkey",
    "part": "p_partkey",
    "supplier": "s_suppkey",
    "partsupp": "ps_partkey, ps_suppkey",
}
_IDENTIFIED_BY = {"lineitem": "l_orderkey, l_linenumber"}
# `{h}` is a number that differs from row to row and from cycle to cycle; most columns are in some query's filter
_UPDATES = {
    "orders": "o_custkey = 1 + pmod({h}, {customers}), o_totalprice = o_totalprice + 1, "
    "o_orderdate = date_add(o_orderdate, CAST(pmod({h}, 181) - 90 AS INT)), "
    "o_orderpriority = IF(pmod({h}, 2) = 0, '1-URGENT', '5-LOW')",
    "lineitem": "l_quantity = 1 + pmod({h}, 50), l_suppkey = 1 + pmod({h}, {suppliers}), "
    "l_shipdate = date_add(l_shipdate, CAST(pmod({h}, 61) - 30 AS INT)), "
    "l_receiptdate = date_add(l_receiptdate, CAST(pmod({h}, 41) - 20 AS INT)), "
    "l_returnflag = IF(pmod({h}, 2) = 0, 'R', 'A')",
    "customer": "c_nationkey = pmod({h}, 25), c_acctbal = c_acctbal + pmod({h}, 2001) - 1000, "
    "c_mktsegment = IF(pmod({h}, 2) = 0, 'BUILDING', 'MACHINERY')",
    "part": "p_size = CAST(1 + pmod({h}, 50) AS INT), p_container = IF(pmod({h}, 2) = 0, 'MED BOX', 'SM PKG'), "
    "p_type = IF(pmod({h}, 3) = 0, 'ECONOMY ANODIZED STEEL', 'PROMO PLATED BRASS'), p_name = concat('forest ', p_name)",
    "supplier": "s_nationkey = pmod({h}, 25), s_acctbal = s_acctbal + pmod({h}, 2001) - 1000, "
    "s_comment = IF(pmod({h}, 2) = 0, 'Customer Complaints', 'none')",
    "partsupp": "ps_supplycost = 1 + pmod({h}, 1000), ps_availqty = CAST(1 + pmod({h}, 9999) AS INT)",
}


@dataclass
class Changes:
    """Changes tables of a lake, cycle by cycle.

    Args:
        fraction: the share of a table's rows that one cycle changes: of these, two fifths are inserted, two fifths
            deleted and one fifth updated.
    """

    ms: Millstream
    fraction: float
    seed: int = 1
    cycle: int = 0
    _sizes: dict[str, int] = field(default_factory=dict, init=False)
    _gone: dict[str, int] = field(default_factory=dict, init=False)
    """The cycle whose deletions from a table are undone next."""

    def apply(self, others: tuple[str, ...] = OTHERS) -> None:
        """One cycle: orders and their lines, and the named other tables."""
        self.cycle += 1
        for table in (*ORDERS, *others):
            self._delete_and_update(table)
        for table in ORDERS:
            self._insert_new(table)
        for table in others:
            self._bring_back(table)

    def _delete_and_update(self, table: str) -> None:
        """RF2 and updates, in one commit that rewrites each file once; the source of the MERGE is a dummy row."""
        number = f"xxhash64({_IDENTIFIED_BY.get(table, _PICKED_BY[table])}, {self.cycle}, {self.seed})"
        text = _UPDATES[table].format(h=number, customers=self._size("customer"), suppliers=self._size("supplier"))
        self.ms.sql(
            f"MERGE INTO {table} USING (SELECT 1) ON {self._picked(table, self.cycle, 0.0, 0.6)} "
            f"WHEN MATCHED AND {self._picked(table, self.cycle, 0.0, 0.4)} THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {text}"
        )

    def _insert_new(self, table: str) -> None:
        """RF1: copies of generated orders under keys not used before, and their lines."""
        offset = self.cycle * self._size("orders") * 10
        key = _PICKED_BY[table]
        columns = ", ".join(f"{c} + {offset}" if c == key else c for c in self.ms.table(table).columns)
        picked = self._picked(table, self.cycle, 0.6, 1.0)
        self.ms.sql(f"INSERT INTO {table} SELECT {columns} FROM {ORIGINAL}.{table} WHERE {picked}")

    def _bring_back(self, table: str) -> None:
        """Insert again what the last cycle deleted and this one did not."""
        if table in self._gone:
            going, coming = self._picked(table, self.cycle, 0.0, 0.4), self._picked(table, self._gone[table], 0.0, 0.4)
            source = f"{ORIGINAL}.{table}"
            self.ms.sql(f"INSERT INTO {table} SELECT * FROM {source} WHERE {coming} AND NOT {going}")
        self._gone[table] = self.cycle

    def _picked(self, table: str, cycle: int, start: float, end: float) -> str:
        """A condition on a table's rows that holds for a share of those a cycle changes."""
        pick = f"pmod(xxhash64({_PICKED_BY[table]}, {self.seed}, {cycle}), {_PARTS})"
        low, high = (int(part * self.fraction * _PARTS) for part in (start, end))
        return f"({pick} >= {low} AND {pick} < {high})"

    def _size(self, table: str) -> int:
        if table not in self._sizes:
            self._sizes[table] = self.ms.spark.table(f"{ORIGINAL}.{table}").count()
        return self._sizes[table]
