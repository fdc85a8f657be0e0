"""A change that is too large for memory is netted in the database."""

from __future__ import annotations

from collections import Counter

import pytest

from kits.serving import KEYED, served, shop
from kits.shops import Shop
from millstream.errors import MillstreamError

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("has_trigger", [False, True])
@pytest.mark.parametrize("key", [["k"], None])
def test_a_large_change_is_netted_in_the_database(shop: Shop, key: list[str] | None, has_trigger: bool) -> None:
    t = served(shop, KEYED, key)
    t.serve((1, 10), (2, 20), (3, 30), (None, 40))
    if has_trigger:
        t.run(
            "CREATE TABLE public.seen (op text); GRANT INSERT ON public.seen TO millstream",
            "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO public.seen VALUES (TG_OP); RETURN NULL; END $$",
            "CREATE TRIGGER f AFTER INSERT OR UPDATE OR DELETE ON public.totals "
            "FOR EACH ROW EXECUTE FUNCTION public.f()",
        )
    t.feed.is_large = True
    done = t.serve((1, 10), (2, 21), (4, 40), (None, 41))
    assert t.rows() == Counter([(1, 10), (2, 21), (4, 40), (None, 41)])
    moved = (done.counts.inserted, done.counts.updated, done.counts.deleted)
    assert (done.mode, moved) == ("DIFFERENTIAL", (1, 2, 1) if key else (3, 0, 3))
    if has_trigger:
        assert t.run("SELECT op, count(*) FROM public.seen GROUP BY op ORDER BY op") == (
            [("DELETE", 1), ("INSERT", 1), ("UPDATE", 2)] if key else [("DELETE", 3), ("INSERT", 3)]
        )
    t.serve((1, 10), (2, 21), (4, 40), (None, 41))  # nothing, in many pieces
    assert t.rows() == Counter([(1, 10), (2, 21), (4, 40), (None, 41)])


def test_a_large_change_with_a_key_twice_is_served_as_a_whole(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.feed.is_large = True
    with pytest.raises(MillstreamError):
        t.serve((1, 11), (1, 12))
    assert t.rows() == Counter([(1, 10)])
