"""Captures without Spark: small tables are read, landed and compared on the driver alone.

Run as a program it is a process of its own, which can be killed:

    python -m kits.capture ROOT ADDRESS POINT NAMES...
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable

from kits.catalog import body
from kits.paths import environment
from millstream.capture import Captures
from millstream.capture.captures import Read
from millstream.capture.source_snapshot import SourceSnapshot
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture
from millstream.catalog.capture_state import DatabaseState
from millstream.catalog.models import Definition, Dependency, NewStreamTable, SourceKind, Stage, StreamTable, new_id
from millstream.engine.storage import DeltaStore
from millstream.engine.worker import Worker
from millstream.lake.locks import locks_for
from millstream.naming import TableName
from millstream.postgres.address import Address
from millstream.postgres.connection import connect
from millstream.postgres.identity import identify
from millstream.results import RefreshMode
from millstream.settings import Settings

_REPLICA_SESSIONS = "by sessions with session_replication_role"
"""Every capture of a table that its role does not own warns of these; pytest ignores that warning too."""


class DriverOnly:
    """Workers that have no session: code that needs Spark fails."""

    def __init__(self, settings: Settings) -> None:
        self._worker = Worker(None, DeltaStore(None, settings), None)  # type: ignore[arg-type]

    def here(self) -> Worker:
        return self._worker


@dataclass
class Kit:
    """A lake's catalog and captures, with `shop` attached."""

    root: Path
    catalog: Catalog
    captures: Captures
    store: DeltaStore
    said: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    def read(self, name: str, table: str, *columns: str) -> StreamTable:
        """Record a stream table that reads columns of a table, which begins its capture."""
        full = f"shop.public.{table}"
        with self.captures.beginning({full: columns}):
            dependency = Dependency(kind=SourceKind.TABLE, name=full, source_id=self.capture(table).path)
            return self.catalog.create_stream_table(
                NewStreamTable(
                    id=new_id(),
                    name=TableName.parse(name),
                    schedule="1m",
                    refresh_mode=RefreshMode.AUTO,
                    definition=Definition(
                        original_query="SELECT 1",
                        dialect="spark",
                        body=body(),
                        settings={},
                        columns=(("a", "int"),),
                        dependencies=(dependency,),
                    ),
                    stages=(Stage(id=new_id(), ordinal=0, path=name, is_public=True),),
                )
            )

    def forget(self, name: str) -> None:
        """Drop a stream table, and end what it alone has read."""
        self.catalog.drop_stream_table(TableName.parse(name))
        self.captures.end_unread({"shop.public.none"})

    def tick(self, *tables: str) -> dict[str, int]:
        """Bring the database to now."""
        return advance(self.captures, {f"shop.public.{t}" for t in tables} or {"shop.public.none"})

    def capture(self, table: str) -> Capture:
        """The record of a captured table."""
        return next(c for c in self.catalog.captures("shop") if c.table == table)

    @property
    def database(self) -> AttachedDatabase:
        found = self.catalog.find_database("shop")
        assert found is not None
        return found

    def mirrored(self, table: str) -> Counter[str]:
        """The rows of a mirror at the version the catalog knows, in the order of the table's columns."""
        capture = self.capture(table)
        assert capture.version is not None
        rows = self.store.rows(capture.path, capture.version, 1_000_000)
        assert rows is not None
        return Counter(repr(tuple(row.values())) for row in rows.to_pylist())

    def stored(self, table: str, owner: psycopg.Connection[Any]) -> Counter[str]:
        """The same columns of the table itself."""
        names = ", ".join(f'"{name}"' for name, _, _ in self.capture(table).columns)
        return Counter(repr(tuple(row)) for row in owner.execute(f"SELECT {names} FROM {table}"))

    def assert_exact(self, owner: psycopg.Connection[Any], *tables: str) -> None:
        """The mirrors hold what the tables hold."""
        for table in tables:
            mirrored, stored = self.mirrored(table), self.stored(table, owner)
            assert mirrored == stored, f"{table}: missing {stored - mirrored}, extra {mirrored - stored}"

    def commits(self, table: str) -> int:
        """How many commits its mirror has had."""
        return self.store.version(self.capture(table).path)

    def commit_says(self, table: str) -> dict[str, Any]:
        """What the last commit of its mirror carries."""
        [last] = DeltaTable(str(self.root / self.capture(table).path)).history(1)
        said: dict[str, Any] = json.loads(last["userMetadata"])
        return said

    def assert_nothing_twice(self) -> None:
        """Each tick has committed at most once to a mirror, in growing order."""
        for log in self.root.glob("mirrors/*/_delta_log"):
            made: list[tuple[str, int]] = []
            for file in sorted(log.glob("*.json")):
                actions = [json.loads(line) for line in file.read_text().splitlines()]
                made += [(a["txn"]["appId"], a["txn"]["version"]) for a in actions if "txn" in a]
            assert max(Counter(made).values(), default=1) == 1
            assert [n for _, n in made] == sorted(n for _, n in made)


