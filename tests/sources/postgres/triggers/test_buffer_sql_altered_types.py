"""Columns that have another type by now: nobody's writing fails, and nothing of the owner's runs with our rights."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg import sql

from kits.shops import Shop, new_shop
from kits.trigger_capture import Follow, Owner
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffer_sql import fitting_name, fitting_statements
from millstream.sources.postgres.triggers.buffers import install, widen
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.sources.postgres.values.types import mirror_columns
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize(
    ("captured", "now", "value"),
    [
        ("float8", "numeric", "1e400"),
        ("real", "numeric", "1e60"),
        ("real", "float8", "1e60"),
        ("float8[]", "numeric[]", "'{1e400}'"),
        ("oid", "bigint", "5000000000"),
        ("timestamptz", "date", "'5874897-01-01'"),
        ("timestamp", "date", "'5874897-01-01'"),
        ("timestamptz", "timestamp", "'294276-12-31 23:59:59'"),
        ("int", "bigint", "5000000000"),
        ("bigint", "numeric", "1e40"),
        ("text", "public.mood", "'sad'"),
        ("text", "public.pair", "'(1,x)'"),
        ("text[]", "public.mood[]", "'{sad}'"),
        ("text[]", "public.prices", "'{1}'"),
        ("int4range", "int8range", "'[5000000000,)'"),
        ("public.mood", "bytea", "'\\x00'"),
        ("public.mood", "public.pair[]", "'{\"(1,)\"}'"),
        ("public.price[]", "json", "'{}'"),
    ],
)
def test_a_column_of_another_type_fails_no_writer(
    typed: Shop, captured: str, now: str, value: str, by_row: bool
) -> None:
    with typed.owner() as owner, typed.connect() as connection:
        owner.execute("DROP TABLE IF EXISTS t")
        owner.execute(f"CREATE TABLE t (m {captured})")
        relation = find_relation(connection, "t")
        buffer = install(connection, relation, mirror_columns(relation), BufferSettings(by_row=by_row))
        owner.execute(f"ALTER TABLE t ALTER m TYPE {now} USING NULL")
        with typed.owner() as writer:
            writer.execute(f"INSERT INTO t VALUES ({value})")
            writer.execute("UPDATE t SET m = m")
            writer.execute("DELETE FROM t")
        found = connection.execute(sql.SQL("SELECT m IS NULL FROM {}").format(buffer.table)).fetchall()
        assert [is_null for (is_null,) in found] == [not captured.startswith("public.")] * 4


def test_only_the_very_type_fits_and_domains_over_it(shop: Shop, old_server: Server) -> None:
    for here in (shop, new_shop(old_server)):
        with here.server.superuser(here.name) as connection:
            check_overloads(connection)


def check_overloads(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """For each built-in type that another one can be cast to without being asked: by a cast, or in an array."""
    connection.execute("CREATE SCHEMA fits")
    casts = connection.execute(
        "SELECT s.typname, t.typname FROM pg_cast c JOIN pg_type s ON s.oid = castsource JOIN pg_type t "
        "ON t.oid = casttarget WHERE castcontext = 'i' AND s.oid <> t.oid "
        "UNION SELECT s.typname, t.typname FROM pg_cast c JOIN pg_type e ON e.oid = castsource "
        "JOIN pg_type s ON s.oid = e.typarray JOIN pg_type f ON f.oid = casttarget "
        "JOIN pg_type t ON t.oid = f.typarray "
        "WHERE castcontext = 'i' AND s.oid <> t.oid"
    ).fetchall()
    assert len(casts) > 100
    targets = {target for _, target in casts}
    for target in targets:
        name, again = sql.Identifier(target), sql.Identifier(f"{target} again")
        for statement in fitting_statements("fits", target):
            connection.execute(statement)
        connection.execute(sql.SQL("CREATE DOMAIN fits.{0} AS pg_catalog.{0}").format(name))
        connection.execute(sql.SQL("CREATE DOMAIN fits.{} AS fits.{}").format(again, name))

    def given(type_: sql.Identifier, target: str) -> str:
        """What a value of some type becomes, as the plan of a statement has it."""
        connection.execute(sql.SQL("CREATE TEMP TABLE one (v {})").format(type_))
        function = sql.Identifier("fits", fitting_name(target))
        plan = connection.execute(sql.SQL("EXPLAIN (VERBOSE, COSTS off) SELECT {}(v, 0, 0) FROM one").format(function))
        (output,) = [line for (line,) in plan if "Output" in line]
        connection.execute("DROP TABLE one")
        return str(output)

    for source, target in casts:
        assert "NULL::" in given(sql.Identifier("pg_catalog", source), target), (source, target)
    for target in targets:
        for type_ in (("pg_catalog", target), ("fits", target), ("fits", f"{target} again")):
            assert "NULL::" not in given(sql.Identifier(*type_), target), type_


def test_a_domain_may_come_and_go(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE DOMAIN moment AS timestamptz")
    owner.execute("CREATE DOMAIN late_moment AS moment CHECK (value > '2000-01-01')")
    owner.execute("CREATE TABLE t (a timestamptz, b moment)")
    capture = follow("t")
    owner.execute("INSERT INTO t VALUES ('2020-01-01', '2021-01-01')")
    owner.execute("ALTER TABLE t ALTER a TYPE late_moment, ALTER b TYPE timestamptz")
    owner.execute("INSERT INTO t VALUES ('2022-01-01', '2023-01-01')")
    owner.execute("DROP DOMAIN moment CASCADE")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        owner.execute("INSERT INTO t (a) VALUES (now())")
    found = capture.connection.execute(
        sql.SQL("SELECT a::date::text, b::date::text FROM {}").format(capture.buffers["t"].table)
    ).fetchall()
    assert found == [("2020-01-01", "2021-01-01"), ("2022-01-01", "2023-01-01")]


def test_more_columns_beside_one_that_has_another_type_by_now(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TYPE mood AS ENUM ('sad')")
    owner.execute("CREATE TABLE t (a int, gone int, m mood, c int)")
    capture = follow("t", columns=["a", "gone", "m"])
    owner.execute("ALTER TABLE t ALTER a TYPE text, ALTER m TYPE int USING NULL, DROP gone")
    relation = find_relation(capture.connection, "t")
    widen(capture.connection, relation, mirror_columns(relation, ["a", "m", "c"]))
    with shop.owner() as writer:
        writer.execute("INSERT INTO t VALUES ('x', 1, 2)")
    found = capture.connection.execute(sql.SQL("SELECT a, c FROM {}").format(capture.buffers["t"].table)).fetchall()
    assert found == [(None, 2)]


THEFT = "INSERT INTO public.stolen VALUES (current_user)"


@pytest.fixture
def thief(owner: Owner) -> Owner:
    """An owner whose functions record the role that calls them."""
    for statement in (
        "CREATE TABLE stolen (who name)",
        "GRANT INSERT ON stolen TO PUBLIC",
        "CREATE TYPE mine AS (s text)",
        "CREATE TYPE mine_range AS RANGE (subtype = int)",
        "CREATE TYPE mine_enum AS ENUM ('x')",
        f"CREATE FUNCTION steal() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN {THEFT}; RETURN true; END'",
    ):
        owner.execute(statement)
    return owner


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize(
    ("captured", "mine", "value"),
    [
        ("text[]", "mine[]", "ARRAY[ROW('x')::mine]"),
        ("int4range", "mine_range", "'[1,2)'"),
        ("int4multirange", "mine_multirange", "'{[1,2)}'"),
        ("text", "mine_enum", "'x'"),
        ("text[]", "mine_enum[]", "'{x}'"),
        ("text", "mine", "ROW('x')"),
        ("mine_enum", "mine", "ROW('x')"),
    ],
)
def test_casts_of_the_owner_do_not_run_with_our_rights(
    thief: Owner, follow: Follow, captured: str, mine: str, value: str, by_row: bool
) -> None:
    thief.execute(f"CREATE TABLE t (id int, v {captured})")
    target = "text" if captured == "mine_enum" else captured
    source = "mine_enum" if (captured, mine) == ("text[]", "mine_enum[]") else mine  # each element is cast
    result = target.removesuffix("[]") if source != mine else target
    thief.execute(
        f"CREATE FUNCTION taken({source}) RETURNS {result} LANGUAGE plpgsql AS 'BEGIN {THEFT}; RETURN NULL; END'"
    )
    thief.execute(f"CREATE CAST ({source} AS {result}) WITH FUNCTION taken({source}) AS IMPLICIT")
    capture = follow("t", settings=BufferSettings(by_row=by_row))
    thief.execute(f"ALTER TABLE t DROP v, ADD v {mine}")
    thief.execute(f"INSERT INTO t VALUES (1, {value})")
    thief.execute("UPDATE t SET id = 2")
    thief.execute("DELETE FROM t")
    assert thief.execute("SELECT * FROM stolen").fetchall() == []
    assert capture.connection.execute(
        sql.SQL("SELECT count(*) FROM {}").format(capture.buffers["t"].table)
    ).fetchone() == (4,)


@pytest.mark.parametrize("by_row", [False, True])
def test_checks_and_defaults_of_the_owner_do_not_run_with_our_rights(
    thief: Owner, follow: Follow, by_row: bool
) -> None:
    for base, name in (("int", "d"), ("text[]", "ds"), ("mine", "dc"), ("mine_range", "dr"), ("timestamptz", "dt")):
        thief.execute(f"CREATE DOMAIN {name} AS {base} DEFAULT NULL CHECK (steal())")
    thief.execute("CREATE TABLE t (id int, a d, b ds, c d[], e dr, f dr[], g dt, h int, i text[], j mine_enum)")
    capture = follow("t", settings=BufferSettings(by_row=by_row))
    thief.execute("ALTER TABLE t DROP h, ADD h d, DROP i, ADD i ds, DROP j, ADD j dc")
    thief.execute(
        "INSERT INTO t (id, a, b, c, e, f, g, h, i, j) "
        "VALUES (1, 1, '{x}', '{1}', '[1,2)', '{\"[1,2)\"}', now(), 1, '{x}', ROW('x'))"
    )
    thief.execute("UPDATE t SET id = 2")
    thief.execute("DELETE FROM t")
    called = {str(who) for (who,) in thief.execute("SELECT * FROM stolen").fetchall()}
    assert called == {"shop_owner"}
    found = capture.connection.execute(
        sql.SQL("SELECT a, b, c, e, f, g IS NULL, h, i, j FROM {}").format(capture.buffers["t"].table)
    ).fetchall()
    assert found == [(1, ["x"], "{1}", "[1,2)", '{"[1,2)"}', False, 1, ["x"], "(x)")] * 4


@pytest.mark.parametrize("by_row", [False, True])
def test_a_column_that_became_virtual_fails_no_writer(thief: Owner, follow: Follow, by_row: bool) -> None:
    if thief.info.server_version < 180_000:
        pytest.skip("PostgreSQL 18 is the first with virtual columns")
    thief.execute("CREATE TABLE t (id int, v int)")
    follow("t", settings=BufferSettings(by_row=by_row))
    thief.execute("ALTER TABLE t DROP v")
    thief.execute("CREATE FUNCTION fixed() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT steal()::int'")
    with pytest.raises(psycopg.errors.FeatureNotSupported):  # so no owner can make us call a function
        thief.execute("ALTER TABLE t ADD v int GENERATED ALWAYS AS (fixed()) VIRTUAL")
    thief.execute("ALTER TABLE t ADD v int GENERATED ALWAYS AS (1 / id) VIRTUAL")
    for statement in ("INSERT INTO t VALUES (0)", "UPDATE t SET id = 0", "DELETE FROM t"):
        thief.execute(statement)


def test_names_in_the_functions_are_those_of_the_system(owner: Owner, follow: Follow) -> None:
    """A second line of defence: the path of the functions is fixed, too."""
    owner.execute("CREATE TABLE t (a int, b text, c timestamptz, d text[])")
    capture = follow("t")
    row = capture.connection.execute(
        "SELECT prosrc, proconfig FROM pg_proc WHERE proname = %s", [f"update_{capture.buffers['t'].oid}"]
    ).fetchone()
    assert row is not None
    source, settings = row
    assert settings == ["search_path=pg_catalog, pg_temp"]
    types = [part.split('"')[1] for part in source.split("NULL::")[1:]]
    assert types == ["pg_catalog"] * 4
    assert all(cast.startswith("pg_catalog.") for cast in source.replace('"', "").split("::")[1:])
    calls = re.findall(r"""([\w."]+)\(""", source)
    assert len(calls) == 4 + 8  # of the system's functions in each image, and one for each column there
    assert all(call.startswith(("pg_catalog.", '"millstream_changes".')) for call in calls)
