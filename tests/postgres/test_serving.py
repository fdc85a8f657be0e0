"""Deltas and whole results applied to a real table, by a role that is no superuser."""

from __future__ import annotations

from collections import Counter

import pytest
from serving_kit import BAG, KEYED, served
from shops import Shop

from millstream.errors import Code, MillstreamError

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("total", [True, False])
def test_a_keyed_result_is_kept_by_deltas(shop: Shop, total: bool) -> None:
    t = served(shop, KEYED, ["k"], total=total)
    assert t.serve((1, 10), (2, 20)).reason == "INITIAL"
    assert t.rows() == Counter([(1, 10), (2, 20)])
    done = t.serve((1, 11), (3, 30))
    assert (done.mode, done.counts.inserted, done.counts.updated, done.counts.deleted) == ("DIFFERENTIAL", 1, 1, 1)
    assert t.rows() == Counter([(1, 11), (3, 30)])
    kind = t.run("SELECT contype FROM pg_constraint WHERE conrelid = 'public.totals'::regclass AND contype IN ('p', 'u')")
    assert kind == [("p" if total else "u",)]


def test_a_null_group_is_one_group(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((None, 1), (1, 1))
    assert t.serve((None, 2), (1, 1)).mode == "DIFFERENTIAL"
    assert t.rows() == Counter([(None, 2), (1, 1)])
    with pytest.raises(Exception, match="unique"):
        t.as_owner("INSERT INTO public.totals VALUES (NULL, 9)")
    t.serve((1, 1))
    assert t.rows() == Counter([(1, 1)])


def test_duplicates_of_a_bag_are_counted(shop: Shop) -> None:
    t = served(shop, BAG, None)
    t.serve(("a", 1), ("a", 1), ("a", 1), (None, None))
    assert t.serve(("a", 1), ("b", 2), (None, None), (None, None)).mode == "DIFFERENTIAL"
    assert t.rows() == Counter([("a", 1), ("b", 2), (None, None), (None, None)])
    assert t.run("SELECT attname FROM pg_attribute WHERE attrelid = 'public.totals'::regclass AND attnum > 0") == [
        ("a",),
        ("b",),
    ]


def test_a_result_of_one_row_is_updated(shop: Shop) -> None:
    t = served(shop, KEYED, [])
    t.serve((1, 10))
    done = t.serve((2, 20))
    assert (done.mode, done.counts.updated) == ("DIFFERENTIAL", 1)
    assert t.rows() == Counter([(2, 20)])
