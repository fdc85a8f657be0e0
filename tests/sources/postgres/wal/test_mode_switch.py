"""From triggers to the WAL and back: nothing lost or doubled at the cuts, and triggers go on where it must not be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from kits.mode_switch import TRANSITIONING, TRIGGER, WAL, SwitchingCapture
from kits.wal_shops import WalShop, new_wal_shop, publish
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.trigger_catalog import captured_tables
from millstream.sources.postgres.values.types import mirror_columns
from millstream.sources.postgres.wal.eligibility import Hindrance, WalTable
from millstream.sources.postgres.wal.mode_switch import (
    CapturedTable,
    OngoingTransition,
    Step,
    Transition,
    WalReadiness,
    begin,
    check_published,
    check_readiness,
    drop_slot_and_publication,
    error_line,
    next_step,
)
from millstream.sources.postgres.wal.slot import slot_state
from millstream.sources.postgres.wal.slot_creation import current_snapshot, has_new_definitions
from millstream.testing.postgres_server import FAST, Server

pytestmark = pytest.mark.postgres

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def shop(server: Server) -> WalShop:
    shop = new_wal_shop(server)
    with shop.owner() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
        owner.execute("CREATE TABLE k (a int); ALTER TABLE k REPLICA IDENTITY FULL")
    return shop


Follow = Callable[..., SwitchingCapture]


@pytest.fixture
def follow(shop: WalShop) -> Iterator[Follow]:
    """Begin to follow tables by their triggers; each poll compares with the tables."""
    begun: list[SwitchingCapture] = []

    def start(*names: str) -> SwitchingCapture:
        begun.append(SwitchingCapture(shop, names or ("t", "k"), check_every=1))
        begun[-1].start()
        return begun[-1]

    yield start
    for capture in begun:
        capture.close()


def run(shop: WalShop, *statements: str) -> None:
    with shop.owner() as owner:
        for statement in statements:
            owner.execute(statement.encode())


def move(capture: SwitchingCapture, mode: str, most: int = 20) -> None:
    """Poll until another mode is reached."""
    capture.stay = 0
    while capture.mode != mode:
        assert most > 0, capture.mode
        most -= 1
        capture.poll()
    capture.stay = None


def test_there_and_back_with_changes_at_every_step(shop: WalShop, follow: Follow) -> None:
    capture = follow()
    number = 0

    def change() -> None:
        nonlocal number
        number += 1
        run(
            shop,
            f"INSERT INTO t VALUES ({100 + number}, 0); UPDATE t SET a = a + 1 WHERE id < 3",
            f"INSERT INTO k VALUES ({number}), ({number}); DELETE FROM k WHERE a = {number - 1}",
        )

    capture.stay = 1
    with shop.owner() as early:
        for _ in range(30):
            change()
            early.execute("BEGIN; INSERT INTO t (id) SELECT max(id) + 1000 FROM t; SAVEPOINT s; DELETE FROM k")
            capture.poll()
            run(shop, f"UPDATE t SET a = {number} WHERE id = 3")
            early.execute("ROLLBACK TO s")
            early.execute("COMMIT")
            capture.poll()
    assert capture.switches >= 9
    capture.poll()
    move(capture, WAL)
    with shop.connect() as connection:
        assert captured_tables(connection) == []


def test_a_transaction_that_is_open_through_both_cuts(shop: WalShop, follow: Follow) -> None:
    capture = follow()
    with shop.owner() as early:
        move(capture, TRANSITIONING)
        move(capture, WAL)
        early.execute("BEGIN; INSERT INTO t VALUES (50, 0); DELETE FROM t WHERE id = 1")
        run(shop, "INSERT INTO t VALUES (51, 0)")
        capture.poll()
        assert capture.bags["t"][(51, 0)] == 1
        early.execute("COMMIT")
        capture.poll()
    assert capture.bags["t"][(50, 0)] == 1
    move(capture, TRIGGER)
    run(shop, "DELETE FROM t WHERE id = 50")
    capture.poll()
    assert (50, 0) not in capture.bags["t"]


def test_an_open_writer_holds_the_cut_up_and_nothing_else(shop: WalShop, follow: Follow) -> None:
    capture = follow()
    with shop.owner() as early:
        early.execute("BEGIN; INSERT INTO t VALUES (50, 0)")
        move(capture, TRANSITIONING)
        for i in range(5):
            run(shop, f"INSERT INTO t VALUES ({60 + i}, 0)")
            capture.poll()
            assert capture.bags["t"][(60 + i, 0)] == 1
        assert capture.mode == TRANSITIONING
        early.execute("COMMIT")
    move(capture, WAL)
    assert capture.bags["t"][(50, 0)] == 1


def test_a_table_truncated_while_the_slot_is_made(shop: WalShop, follow: Follow) -> None:
    """PostgreSQL makes a slot then that can never read the table again; it is noticed, and another one is made."""
    capture = follow()
    before = current_snapshot(capture.own)
    assert not has_new_definitions(capture.own, before)
    with shop.owner() as writer, shop.owner() as truncating, shop.owner() as later:
        writer.execute("BEGIN; INSERT INTO t VALUES (50, 0)")
        move(capture, TRANSITIONING)
        assert capture.pursuit is not None
        creation = capture.pursuit.creation
        assert creation is not None
        assert not creation.poll(0.2)
        truncating.execute("BEGIN; TRUNCATE k; INSERT INTO k VALUES (7)")
        writer.execute("COMMIT")
        assert not creation.poll(0.2)
        later.execute("BEGIN; INSERT INTO t VALUES (51, 0)")
        truncating.execute("COMMIT")
        assert creation.poll(5)
        later.execute("COMMIT")
    run(shop, "INSERT INTO k VALUES (8)")
    assert has_new_definitions(capture.own, before)
    capture.poll()
    assert capture.mode == TRANSITIONING
    move(capture, WAL)
    run(shop, "INSERT INTO k VALUES (9)")
    capture.poll()
    assert set(capture.bags["k"]) == {(7,), (8,), (9,)}


def test_time_is_limited_and_triggers_go_on(shop: WalShop, follow: Follow) -> None:
    capture = follow()
    captured = list(capture.captured.values())
    with shop.owner() as early:
        early.execute("BEGIN; INSERT INTO t VALUES (50, 0)")
        pursuit = OngoingTransition(begin(capture.own, shop.slot, captured, NOW))
        assert pursuit.advance(shop.address, capture.own, NOW, 300, wait_seconds=0.1)
        assert not pursuit.advance(shop.address, capture.own, NOW + timedelta(seconds=299), 300, wait_seconds=0.1)
        with pytest.raises(MillstreamError) as caught:
            pursuit.advance(shop.address, capture.own, NOW + timedelta(seconds=300), 300, wait_seconds=0.1)
        assert caught.value.code is Code.LOCK_TIMEOUT
        assert "open transactions" in error_line(caught.value)
        pursuit.abandon(capture.own)
        assert slot_state(capture.own, shop.slot.name) is None
        early.execute("COMMIT")
    capture.poll()
    assert capture.bags["t"][(50, 0)] == 1


def test_what_comes_into_the_way_before_the_cut_is_found_in_it(shop: WalShop, follow: Follow) -> None:
    capture = follow()
    move(capture, TRANSITIONING)
    assert capture.pursuit is not None
    while capture.pursuit.transition.complete is None:
        capture.pursuit.advance(shop.address, capture.own, datetime.now(UTC), 60)
    run(shop, "ALTER TABLE k REPLICA IDENTITY NOTHING")
    with pytest.raises(MillstreamError) as caught:
        capture.poll()
    assert caught.value.code is Code.DATABASE_UNFIT
    assert caught.value.hint is not None
    assert "REPLICA IDENTITY FULL" in caught.value.hint
    run(shop, "ALTER TABLE k REPLICA IDENTITY FULL", f'ALTER PUBLICATION "{shop.slot.publication}" DROP TABLE k')
    publish(shop, capture.own, [(c.relation, ["a"]) for c in capture.captured.values()])
    with pytest.raises(MillstreamError) as caught:
        capture.poll()
    assert caught.value.code is Code.CAPTURE_LOST


def test_a_publication_that_was_changed_in_between_is_a_loss(shop: WalShop, follow: Follow) -> None:
    capture = follow()
    move(capture, WAL)
    capture.poll()
    run(shop, f'ALTER PUBLICATION "{shop.slot.publication}" DROP TABLE k', "INSERT INTO k VALUES (1)")
    run(shop, f'ALTER PUBLICATION "{shop.slot.publication}" ADD TABLE k')
    with pytest.raises(MillstreamError) as caught:
        capture.poll()
    assert caught.value.code is Code.CAPTURE_LOST
    found = check_readiness(capture.own, shop.slot, list(capture.captured.values()))
    assert not found.hindrances
    with pytest.raises(MillstreamError):
        check_published(shop.slot, {}, found)
    check_published(shop.slot, found.published, found)


def test_a_slot_left_by_a_crash_is_gone_on_with_or_taken_away(shop: WalShop, follow: Follow) -> None:
    capture = follow()
    captured = list(capture.captured.values())
    pursuit = OngoingTransition(begin(capture.own, shop.slot, captured, NOW))
    pursuit.advance(shop.address, capture.own, NOW, 300, wait_seconds=5)
    stored = OngoingTransition(Transition.load({**pursuit.transition.dump(), "complete": None}))
    assert stored.advance(shop.address, capture.own, NOW, 300)  # finds the slot
    assert stored.transition.complete is not None
    assert Transition.load(stored.transition.dump()) == stored.transition
    begin(capture.own, shop.slot, captured, NOW)
    assert slot_state(capture.own, shop.slot.name) is None


TABLE = WalTable("t", 1, "public.t", (), (), True, {})

FIT = WalReadiness((TABLE,), (), (), {})

UNFIT = WalReadiness((), (Hindrance(None, "wal_level is replica", "raise it"),), (), {})


@pytest.mark.parametrize(
    ("cdc", "mode", "found", "step"),
    [
        ("trigger", TRIGGER, FIT, Step.STAY),
        ("trigger", TRANSITIONING, FIT, Step.ABANDON),
        ("trigger", WAL, FIT, Step.BACK),
        ("auto", TRIGGER, FIT, Step.BEGIN),
        ("auto", TRIGGER, UNFIT, Step.STAY),
        ("auto", TRIGGER, WalReadiness((), (), (), {}), Step.STAY),
        ("auto", TRANSITIONING, FIT, Step.CONTINUE),
        ("auto", TRANSITIONING, UNFIT, Step.ABANDON),
        ("auto", WAL, FIT, Step.STAY),
        ("auto", WAL, UNFIT, Step.BACK),
        ("wal", TRIGGER, FIT, Step.BEGIN),
        ("wal", TRANSITIONING, FIT, Step.CONTINUE),
        ("wal", WAL, FIT, Step.STAY),
    ],
)
def test_what_a_tick_does(cdc: str, mode: str, found: WalReadiness, step: Step) -> None:
    assert next_step(cdc, mode, found) is step


@pytest.mark.parametrize("mode", [TRIGGER, TRANSITIONING, WAL])
def test_the_wal_as_a_must_says_what_is_missing(mode: str) -> None:
    with pytest.raises(MillstreamError) as caught:
        next_step("wal", mode, UNFIT)
    assert (caught.value.code, caught.value.hint) == (Code.DATABASE_UNFIT, "raise it")


def test_all_that_is_missing_is_reported_at_once() -> None:
    with Server(FAST) as server:
        shop = new_wal_shop(server)
        run(shop, "CREATE TABLE t (a int)", "CREATE TABLE u (a int)")
        with server.superuser() as superuser:
            superuser.execute("ALTER ROLE millstream_wal NOREPLICATION")
        with shop.connect() as connection:
            relations = [find_relation(connection, name) for name in ("t", "u")]
            found = check_readiness(
                connection, shop.slot, [CapturedTable(r.name, r, mirror_columns(r)) for r in relations]
            )
            with pytest.raises(MillstreamError) as caught:
                next_step("wal", TRIGGER, found)
    hint = caught.value.hint or ""
    for part in ("wal_level = logical", "REPLICATION", "REPLICA IDENTITY FULL", "CREATE PUBLICATION"):
        assert part in hint
    assert hint.count("CREATE PUBLICATION") == 1
    assert 'FOR TABLE "public"."t", "public"."u"' in hint


def test_the_owner_publishes_by_himself(shop: WalShop) -> None:
    with shop.server.superuser() as superuser:
        superuser.execute("GRANT shop_owner TO millstream_wal")
    try:
        with shop.connect() as connection:
            relation = find_relation(connection, "t")
            captured = [CapturedTable("t", relation, mirror_columns(relation))]
            found = check_readiness(connection, shop.slot, captured)
            assert not found.hindrances
            assert found.unpublished
            assert next_step("auto", TRIGGER, found) is Step.BEGIN
            begin(connection, shop.slot, captured, NOW)
            assert not check_readiness(connection, shop.slot, captured).unpublished
            assert drop_slot_and_publication(connection, shop.slot) is None
            assert check_readiness(connection, shop.slot, captured).unpublished
    finally:
        with shop.server.superuser() as superuser:
            superuser.execute("REVOKE shop_owner FROM millstream_wal")
