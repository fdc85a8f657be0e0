"""Ticks against writers that do everything at once: after each drain the mirrors, Delta tables, are the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from kits.bags import Bag, rows_of
from kits.capture import Kit, has_recaptured, open_kit
from kits.shops import OWNER, Shop
from kits.stress import DEEDS, PARTITION_DEEDS, TABLES, Stress, create_tables, run
from kits.wal_shops import REPLICATOR, new_wal_shop
from millstream.capture import mode_switch
from millstream.catalog.attached import CaptureMode
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.server.relations import find_relation
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres


class TickCapture:
    """The product's own capture; a `Capture` of the stress tests."""

    def __init__(self, root: Path, shop: Shop, cdc: str) -> None:
        self._opened = ExitStack()
        self.shop = shop
        self.kit: Kit = self._opened.enter_context(open_kit(root, shop.address, cdc=cdc))
        self.modes: set[CaptureMode] = set()

    @property
    def changes(self) -> int:
        """Of each table the rows its commits have changed, by their logs."""
        found = [self.kit.store.classify(c.path, 0, c.version or 0) for c in self.kit.catalog.captures("shop")]
        return sum(summary.feed_rows for summary in found)

    @property
    def bags(self) -> dict[str, Bag]:
        found: dict[str, Bag] = {}
        for capture in self.kit.catalog.captures("shop"):
            assert capture.version is not None
            rows = self.kit.store.rows(capture.path, capture.version, 10_000_000)
            assert rows is not None
            found[capture.table] = Counter(rows_of(rows))
        return found

    def start(self) -> None:
        with self.shop.connect() as connection:
            for table in TABLES:
                relation = find_relation(connection, table)
                self.kit.read(f"r_{table}", table, *(c.name for c in relation.columns))

    def poll(self) -> None:
        try:
            self.kit.tick()
        except MillstreamError as error:
            if error.code is not Code.LOCK_TIMEOUT:  # writers truncate all the time
                raise
        self.modes.add(self.kit.database.mode)

    def close(self) -> None:
        self._opened.close()


def test_by_triggers(shop: Shop, tmp_path: Path) -> None:
    create_tables(shop)
    capture = TickCapture(tmp_path / "lake", shop, "trigger")
    try:
        assert run(shop, capture, Stress(shop, seed=11), seconds=10) > 2
        capture.kit.assert_nothing_twice()
    finally:
        capture.close()


@pytest.fixture
def wal_shop(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Its role may publish the owner's tables, and is no superuser."""
    monkeypatch.setattr(mode_switch, "_SURVEY_SECONDS", 0.0)
    shop = new_wal_shop(server)
    with server.superuser(shop.name) as superuser:
        superuser.execute(f"GRANT {OWNER} TO {REPLICATOR}")
        yield shop
        superuser.execute(f"REVOKE {OWNER} FROM {REPLICATOR}")
        superuser.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )


def test_from_triggers_to_the_wal(wal_shop: Shop, tmp_path: Path) -> None:
    create_tables(wal_shop, is_for_wal=True)
    capture = TickCapture(tmp_path / "lake", wal_shop, "auto")
    try:
        assert run(wal_shop, capture, Stress(wal_shop, seed=12, deeds=DEEDS), seconds=12) > 2
        assert CaptureMode.WAL in capture.modes, capture.kit.database.state
        capture.kit.assert_nothing_twice()
    finally:
        capture.close()


class ToAndFro(TickCapture):
    """Wanted by triggers once it is at the WAL, and the other way round."""

    moves = 0

    def poll(self) -> None:
        super().poll()
        database = self.kit.database
        is_there = database.mode is (CaptureMode.TRIGGER if database.cdc == "trigger" else CaptureMode.WAL)
        if is_there:
            self.moves += 1
            cdc = "wal" if database.cdc == "trigger" else "trigger"
            self.kit.catalog.put_database(replace(database, cdc=cdc))


@pytest.mark.parametrize(("seconds", "moves"), [(10, 2), pytest.param(240, 40, marks=pytest.mark.long)])
def test_to_the_wal_and_back(wal_shop: Shop, tmp_path: Path, seconds: int, moves: int) -> None:
    create_tables(wal_shop, is_for_wal=True)
    capture = ToAndFro(tmp_path / "lake", wal_shop, "wal")
    try:
        assert run(wal_shop, capture, Stress(wal_shop, seed=14, deeds=DEEDS), seconds=seconds) > 2
        assert capture.moves >= moves, capture.kit.database
        capture.kit.assert_nothing_twice()
        assert not has_recaptured(capture.kit.said), "each move was without a gap"
    finally:
        capture.close()


@pytest.mark.long
@pytest.mark.parametrize("cdc", ["trigger", "auto"])
def test_a_hundred_thousand_changes(wal_shop: Shop, tmp_path: Path, cdc: str) -> None:
    create_tables(wal_shop, is_for_wal=True)
    capture = TickCapture(tmp_path / "lake", wal_shop, cdc)
    deeds = DEEDS + PARTITION_DEEDS if cdc == "trigger" else DEEDS
    try:
        run(wal_shop, capture, Stress(wal_shop, seed=13, writers=6, deeds=deeds), seconds=480, changes=100_000)
        assert capture.changes >= 100_000
        capture.kit.assert_nothing_twice()
    finally:
        capture.close()
