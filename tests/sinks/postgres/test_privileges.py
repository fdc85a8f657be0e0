"""Who may read, own and write what is served and the bookkeeping beside it, and what is somebody else's."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest
from psycopg import pq

from kits.serving import KEYED, LEDGER, connected, served, shop
from kits.shops import Shop
from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.sinks.postgres.serve import PostgresSink
from millstream.sinks.postgres.table import Found, find_table
from millstream.sinks.postgres.target import Target

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


def test_others_may_read_if_they_are_let_and_never_write(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.as_owner("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO stranger, PUBLIC")
    t.option(grants=("stranger",))
    t.serve((1, 10))
    with psycopg.connect(shop.server.url(shop.name, "stranger"), autocommit=True) as stranger:
        assert stranger.execute("SELECT * FROM public.totals").fetchall() == [(1, 10)]
        for statement in ("INSERT INTO public.totals VALUES (2, 2)", "UPDATE public.totals SET v = 0",
                          "DELETE FROM public.totals", "TRUNCATE public.totals",
                          "UPDATE millstream.serving SET version = 0", "SELECT * FROM millstream.serving"):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                stranger.execute(statement)


def test_the_table_may_belong_to_another_role(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.option(owner="shop_owner")
    with pytest.raises(MillstreamError) as caught:
        t.serve((1, 10))
    assert caught.value.code is Code.PRIVILEGE_MISSING
    assert 'GRANT "shop_owner" TO "millstream";' in str(caught.value)
    t.run("GRANT shop_owner TO millstream")
    try:
        t.again()
        assert t.run("SELECT tableowner FROM pg_tables WHERE tablename = 'totals'") == [("shop_owner",)]
        with shop.owner() as owner:
            owner.execute("CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
            owner.execute("CREATE TRIGGER f AFTER UPDATE ON totals FOR EACH ROW EXECUTE FUNCTION public.f()")
        t.serve((1, 11), full=True)
        assert t.rows() == Counter([(1, 11)])
    finally:
        t.run("REVOKE shop_owner FROM millstream")


def grants_in(error: MillstreamError) -> list[str]:
    """The statements to run, each on a line of its own."""
    assert error.code is Code.PRIVILEGE_MISSING
    return [line.strip() for line in str(error.hint).splitlines() if line.strip().startswith("GRANT ")]


@pytest.mark.parametrize("owner", [None, 'the "Owner"'])
def test_missing_rights_are_printed_as_statements_that_grant_all_of_them(shop: Shop, owner: str | None) -> None:
    t = served(shop, KEYED, ["k"])
    t.run(
        f'REVOKE CREATE ON DATABASE "{shop.name}" FROM millstream',
        "REVOKE USAGE, CREATE ON SCHEMA public FROM millstream, PUBLIC",
        'DROP ROLE IF EXISTS "the ""Owner"""',
        'CREATE ROLE "the ""Owner"""',
    )
    t.option(owner=owner)
    with pytest.raises(MillstreamError) as caught:
        t.declare()
    assert t.run("SELECT to_regclass('millstream.serving')") == [(None,)]
    grants = grants_in(caught.value)
    assert len(grants) == (3 if owner is None else 5)
    t.run(*grants)
    t.declare()
    t.serve((1, 10))
    assert t.rows() == Counter([(1, 10)])
    t.run('DROP OWNED BY "the ""Owner""" CASCADE', 'DROP ROLE "the ""Owner"""')


def test_a_table_that_was_given_away_is_asked_back(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.run("ALTER TABLE public.totals OWNER TO shop_owner")
    with pytest.raises(MillstreamError) as caught:
        t.serve((1, 11))
    assert grants_in(caught.value) == ['GRANT "shop_owner" TO "millstream";']
    t.run("GRANT SELECT, INSERT, UPDATE, DELETE ON public.totals TO millstream")
    t.again()
    assert t.rows() == Counter([(1, 11)])


def test_a_right_that_a_trigger_lacks_is_its_users_business(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.run(
        "CREATE TABLE public.secret (k bigint)",
        "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.secret VALUES (NEW.k); RETURN NULL; END $$",
        "CREATE TRIGGER f AFTER UPDATE ON public.totals FOR EACH ROW EXECUTE FUNCTION public.f()",
    )
    with pytest.raises(MillstreamError) as caught:
        t.serve((1, 11))
    assert (grants_in(caught.value), "trigger" in str(caught.value.hint)) == ([], True)


def test_dropping_leaves_a_table_of_others_alone(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.run("DROP TABLE public.totals", "CREATE TABLE public.totals (mine int)")
    with connected(shop) as connection:
        PostgresSink(connection, LEDGER).drop(t.target, cascade=True)
    assert t.rows("count(*)") == Counter([(0,)])


def test_somebody_elses_table_in_its_place_is_left_alone(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.as_owner("DROP TABLE public.totals")
    with shop.server.superuser(shop.name) as somebody:
        somebody.execute("CREATE TABLE public.totals (k bigint, v bigint)")
        somebody.execute("INSERT INTO public.totals VALUES (7, 70)")
        with pytest.raises(MillstreamError) as caught:
            t.serve((1, 11))
        assert caught.value.code is Code.NAME_TAKEN
        assert somebody.execute("SELECT * FROM public.totals").fetchall() == [(7, 70)]


@pytest.mark.parametrize("full", [False, True])
def test_a_table_that_takes_its_place_at_the_last_moment_is_left_alone(
    shop: Shop, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))

    def looked_at(connection: Connection, target: Target) -> Found | None:
        found = find_table(connection, target)
        if connection.info.transaction_status is pq.TransactionStatus.INTRANS and not t.run("SELECT * FROM swapped"):
            t.run(
                "ALTER TABLE public.totals RENAME TO real",
                "CREATE TABLE public.totals (k bigint, v bigint)",
                "GRANT ALL ON public.totals TO PUBLIC",
                "INSERT INTO swapped VALUES (true)",
            )
        return found

    t.run("CREATE TABLE public.swapped (yes boolean)")
    monkeypatch.setattr("millstream.sinks.postgres.table_writer.find_table", looked_at)
    with pytest.raises(MillstreamError) as caught:
        t.serve((1, 11), full=full)
    assert caught.value.code is Code.NAME_TAKEN
    assert t.rows() == Counter()


def test_default_privileges_let_nobody_write_or_put_triggers(shop: Shop) -> None:
    with shop.connect() as connection:
        connection.execute("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC")
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    held = t.run(
        "SELECT privilege_type FROM pg_class, aclexplode(relacl) WHERE oid = 'public.totals'::regclass AND grantee = 0"
    )
    assert {p for (p,) in held} <= {"SELECT", "MAINTAIN"}
