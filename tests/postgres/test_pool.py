"""Connections to attached databases, kept between uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import psycopg
import pytest

from kits.shops import Shop
from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import connect
from millstream.postgres.identity import Identity, identify
from millstream.postgres.pool import READING, ConnectionPool, SessionKind

pytestmark = pytest.mark.postgres
CHECKED = SessionKind(lambda connection: None, for_users=True, checks_identity=True)


@dataclass(frozen=True)
class Record:
    """What the catalog would record."""

    name: str
    address: str
    system: int
    timeline: int
    database: str
    database_oid: int


@pytest.fixture
def record(shop: Shop) -> Record:
    with connect(shop.address) as connection:
        found = identify(connection)
    return Record("shop", shop.address.reference, found.system, found.timeline, found.database, found.oid)


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    pool = ConnectionPool()
    yield pool
    pool.close()


def test_a_connection_is_used_again(pool: ConnectionPool, record: Record) -> None:
    first = pool.run(record, lambda connection: connection)
    with pool.borrowed(record, READING) as second, pool.visiting(record) as third:
        assert second is first
        assert third is not first
    assert third.closed, "there was no idle one, and a visitor leaves none"
    with pool.visiting(record) as fourth:
        assert fourth is first


def test_each_kind_has_its_own(pool: ConnectionPool, record: Record) -> None:
    with pool.borrowed(record, CHECKED) as serving:
        pass
    assert pool.run(record, lambda connection: connection) is not serving
    with pool.borrowed(record, CHECKED) as again:
        assert again is serving


def test_the_second_one_stays_the_same_during_an_action(pool: ConnectionPool, record: Record) -> None:
    seen = pool.run(record, lambda connection: [connection, pool.second(record), pool.second(record)])
    assert seen[0] is not seen[1] is seen[2]
    assert pool.run(record, lambda connection: connection) in seen


def test_a_lost_connection_is_replaced(pool: ConnectionPool, record: Record, shop: Shop) -> None:
    pids = list[int]()

    def action(connection: psycopg.Connection[tuple[int]]) -> int:
        pids.append(connection.info.backend_pid)
        if len(pids) == 1:
            with shop.server.superuser(shop.name) as superuser:
                superuser.execute("SELECT pg_terminate_backend(%s, 5000)", [pids[0]])
        connection.execute("SELECT")
        return connection.info.backend_pid

    assert pool.run(record, action) == pids[1] != pids[0]


def test_a_kept_connection_that_was_lost_is_not_lent(pool: ConnectionPool, record: Record, shop: Shop) -> None:
    with pool.borrowed(record, CHECKED) as first:
        pass
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("SELECT pg_terminate_backend(%s, 5000)", [first.info.backend_pid])
    with pool.borrowed(record, CHECKED) as second:
        assert second is not first


def test_a_failed_block_closes_its_connection(pool: ConnectionPool, record: Record) -> None:
    with pytest.raises(ZeroDivisionError), pool.borrowed(record, CHECKED) as connection:
        _ = 1 / 0
    assert connection.closed


def test_what_is_left_amid_a_transaction_is_not_kept(pool: ConnectionPool, record: Record) -> None:
    begun = pool.run(record, lambda connection: connection.execute("BEGIN").connection)
    assert begun.closed


def test_a_former_address_is_given_up(pool: ConnectionPool, record: Record) -> None:
    first = pool.run(record, lambda connection: connection)
    moved = replace(record, address=f"{record.address}&application_name=moved")
    second = pool.run(moved, lambda connection: connection)
    assert first.closed
    assert second.info.get_parameters()["application_name"] == "moved"


def test_disconnecting(pool: ConnectionPool, record: Record) -> None:
    kept = [pool.run(record, lambda connection: connection)]
    with pool.borrowed(record, CHECKED) as connection:
        kept.append(connection)
    pool.disconnect(record.name)
    assert all(connection.closed for connection in kept)


def test_another_database_under_the_address(pool: ConnectionPool, record: Record) -> None:
    other = replace(record, database="other")
    with pytest.raises(MillstreamError) as refused, pool.borrowed(other, CHECKED):
        pass
    assert refused.value.code is Code.DATABASE_REPLACED
    assert pool.run(other, lambda connection: connection.closed) is False, "capture compares identities itself"


def test_identities() -> None:
    known = Identity(1, 1, "shop", 5)
    failed_over, restored, elsewhere = replace(known, timeline=2), replace(known, oid=6), replace(known, system=2)
    assert [known == other for other in (known, failed_over, restored, elsewhere)] == [True, False, False, False]
    same = [known.is_same_database(other) for other in (known, failed_over, restored, elsewhere)]
    assert same == [True, True, False, False]
    place = [known.has_place_of(other) for other in (known, failed_over, restored, elsewhere)]
    assert place == [True, True, True, False]
