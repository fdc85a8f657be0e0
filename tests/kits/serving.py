"""A served table fed with Z-sets: what a refresh would hand over, without Spark and without a lake."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from kits.shops import Shop, new_shop
from millstream import naming
from millstream.sinks.postgres.ledger import Ledger
from millstream.sinks.postgres.serve import PostgresSink
from millstream.sinks.postgres.table_writer import Served
from millstream.sinks.postgres.target import Mark, Target, UserTriggers
from millstream.sinks.postgres.types import served_columns
from millstream.testing.postgres_server import Server

Row = tuple[Any, ...]
LEDGER = Ledger("millstream")
WHEN = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["server", "old_server"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """A database of PostgreSQL 18, and of 15."""
    server: Server = request.getfixturevalue(request.param)
    return new_shop(server)


@dataclass
class Feed:
    """A stream table's contents by version; a delta is the difference of two."""

    schema: pa.Schema
    versions: list[Counter[Row]] = field(default_factory=lambda: [Counter()])
    full: set[int] = field(default_factory=set)
    lake: str = "first"
    is_large: bool = False

    def commit_id(self, version: int) -> str | None:
        return f"{self.lake} {version}"

    def table(self, rows: Counter[Row]) -> pa.Table:
        columns = list(zip(*rows, strict=True)) or [()] * len(self.schema)
        arrays = [pa.array(list(c), f.type) for c, f in zip(columns, self.schema, strict=True)]
        weighted = self.schema.append(pa.field(naming.WEIGHT, pa.int64()))
        return pa.Table.from_arrays([*arrays, pa.array(list(rows.values()), pa.int64())], schema=weighted)

    def delta(self, after: int) -> pa.Table | Iterable[pa.Table] | str:
        if any(v > after for v in self.full):
            return "NO_DELTA: the stream table was recomputed"
        old, new = self.versions[after], self.versions[-1]
        if self.is_large:
            return self.pieces(old, new)
        net = Counter(new)
        net.subtract(old)
        return self.table(Counter({row: w for row, w in net.items() if w}))

    def pieces(self, old: Counter[Row], new: Counter[Row]) -> Iterable[pa.Table]:
        """All that goes and comes, row by row, in pieces; what stays too."""
        moves = [*((row, 1) for row in new.elements()), *((row, -w) for row, w in old.items())]
        for start in range(0, len(moves), 3):
            piece = moves[start : start + 3]
            yield pa.concat_tables([self.table(Counter({row: w})) for row, w in piece])

    def contents(self) -> Iterable[pa.Table]:
        rows = list(self.versions[-1].elements())
        for start in range(0, len(rows), 2):
            piece = rows[start : start + 2]
            arrays = [pa.array(list(c), f.type) for c, f in zip(zip(*piece, strict=True), self.schema, strict=True)]
            yield pa.Table.from_arrays(arrays, schema=self.schema)


@dataclass
class Table:
    """A served table of a shop, and the stream table behind it."""

    shop: Shop
    target: Target
    feed: Feed
    sources: dict[int, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    stage: str = "stage-1"

    @property
    def mark(self) -> Mark:
        version = len(self.feed.versions) - 1
        return Mark(
            lake_id="lake",
            stream_table="totals",
            stage_id=self.stage,
            version=version,
            commit_id=self.feed.commit_id(version),
            refresh_id=100 + version,
            data_timestamp=WHEN,
        )

    def put(self, *rows: Row, full: bool = False) -> None:
        """The stream table now has these rows."""
        self.feed.versions.append(Counter(rows))
        if full:
            self.feed.full.add(len(self.feed.versions) - 1)

    def serve(self, *rows: Row, full: bool = False) -> Served:
        """The stream table now has these rows, and is served."""
        self.put(*rows, full=full)
        return self.again()

    def again(self) -> Served:
        """Serve what is there."""
        with connected(self.shop) as connection:
            done = PostgresSink(connection, LEDGER, self.sources).serve(self.target, self.mark, self.feed)
        self.notices += done.notices
        return done

    def declare(self) -> None:
        """Make the table."""
        with connected(self.shop) as connection:
            PostgresSink(connection, LEDGER).declare(self.target, "lake", "totals")

    def option(self, **changes: Any) -> None:
        """Serve with other options from now on."""
        self.target = replace(self.target, **changes)

    def rows(self, columns: str = "*") -> Counter[Row]:
        """What anybody who may read the table sees."""
        with self.shop.server.superuser(self.shop.name) as connection:
            found = connection.execute(f'SELECT {columns} FROM {self.target.schema}."{self.target.table}"').fetchall()
        return Counter(tuple(row) for row in found)

    def run(self, *statements: str) -> list[Row]:
        """Run statements as a superuser; gives the last one's rows."""
        with self.shop.server.superuser(self.shop.name) as connection:
            for statement in statements:
                done = connection.execute(statement)
            return [tuple(r) for r in done.fetchall()] if done.description else []

    def as_owner(self, *statements: str) -> None:
        """Run statements as the role that serves, which owns the table."""
        with connected(self.shop) as connection:
            for statement in statements:
                connection.execute(statement)


def connected(shop: Shop) -> psycopg.Connection[Row]:
    """As serving connects: a plain role, its own defaults, autocommit."""
    return psycopg.connect(shop.address.conninfo(), autocommit=True)


KEYED = pa.schema([("k", pa.int64()), ("v", pa.int64())])
BAG = pa.schema([("a", pa.string()), ("b", pa.int64())])


def served(
    shop: Shop,
    schema: pa.Schema,
    key: Sequence[str] | None,
    *,
    total: bool = False,
    triggers: UserTriggers = UserTriggers.AUTO,
    name: str = "totals",
) -> Table:
    """A table to be served, which is not there yet."""
    with shop.owner() as owner:
        owner.execute("GRANT CREATE ON SCHEMA public TO millstream")
    target = Target(
        table_id=str(uuid.uuid4()),
        schema="public",
        table=name,
        columns=served_columns(schema),
        key=tuple(key) if key is not None else None,
        is_key_total=total,
        user_triggers=triggers,
    )
    return Table(shop, target, Feed(schema))
