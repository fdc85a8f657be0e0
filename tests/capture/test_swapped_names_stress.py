"""An owner who exchanges a table and a view as fast as can be, while everything that reads it goes on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from kits.capture import open_kit
from kits.shops import Shop
from kits.swapped_names import code_of, evil_runs, make_evil
from kits.trigger_capture import Owner
from millstream.errors import Code
from millstream.postgres import locked_names
from millstream.sources.postgres.load.chunks import chunks, read_chunk
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.values.types import mirror_columns

pytestmark = [pytest.mark.postgres, pytest.mark.long]
_SECONDS = 20.0


def exchange(shop: Shop, is_over: threading.Event) -> None:
    """Table, view, table, view, ...: now and then with a rewrite, so that it has to be compared."""
    with shop.owner() as owner:
        owner.execute("SET lock_timeout = '200ms'")
        while not is_over.is_set():
            for statements in (
                ["ALTER TABLE t RENAME TO t_old", "CREATE VIEW t AS SELECT evil() + id - 1 AS id, v FROM t_old",
                 "GRANT SELECT ON t TO millstream"],
                ["DROP VIEW t", "ALTER TABLE t_old RENAME TO t"],
            ):  # fmt: skip
                for _ in range(100):
                    with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                        with owner.transaction():
                            for statement in statements:
                                owner.execute(statement)
                        break
            with suppress(psycopg.errors.LockNotAvailable):
                owner.execute("VACUUM FULL t")


@pytest.mark.parametrize("is_known", [True, False])
def test_nothing_of_the_owners_runs(
    shop: Shop, owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    if not is_known:
        monkeypatch.setattr(locked_names, "RESTRICTION", "restrict_nothing_that_is_known")
    make_evil(owner)
    owner.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    owner.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 100) g")
    is_over = threading.Event()
    codes: Counter[Code | None] = Counter()
    with open_kit(tmp_path / "lake", shop.address) as kit:
        kit.read("r", "t", "id", "v")
        with shop.connect() as connection:
            relation = find_relation(connection, "t")
        columns = mirror_columns(relation, None)

        def read() -> None:
            with ExportedSnapshot(shop.address) as snapshot:
                for piece in chunks(snapshot.connection, relation, columns):
                    list(read_chunk(snapshot.address, snapshot.name, piece, columns))

        thread = threading.Thread(target=exchange, args=(shop, is_over))
        thread.start()
        try:
            until = time.monotonic() + _SECONDS
            while time.monotonic() < until:
                codes[code_of(lambda: kit.tick("t"))] += 1
                codes[code_of(read)] += 1
        finally:
            is_over.set()
            thread.join()
        assert evil_runs(shop) == []
        assert codes[None] > 0
        assert codes[Code.SOURCE_CHANGED] + codes[Code.SOURCE_NO_CHANGE_FEED] > 0
        kit.tick("t")
        kit.assert_exact(owner, "t")
