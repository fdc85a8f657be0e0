"""Each change of a served table sends a notification."""

from __future__ import annotations

import json

import psycopg
import pytest

from kits.serving import KEYED, served, shop
from kits.shops import Shop

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


def test_a_change_is_notified_of(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    with psycopg.connect(shop.server.url(shop.name, "stranger"), autocommit=True) as listener:
        listener.execute("LISTEN millstream_refresh")
        t.serve((1, 11), (2, 20), full=True)
        t.serve((1, 11))
        t.again()
        messages = [json.loads(n.payload) for n in listener.notifies(timeout=5, stop_after=2)]
        assert list(listener.notifies(timeout=0.1)) == []
    assert messages[0] == {
        "stream_table": "totals",
        "schema": "public",
        "table": "totals",
        "mode": "FULL",
        "rows_inserted": 1,
        "rows_updated": 1,
        "rows_deleted": 0,
        "refresh_id": 102,
        "data_timestamp": "2024-05-01T12:00:00+00:00",
    }
    assert messages[1]["mode"] == "DIFFERENTIAL"
    assert messages[1]["rows_deleted"] == 1
