"""The grants that a role lacks to capture a database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kits.shops import STRANGER
from kits.wal_shops import WalShop, new_wal_shop
from millstream.postgres.address import Address
from millstream.postgres.connection import connect
from millstream.sources.postgres.server.privileges import missing_grants
from millstream.sources.postgres.wal.eligibility import server_hindrances
from millstream.sources.postgres.wal.slot import (
    drop_slot,
)
from millstream.testing.postgres_server import FAST, LOGICAL, Server

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(server: Server) -> Iterator[WalShop]:
    made = new_wal_shop(server)
    yield made
    with made.connect() as connection:
        drop_slot(connection, made.slot.name)


def test_where_a_service_has_a_role_for_replication_that_one_is_wanted() -> None:
    with Server({**FAST, **LOGICAL}) as server:
        shop = new_wal_shop(server)
        with server.superuser() as superuser:
            superuser.execute(f"CREATE ROLE {STRANGER} LOGIN; CREATE ROLE rds_replication".encode())
        with connect(Address.parse(shop.server.url(shop.name, STRANGER))) as connection:
            lacking = f'GRANT "rds_replication" TO "{STRANGER}"'
            assert [o.remedy for o in server_hindrances(connection, shop.slot.name)] == [lacking]
            assert f"{lacking};" in missing_grants(connection, "changes", wal=True).required
            with server.superuser() as superuser:
                superuser.execute(f"GRANT rds_replication TO {STRANGER}".encode())
            assert server_hindrances(connection, shop.slot.name) == ()
            assert f"{lacking};" not in missing_grants(connection, "changes", wal=True).required
