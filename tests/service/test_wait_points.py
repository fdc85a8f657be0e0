"""Which points can be waited for, and when contents include them."""

from __future__ import annotations

import pytest

from millstream.errors import Code, MillstreamError
from millstream.service.wait_points import After, Mirror, TransactionPoint, WalPoint, is_shown, parse_after
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot


@pytest.mark.parametrize(
    ("snapshot", "seen"),
    [("12:12:", True), ("10:12:10", True), ("11:11:", False), ("10:13:11", False), ("11:14:11,12", False)],
)
def test_a_transaction_is_included_if_the_snapshot_sees_it(snapshot: str, seen: bool) -> None:
    """Transaction 11: the highest id that a snapshot knows decides nothing."""
    assert TransactionPoint(11).is_in({"snapshot": snapshot}) is seen


@pytest.mark.parametrize(
    ("position", "included"),
    [
        ({"snapshot": "10:14:10"}, True),  # the same
        ({"snapshot": "14:14:"}, True),  # 10 has ended
        ({"snapshot": "10:13:10"}, False),  # 13 may not be seen
        ({"snapshot": "10:15:10,13"}, False),  # 13 is seen by the point
        ({"snapshot": "10:13:10", "lsn": "0/1F"}, False),
        ({"snapshot": "10:13:10", "lsn": "0/20"}, True),  # all commits before the place were read
    ],
)
def test_a_place_in_the_wal_is_included_by_snapshot_or_place(position: dict[str, str], included: bool) -> None:
    point = WalPoint(PgSnapshot.parse("10:14:10"), lsn=0x20)
    assert point.is_in(position) is included
    assert WalPoint(point.snapshot).is_in(position) is (included and "lsn" not in position)


def test_contents_include_what_their_version_of_a_mirror_does() -> None:
    point, mirror = TransactionPoint(11), Mirror("shop", 7, {"snapshot": "12:12:"})
    assert is_shown(point, mirror, 7, seen_at=7)
    assert is_shown(point, mirror, 8, seen_at=7)
    assert not is_shown(point, mirror, 6, seen_at=7)
    assert not is_shown(point, mirror, 7, seen_at=None)
    for snapshot, shown in (("12:12:", True), ("11:11:", False)):
        old = Mirror("shop", 7, {"snapshot": "20:20:"}, shown={"snapshot": snapshot})
        assert is_shown(point, old, 6, seen_at=7) is shown


def test_points_are_given_by_name_or_belong_to_the_only_one() -> None:
    assert parse_after(None, ["shop"], ["orders"]).is_now
    assert parse_after("0/1A", ["shop"], ["orders"]).lsns == {"shop": 26}
    assert parse_after(7, [], ["orders"]).versions == {"orders": 7}
    assert parse_after(7, ["shop"], []).xids == {"shop": 7}
    found = parse_after({"Shop": 5, "s.Orders": "7"}, ["shop"], ["s.orders"])
    assert (found.xids, found.versions, found.lsns, found.is_now) == ({"shop": 5}, {"s.orders": 7}, {}, False)


@pytest.mark.parametrize(
    "after",
    [7, "0/1A/2", "x", "", -1, {"other": 7}, {"orders": "0/1A"}, {"shop": "1.5"}, {"orders": -1}, True],
    ids=repr,
)
def test_what_is_not_a_point_is_refused(after: After) -> None:
    with pytest.raises(MillstreamError) as caught:
        parse_after(after, ["shop"], ["orders"])
    assert caught.value.code is Code.WAIT_INVALID
