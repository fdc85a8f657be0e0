"""Rows without a key are matched by their places."""

from __future__ import annotations

from collections import Counter

import pytest

from kits.serving import BAG, KEYED, served, shop
from kits.shops import Shop

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


def test_duplicates_of_a_bag_are_counted(shop: Shop) -> None:
    t = served(shop, BAG, None)
    t.serve(("a", 1), ("a", 1), ("a", 1), (None, None))
    assert t.serve(("a", 1), ("b", 2), (None, None), (None, None)).mode == "DIFFERENTIAL"
    assert t.rows() == Counter([("a", 1), ("b", 2), (None, None), (None, None)])
    columns = t.run("SELECT attname FROM pg_attribute WHERE attrelid = 'public.totals'::regclass AND attnum > 0")
    assert columns == [("a",), ("b",)]


def test_a_place_that_another_row_has_taken_is_noticed(shop: Shop) -> None:
    t = served(shop, KEYED, None)
    t.serve((1, 10), (2, 20))
    t.run("DELETE FROM public.totals WHERE k = 1", "VACUUM public.totals", "INSERT INTO public.totals VALUES (9, 90)")
    assert t.rows("k, ctid::text") == Counter([(9, "(0,1)"), (2, "(0,2)")])
    done = t.serve((2, 20))
    assert (done.mode, done.reason.split(":")[0]) == ("FULL", "SERVED_CHANGED")
    assert t.rows() == Counter([(2, 20)])
