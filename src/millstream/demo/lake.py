"""The demonstration: an e-commerce lake, a chain of three stream tables, a few changes, incremental versus full."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from millstream.cli.output import Output
    from millstream.service import Millstream

DEFAULT_ORDERS = 3_000_000

_PRODUCTS = 2_000
_TABLES = (
    "CREATE TABLE customers (customer_id BIGINT, name STRING, country STRING)",
    "CREATE TABLE products (product_id BIGINT, title STRING, category STRING, price DECIMAL(10,2))",
    "CREATE TABLE orders (order_id BIGINT, customer_id BIGINT, product_id BIGINT, quantity INT, day DATE)",
)
_COUNTRIES = "array('AT', 'BR', 'DE', 'ES', 'FR', 'IN', 'JP', 'NO', 'PL', 'US')"
_CATEGORIES = "array('books', 'garden', 'kitchen', 'music', 'sport', 'toys')"

STREAM_TABLES = {
    "order_lines": """
        SELECT o.order_id, o.day, c.country, p.category, o.quantity * p.price AS amount
        FROM orders o JOIN customers c ON o.customer_id = c.customer_id JOIN products p ON o.product_id = p.product_id
    """,
    "sales_by_country": """
        SELECT country, category, SUM(amount) AS revenue, COUNT(*) AS lines, MAX(amount) AS largest
        FROM order_lines GROUP BY country, category
    """,
    "country_ranking": """
        SELECT country, SUM(revenue) AS revenue, SUM(lines) AS lines FROM sales_by_country GROUP BY country
    """,
}

_CHANGES = (
    (
        "60 new orders",
        "INSERT INTO orders "
        "SELECT {orders} + id, id * 17 % {customers}, id * 31 % 2000, 2, DATE'2026-06-01' FROM range(60)",
    ),
    ("30 orders cancelled", "DELETE FROM orders WHERE order_id % ({orders} DIV 30) = 7"),
    ("10 customers moved", "UPDATE customers SET country = 'NO' WHERE customer_id % ({customers} DIV 10) = 3"),
)


def run(
    output: Output, *, rows: int | None = None, keep: Path | None = None, progress: Callable[[str], None] | None = None
) -> None:
    """Build the lake, change it, and print the comparison."""
    from millstream.service import connect

    orders = rows or DEFAULT_ORDERS
    announce = progress or (lambda _: None)
    with ExitStack() as stack:
        lake = str(keep) if keep is not None else stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-"))
        ms = stack.enter_context(connect(lake, progress=announce))
        announce(f"generating {orders:,} orders")
        _generate(ms, orders)
        for name, query in STREAM_TABLES.items():
            announce(f"creating the stream table {name}")
            ms.create_stream_table(name, query)
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-full-"))
        comparison = [_round(ms, announce, what, sql, orders, scratch) for what, sql in _CHANGES]
        verdicts = {name: ms.verify(name).ok for name in STREAM_TABLES}
        _report(output, orders, comparison, verdicts, keep)


def _customers(orders: int) -> int:
    return max(100, orders // 30)


def _generate(ms: Millstream, orders: int) -> None:
    customers = _customers(orders)
    for statement in _TABLES:
        ms.sql(f"{statement} TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    ms.sql(
        f"INSERT INTO customers SELECT id, concat('customer ', id), element_at({_COUNTRIES}, CAST(id % 10 + 1 AS INT)) "
        f"FROM range({customers})"
    )
    ms.sql(
        f"INSERT INTO products SELECT id, concat('product ', id), element_at({_CATEGORIES}, CAST(id % 6 + 1 AS INT)), "
        f"CAST(5 + id % 95 + 0.99 AS DECIMAL(10,2)) FROM range({_PRODUCTS})"
    )
    ms.sql(
        f"INSERT INTO orders SELECT id, pmod(xxhash64(id), {customers}), pmod(xxhash64(id, 1), {_PRODUCTS}), "
        f"CAST(1 + id % 4 AS INT), date_add(DATE'2026-01-01', CAST(id % 150 AS INT)) FROM range({orders})"
    )


@dataclass(frozen=True)
class Round:
    """One change, and how long the refresh and the full queries took."""

    change: str
    rows_changed: int
    rows_updated: tuple[int, ...]
    rows_read: int
    actions: tuple[str, ...]
    incremental_ms: int
    full_ms: int


def _round(ms: Millstream, announce: Callable[[str], None], what: str, sql: str, orders: int, scratch: str) -> Round:
    """One change, then the incremental refresh of the chain, compared with the chain's queries in full."""
    announce(what)
    ms.sql(sql.format(orders=orders, customers=_customers(orders)))
    announce("refreshing the chain")
    start = time.perf_counter()
    ms.refresh_stream_table("country_ranking")
    incremental_ms = (time.perf_counter() - start) * 1000
    details = [ms.refresh_history(name, 1)[0] for name in STREAM_TABLES]
    announce("running the full queries for comparison")
    start = time.perf_counter()
    for query in STREAM_TABLES.values():
        ms.spark.sql(query).write.mode("overwrite").parquet(scratch)
    full_ms = (time.perf_counter() - start) * 1000
    return Round(
        change=what,
        rows_changed=_number(details[0].details.get("changed_rows")),
        rows_updated=tuple(d.rows_inserted + d.rows_updated + d.rows_deleted for d in details),
        rows_read=sum(_number(d.details.get("rows_read")) for d in details),
        actions=tuple(str(d.action) for d in details),
        incremental_ms=round(incremental_ms),
        full_ms=round(full_ms),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _report(output: Output, orders: int, rounds: list[Round], verdicts: dict[str, bool], keep: Path | None) -> None:
    output.table(
        f"{orders:,} orders, {_customers(orders):,} customers, {_PRODUCTS:,} products; a chain of three stream tables",
        ("change", "rows changed", "rows updated in the chain", "rows read", "incremental", "full queries", "faster"),
        [
            (
                r.change,
                f"{r.rows_changed:,}",
                " + ".join(f"{n:,}" for n in r.rows_updated),
                f"{r.rows_read:,}",
                f"{r.incremental_ms:,} ms",
                f"{r.full_ms:,} ms",
                f"{r.full_ms / max(1, r.incremental_ms):.1f} x",
            )
            for r in rounds
        ],
    )
    for name, ok in verdicts.items():
        output.line(f"verify {name}: {'equal to its query' if ok else 'DIFFERENT from its query'}")
    if keep is not None:
        output.line(f"the lake is in {keep}; try: millstream --lake {keep} status")
    output.document({"orders": orders, "rounds": [asdict(r) for r in rounds], "verified": verdicts})
    if not all(verdicts.values()):
        raise MillstreamError(Code.REFRESH_FAILED, "a stream table differs from its query")