@contextmanager
def open_kit(root: Path, address: Address, settings: Settings | None = None, cdc: str = "trigger") -> Iterator[Kit]:
    """Open a lake, and attach the database if it is not."""
    settings = settings or Settings()
    root.mkdir(parents=True, exist_ok=True)
    with Catalog.open(root) as catalog:
        if catalog.find_database("shop") is None:
            with connect(address) as connection:
                found = identify(connection)
            catalog.put_database(
                AttachedDatabase(
                    name="shop",
                    address=address.reference,
                    cdc=cdc,
                    system=found.system,
                    timeline=found.timeline,
                    database=found.database,
                    database_oid=found.oid,
                    state=DatabaseState(buffer_schema="millstream_changes"),
                )
            )
        workers, said, warned = DriverOnly(settings), list[str](), list[str]()
        locks = locks_for(catalog, root)
        captures = Captures(
            root,
            catalog,
            workers,  # type: ignore[arg-type]
            locks,
            settings,
            lambda: datetime.now(UTC),
            said.append,
            lambda text: None if _REPLICA_SESSIONS in text else warned.append(text),
        )
        try:
            yield Kit(root, catalog, captures, workers.here().store, said, warned)
        finally:
            captures.close()
            locks.close()


def has_recaptured(said: Iterable[str]) -> bool:
    """Whether ticks have reported that a table was captured again, or that all were read again."""
    return any(re.search(r"capturing .* again: |tables are read again", sentence) for sentence in said)


def quarantine_code(capture: Capture) -> str | None:
    """The code of the error that a table is quarantined for."""
    return capture.state.quarantine.error.code if capture.state.quarantine is not None else None


# --- A process to be killed ------------------------------------------------------------------------------------------


def killed_at(root: Path, address: Address, point: tuple[str, str, int], *call: str) -> None:
    """Run a call of the kit in a process that is killed before or after the nth call of a step."""
    words = [str(root), address.reference, json.dumps(point), *call]
    done = subprocess.run(
        [sys.executable, "-m", "kits.capture", *words], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def _die(method: str, when: str, nth: int) -> None:
    import importlib

    owner: Any
    module, _, name = method.rpartition(":")
    owner = importlib.import_module(module) if module else (Catalog if hasattr(Catalog, method) else DeltaStore)
    original, calls = getattr(owner, name), 0

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        at = calls
        if at == nth and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if at == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, step)


def _main(root: str, address: str, point: str, call: str, *arguments: str) -> None:
    with open_kit(Path(root), Address(address)) as kit:
        _die(*json.loads(point))
        getattr(kit, call)(*arguments)


def advance(
    captures: Captures,
    names: Iterable[str],
    named_views: Iterable[str] = (),
    at_snapshot: Callable[[SourceSnapshot], None] | None = None,
) -> dict[str, int]:
    """Bring the databases that one stream table reads up to date; raises what is refused to it."""
    advanced = captures.advance({"reader": Read(frozenset(names), frozenset(named_views))}, at_snapshot)
    for error in advanced.refused.values():
        raise error
    return dict(advanced.versions)


if __name__ == "__main__":
    _main(*sys.argv[1:])
