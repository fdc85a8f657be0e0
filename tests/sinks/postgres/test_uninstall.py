"""The bookkeeping of served tables goes with the last lake that needs it, and takes no served table along."""

from __future__ import annotations

from collections import Counter

import psycopg
import pyarrow as pa
import pytest

from kits.serving import Table, connected, served
from kits.shops import MILLSTREAM, STRANGER, Shop
from millstream.sinks.postgres.uninstall import bookkeeping_removal

pytestmark = pytest.mark.postgres

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def remove(shop: Shop, lake: str) -> None:
    with connected(shop) as connection:
        connection.execute(bookkeeping_removal(lake))


def has_bookkeeping(table: Table) -> bool:
    with table.shop.owner() as owner:
        return owner.execute("SELECT to_regnamespace('millstream') IS NOT NULL").fetchone() == (True,)


def test_it_goes_with_the_last_lake(shop: Shop) -> None:
    table = served(shop, ROWS, None)  # without a key, so that it has places in the bookkeeping
    table.serve((1, 10), (1, 10))
    remove(shop, "another lake")
    assert has_bookkeeping(table)
    remove(shop, "lake")
    assert not has_bookkeeping(table)
    assert table.rows() == Counter({(1, 10): 2})
    remove(shop, "lake")  # there is nothing, which is no error


def test_what_users_put_there_is_left_alone(shop: Shop) -> None:
    table = served(shop, ROWS, ["k"])
    table.serve((1, 10))
    with connected(shop) as connection:
        connection.execute("CREATE TABLE millstream.notes (note text)")
        connection.execute("CREATE TABLE millstream.rows_of_mine (note text)")
    remove(shop, "lake")
    with connected(shop) as connection:
        left = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'millstream'::regnamespace")
        assert sorted(left.fetchall()) == [("notes",), ("rows_of_mine",)]


def test_it_is_found_in_every_schema_it_was_ever_in(shop: Shop) -> None:
    table = served(shop, ROWS, None)
    table.serve((1, 10))
    with connected(shop) as connection:
        connection.execute("ALTER SCHEMA millstream RENAME TO an_earlier_setting")
        connection.execute("CREATE VIEW public.mine AS SELECT * FROM an_earlier_setting.served_tables")
    remove(shop, "lake")
    with connected(shop) as connection:
        assert connection.execute("SELECT count(*) FROM an_earlier_setting.serving").fetchone() == (0,)
        connection.execute("DROP VIEW public.mine")
    remove(shop, "lake")
    with connected(shop) as connection:
        assert connection.execute("SELECT to_regnamespace('an_earlier_setting')").fetchone() == (None,)


def test_the_places_of_rows_go_even_if_another_lake_remains(shop: Shop) -> None:
    table, other = served(shop, ROWS, None), served(shop, ROWS, ["k"], name="others")
    table.serve((1, 10))
    other.serve((1, 10))
    other.run(f"UPDATE millstream.serving SET lake_id = 'another' WHERE stream_table_id = '{other.target.table_id}'")
    remove(shop, "lake")
    left = other.run("SELECT relname FROM pg_class WHERE relnamespace = 'millstream'::regnamespace AND relkind = 'r'")
    assert sorted(left) == [("ddl_lock",), ("serving",)]


def test_a_schema_of_somebody_else_is_left_alone(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE SCHEMA millstream")
        owner.execute("CREATE TABLE millstream.serving (lake_id text)")
    remove(shop, "lake")
    with shop.owner() as owner:
        assert owner.execute("SELECT count(*) FROM millstream.serving").fetchone() == (0,)


def test_a_superuser_runs_no_code_of_others_and_leaves_their_tables(shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute(f"GRANT CREATE ON SCHEMA public TO {STRANGER}")
        owner.execute(f'GRANT CREATE ON DATABASE "{shop.name}" TO {STRANGER}')
    with psycopg.connect(shop.server.url(shop.name, STRANGER), autocommit=True) as stranger:
        stranger.execute("CREATE SCHEMA trap")
        stranger.execute(
            "CREATE FUNCTION trap.spring() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RESET ROLE; EXECUTE 'ALTER ROLE {STRANGER} SUPERUSER'; RETURN NULL; END $$"
        )
        for schema in ("trap", "public"):
            stranger.execute(
                f"CREATE TABLE {schema}.serving (stream_table_id text, lake_id text, relation oid, filenode oid)"
            )
            stranger.execute(f"CREATE TRIGGER spring BEFORE DELETE ON {schema}.serving EXECUTE FUNCTION trap.spring()")
        # which match better than what PostgreSQL has, or come first in the caller's path
        stranger.execute(
            f"CREATE FUNCTION public.format(text, text) RETURNS text LANGUAGE sql AS 'ALTER ROLE {STRANGER} SUPERUSER; "
            "SELECT pg_catalog.format($1, $2)'"
        )
    table = served(shop, ROWS, None)
    table.serve((1, 10))
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("SET search_path = public, pg_catalog")
        superuser.execute(bookkeeping_removal("lake"))  # of a role that serves nothing
        assert has_bookkeeping(table)
        superuser.execute(bookkeeping_removal("lake", MILLSTREAM))
        assert superuser.execute("SELECT pg_catalog.current_setting('role')").fetchone() == ("none",)
        found = superuser.execute(f"SELECT rolsuper FROM pg_roles WHERE rolname = '{STRANGER}'").fetchone()
        assert found == (False,)
        left = superuser.execute("SELECT to_regclass('trap.serving'), to_regclass('public.serving')").fetchone()
        assert left is not None
        assert None not in left
    assert not has_bookkeeping(table)


def test_a_trigger_on_the_bookkeeping_itself_runs_for_its_owner_only(shop: Shop) -> None:
    table = served(shop, ROWS, ["k"])
    table.serve((1, 10))
    table.as_owner(
        "CREATE FUNCTION public.spring() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RESET ROLE; EXECUTE 'ALTER ROLE {MILLSTREAM} CREATEROLE'; RETURN NULL; END $$",
        "CREATE TRIGGER spring BEFORE DELETE ON millstream.serving EXECUTE FUNCTION public.spring()",
    )
    with shop.server.superuser(shop.name) as superuser:
        with pytest.raises(psycopg.errors.RaiseException, match="triggers") as caught:
            superuser.execute(bookkeeping_removal("lake", MILLSTREAM))
        assert f"run this as the role {MILLSTREAM}" in str(caught.value)
        found = superuser.execute(f"SELECT rolcreaterole FROM pg_roles WHERE rolname = '{MILLSTREAM}'").fetchone()
        assert found == (False,)
    assert has_bookkeeping(table)
