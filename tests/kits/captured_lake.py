"""A lake over a database of the test's own, and an oracle that trusts nothing of millstream's: the database itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

import millstream
from kits.read_back import ReadBack
from kits.shops import Shop
from millstream import Action, RefreshResult


@dataclass
class CapturedLake:
    """`ms` with `shop` attached, and a connection of the tables' owner."""

    ms: millstream.Millstream
    root: Path
    shop: Shop
    owner: psycopg.Connection[tuple[object, ...]]
    queries: dict[str, str] = field(default_factory=dict)
    read_back: ReadBack = field(init=False)

    def __post_init__(self) -> None:
        self.read_back = ReadBack(self.ms)

    def run(self, *statements: str) -> None:
        """Run statements in the database, each in a transaction of its own."""
        for statement in statements:
            self.owner.execute(statement)

    def stream(self, name: str, query: str, mode: str = "DIFFERENTIAL") -> None:
        """Declare a stream table; tables are written `shop.public.t` in the query."""
        self.ms.create_stream_table(name, query, refresh_mode=mode)
        self.queries[name] = query
        self.assert_exact(name)

    def refresh(self, name: str, expected: Action | None = None) -> RefreshResult:
        """Refresh, check what was done, and compare the contents with the database's own answer."""
        result = self.ms.refresh_stream_table(name)
        if expected is not None:
            assert result.action == expected, f"{name}: {result.action} ({result.reason})"
        self.assert_exact(name)
        return result

    def assert_exact(self, name: str) -> None:
        """The contents are what PostgreSQL says, and what `verify` says."""
        wanted = Counter(
            plain(row) for row in self.owner.execute(self.queries[name].replace("shop.public.", "public."))
        )
        actual = Counter(plain(row) for row in self.read_back.table(name).collect())
        assert actual == wanted, f"{name}: missing {dict(wanted - actual)}, extra {dict(actual - wanted)}"
        assert self.ms.verify(name).ok

    @property
    def mirrors(self) -> list[str]:
        """The mirrors on disk."""
        directory = self.root / "mirrors"
        return sorted(p.name for p in directory.iterdir()) if directory.exists() else []

    @property
    def made(self) -> list[str]:
        """Our triggers and buffers in the database."""
        triggers = self.owner.execute("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'millstream%'").fetchall()
        with self.shop.connect() as connection:
            tables = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'millstream_changes' AND tablename ~ '^changes_'"
            ).fetchall()
        return sorted(str(name) for (name,) in (*triggers, *tables))


def plain(row: Any) -> tuple[Any, ...]:
    """Values that compare equal whichever engine gave them."""
    return tuple(Decimal(v).normalize() if isinstance(v, int | Decimal) and not isinstance(v, bool) else v for v in row)


@contextmanager
def open_captured(root: Path, shop: Shop, **settings: int) -> Iterator[CapturedLake]:
    """Open a lake, with settings in its millstream.toml, and attach the database if it is not."""
    if settings:
        root.mkdir(parents=True)
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (root / "millstream.toml").write_text("\n".join(["[millstream]", *lines]))
    with millstream.connect(root) as ms, shop.owner() as owner:
        if not ms._catalog.databases():
            ms.attach("shop", shop.server.url(shop.name, "millstream"))
        yield CapturedLake(ms, root, shop, owner)


def written(result: RefreshResult) -> int:
    """How many rows of its table a refresh has changed."""
    return result.rows_inserted + result.rows_updated + result.rows_deleted
