"""Rows with a key are matched by it."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest

from kits.serving import BAG, KEYED, served, shop
from kits.shops import Shop

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("total", [True, False])
def test_a_keyed_result_is_kept_by_deltas(shop: Shop, total: bool) -> None:
    t = served(shop, KEYED, ["k"], total=total)
    assert t.serve((1, 10), (2, 20)).reason == "INITIAL"
    assert t.rows() == Counter([(1, 10), (2, 20)])
    done = t.serve((1, 11), (3, 30))
    assert (done.mode, done.counts.inserted, done.counts.updated, done.counts.deleted) == ("DIFFERENTIAL", 1, 1, 1)
    assert t.rows() == Counter([(1, 11), (3, 30)])
    kind = t.run(
        "SELECT contype FROM pg_constraint WHERE conrelid = 'public.totals'::regclass AND contype IN ('p', 'u')"
    )
    assert kind == [("p" if total else "u",)]


def test_a_null_group_is_one_group(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((None, 1), (1, 1))
    assert t.serve((None, 2), (1, 1)).mode == "DIFFERENTIAL"
    assert t.rows() == Counter([(None, 2), (1, 1)])
    with pytest.raises(psycopg.errors.UniqueViolation):
        t.as_owner("INSERT INTO public.totals VALUES (NULL, 9)")
    t.serve((1, 1))
    assert t.rows() == Counter([(1, 1)])


def test_a_result_of_one_row_is_updated(shop: Shop) -> None:
    t = served(shop, KEYED, [])
    t.serve((1, 10))
    done = t.serve((2, 20))
    assert (done.mode, done.counts.updated) == ("DIFFERENTIAL", 1)
    assert t.rows() == Counter([(2, 20)])


def test_all_columns_may_be_the_key(shop: Shop) -> None:
    t = served(shop, BAG, ["a", "b"])
    t.serve(("a", 1), ("b", None))
    t.serve(("b", None), ("c", 3))
    assert t.rows() == Counter([("b", None), ("c", 3)])


def test_a_row_in_the_way_is_made_good(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"], total=True)
    t.serve((1, 10))
    t.run("CREATE UNIQUE INDEX ON public.totals (v)", "INSERT INTO public.totals VALUES (9, 90)")
    done = t.serve((1, 10), (2, 90))
    assert (done.mode, done.reason.split(":")[0]) == ("FULL", "SERVED_CHANGED")
    assert t.rows() == Counter([(1, 10), (2, 90)])
