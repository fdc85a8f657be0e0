"""What has a served table be brought to the whole result."""

from __future__ import annotations

from collections import Counter

import pytest

from kits.serving import KEYED, served, shop
from kits.shops import Shop

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


def test_a_stream_table_stored_anew_or_restored_is_served_as_a_whole(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.serve((1, 11))
    t.stage = "stage-2"
    done = t.serve((2, 20))
    assert (done.mode, done.reason.split(":")[0]) == ("FULL", "QUERY_ALTERED")
    t.feed.versions = t.feed.versions[:2]
    done = t.again()
    assert (done.mode, done.reason.split(":")[0]) == ("FULL", "STORED_CHANGED")
    assert t.rows() == Counter([(1, 10)])


@pytest.mark.parametrize("key", [["k"], None])
@pytest.mark.parametrize("later", [0, 1])
def test_a_lake_that_was_restored_and_went_on_is_served_as_a_whole(
    shop: Shop, key: list[str] | None, later: int
) -> None:
    table = served(shop, KEYED, key)
    table.serve((1, 10))
    table.serve((1, 10), (2, 20))
    del table.feed.versions[-1]  # restored to the version before, from which it went on otherwise
    table.feed.lake = "restored"
    table.put((1, 10), (3, 30))
    for _ in range(later):
        table.put((1, 11), (3, 30))
    done = table.again()
    assert (done.mode, done.reason.partition(":")[0]) == ("FULL", "STORED_CHANGED")
    assert table.rows() == Counter(table.feed.versions[-1])
    assert table.again().mode == "NONE"
