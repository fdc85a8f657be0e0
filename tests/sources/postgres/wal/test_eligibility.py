"""What keeps a server from being read by its WAL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kits.wal_shops import WalShop, new_wal_shop
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.wal.eligibility import server_hindrances
from millstream.sources.postgres.wal.slot import (
    drop_slot,
)
from millstream.sources.postgres.wal.slot_creation import (
    create_slot,
)
from millstream.testing.postgres_server import FAST, Server

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(server: Server) -> Iterator[WalShop]:
    made = new_wal_shop(server)
    yield made
    with made.connect() as connection:
        drop_slot(connection, made.slot.name)


def code_of(error: pytest.ExceptionInfo[MillstreamError]) -> Code:
    return error.value.code


def test_without_logical_wal_the_setting_is_named() -> None:
    with Server(FAST) as server:
        shop = new_wal_shop(server)
        with shop.connect() as connection:
            (hindrance,) = server_hindrances(connection, shop.slot.name)
            assert "wal_level" in hindrance.what
        with pytest.raises(MillstreamError) as caught:
            create_slot(shop.address, shop.slot.name, 5)
        assert code_of(caught) is Code.DATABASE_UNFIT
