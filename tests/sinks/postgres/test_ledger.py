"""The ledger in the served database: what it shows to readers, and whose it must be."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest

from kits.serving import BAG, KEYED, LEDGER, connected, served, shop
from kits.shops import Shop
from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.serve import PostgresSink

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


def test_staleness_is_readable_beside_the_table_by_those_who_may_read_it(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    query = "SELECT served_table::text, stream_table, refresh_id, staleness_seconds > 0 FROM millstream.served_tables"
    with psycopg.connect(shop.server.url(shop.name, "stranger"), autocommit=True) as stranger:
        assert stranger.execute(query).fetchall() == []
        t.as_owner("GRANT SELECT ON public.totals TO stranger")
        assert stranger.execute(query).fetchall() == [("totals", "totals", 101, True)]


def test_dropping_leaves_what_others_have_in_the_schema(shop: Shop) -> None:
    t, other = served(shop, BAG, None), served(shop, KEYED, ["k"], name="other")
    t.serve(("a", 1))
    other.serve((1, 10))
    t.run("CREATE TABLE millstream.mine (x int)")
    with connected(shop) as connection:
        PostgresSink(connection, LEDGER).drop(t.target, cascade=False)
        other.serve((1, 11))
        assert other.rows() == Counter([(1, 11)])
        PostgresSink(connection, LEDGER).drop(other.target, cascade=False)
    assert t.run("SELECT relname FROM pg_class WHERE relnamespace = 'millstream'::regnamespace") == [("mine",)]


def test_a_bookkeeping_of_somebody_else_is_not_trusted(shop: Shop) -> None:
    with shop.server.superuser(shop.name) as somebody:
        somebody.execute("CREATE SCHEMA millstream")
        somebody.execute("GRANT ALL ON SCHEMA millstream TO PUBLIC")
    with pytest.raises(MillstreamError) as caught:
        served(shop, KEYED, ["k"]).serve((1, 10))
    assert caught.value.code is Code.NAME_TAKEN


@pytest.mark.parametrize("is_schema", [True, False])
def test_a_bookkeeping_that_somebody_else_has_put_there_later_runs_nothing(shop: Shop, is_schema: bool) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    with shop.server.superuser(shop.name) as somebody:
        somebody.execute("ALTER TABLE millstream.serving RENAME TO real")
        if is_schema:
            somebody.execute("ALTER SCHEMA millstream RENAME TO away")
            somebody.execute("CREATE SCHEMA millstream")
            somebody.execute("GRANT USAGE ON SCHEMA millstream TO PUBLIC")
            somebody.execute("ALTER TABLE away.real SET SCHEMA millstream")
        somebody.execute(
            "CREATE FUNCTION public.spring(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'sprung'; END $$"
        )
        somebody.execute("GRANT SELECT ON millstream.real TO PUBLIC")
        somebody.execute(
            "CREATE VIEW millstream.serving AS SELECT *, public.spring(stream_table_id) FROM millstream.real"
        )
        somebody.execute("GRANT ALL ON millstream.serving TO PUBLIC")
    with pytest.raises(MillstreamError) as caught:
        t.serve((1, 11))
    assert caught.value.code is Code.NAME_TAKEN
    assert t.rows() == Counter([(1, 10)])
    with connected(shop) as connection:  # and it can be released
        PostgresSink(connection, LEDGER).release(t.target)
