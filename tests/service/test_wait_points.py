"""Which points can be waited for, and when contents include them."""

from __future__ import annotations

import pytest

from millstream.errors import Code, MillstreamError
from millstream.service.wait_points import After, Mirror, SnapshotPoint, TransactionPoint, is_shown, parse_after
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot


@pytest.mark.parametrize(
    ("snapshot", "seen"),
    [("12:12:", True), ("10:12:10", True), ("11:11:", False), ("10:13:11", False), ("11:14:11,12", False)],
)
def test_a_transaction_is_included_if_the_snapshot_sees_it(snapshot: str, seen: bool) -> None:
    """Transaction 11: the highest id that a snapshot knows decides nothing."""
    assert TransactionPoint(11).is_in({"snapshot": snapshot}) is seen


@pytest.mark.parametrize(
    ("snapshot", "included"),
    [
        ("10:14:10", True),  # the same
        ("14:14:", True),  # 10 has ended
        ("10:13:10", False),  # 13 may not be seen
        ("10:15:10,13", False),  # 13 is seen by the point
    ],
)
def test_a_snapshot_is_included_if_all_that_it_sees_is(snapshot: str, included: bool) -> None:
    point = SnapshotPoint(PgSnapshot.parse("10:14:10"))
    # a place in the WAL decides nothing: after an asynchronous commit, it may be one before that commit
    assert point.is_in({"snapshot": snapshot, "lsn": "FFFF/0"}) is included


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
