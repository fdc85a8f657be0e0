"""The role that serves runs nothing that others put into its path; and triggers see that path."""

from __future__ import annotations

from collections import Counter
from datetime import date

import psycopg
import pyarrow as pa
import pytest

from kits.serving import BAG, KEYED, LEDGER, Table, connected, served
from kits.shops import MILLSTREAM, Shop
from millstream.sinks.postgres.serve import PostgresSink
from millstream.sinks.postgres.target import UserTriggers
from millstream.sinks.postgres.types import served_columns

pytestmark = pytest.mark.postgres

WIDE = pa.schema(
    [
        ("k", pa.string()),
        ("tags", pa.list_(pa.int64())),
        ("amount", pa.decimal128(10, 2)),
        ("doc", pa.list_(pa.list_(pa.int64()))),
        ("raw", pa.binary()),
    ]
)

# For each operator PostgreSQL has, and each of the functions that are of use here, one of the same name and arguments.
TRAPS = """
DO $$
DECLARE
  it record;
BEGIN
  FOR it IN
    SELECT o.oid, o.oprname, o.oprleft::regtype AS l, o.oprright::regtype AS r FROM pg_operator o
    WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprleft <> 0
      AND o.oprname IN ('=', '<>', '<', '<=', '>', '&', '+', '-', '||', '~', '~~', '!~~')
    UNION ALL SELECT 1, '=', 'bigint[]', 'bigint[]' UNION ALL SELECT 2, '=', 'text[]', 'text[]'
    UNION ALL SELECT 3, '&', 'smallint', 'integer'
  LOOP
    BEGIN
      EXECUTE format('CREATE FUNCTION trap.%I(%s, %s) RETURNS boolean LANGUAGE plpgsql AS %L', 'op_' || it.oid,
        it.l, it.r, format('BEGIN RAISE EXCEPTION ''trapped by %s(%s, %s)''; END', it.oprname, it.l, it.r));
      EXECUTE format('CREATE OPERATOR trap.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = trap.%I)', it.oprname,
        it.l, it.r, 'op_' || it.oid);
    EXCEPTION WHEN invalid_function_definition OR feature_not_supported OR duplicate_function THEN NULL;
    END;
  END LOOP;
  FOR it IN
    SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS args, pg_get_function_result(p.oid) AS result
    FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proname IN (
      'set_config', 'current_setting', 'format_type', 'pg_relation_filenode', 'pg_get_userbyid', 'unnest',
      'obj_description', 'to_regclass', 'pg_notify', 'clock_timestamp', 'has_table_privilege', 'pg_get_expr',
      'aclexplode', 'pg_advisory_xact_lock', 'pg_has_role', 'has_schema_privilege', 'has_database_privilege')
    UNION ALL SELECT 'pg_relation_filenode', 'oid', 'oid' UNION ALL SELECT 'unnest', 'int2vector', 'SETOF smallint'
  LOOP
    EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', it.proname, it.args, it.result,
      format('BEGIN RAISE EXCEPTION ''trapped by %s''; END', it.proname));
  END LOOP;
  CREATE FUNCTION trap.counted(bigint) RETURNS bigint LANGUAGE plpgsql AS
    'BEGIN RAISE EXCEPTION ''trapped by count''; END';
  CREATE AGGREGATE trap.count(*) (SFUNC = trap.counted, STYPE = bigint, INITCOND = '0');
  CREATE DOMAIN trap.text AS pg_catalog.text CHECK (VALUE IS NULL);
  CREATE TABLE trap.pg_class (oid int);
END $$
"""
PATHS = ("public, trap", "trap, public, pg_catalog")


def lay_traps(shop: Shop, path: str) -> Shop:
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("CREATE SCHEMA trap")
        superuser.execute(f"GRANT USAGE, CREATE ON SCHEMA trap TO {MILLSTREAM}")
        superuser.execute(TRAPS)
        superuser.execute(f'ALTER ROLE {MILLSTREAM} IN DATABASE "{shop.name}" SET search_path = {path}')
    return shop


@pytest.fixture(params=PATHS)
def trapped(request: pytest.FixtureRequest, shop: Shop) -> Shop:
    return lay_traps(shop, request.param)


@pytest.fixture(params=[*((path, "public") for path in PATHS), ("pg_catalog", "trap"), ("public, pg_catalog", "trap")])
def place(request: pytest.FixtureRequest, shop: Shop) -> tuple[Shop, str]:
    """A database with traps, and the schema to serve into: in the last two cases it is the one that has them."""
    path, schema = request.param
    return lay_traps(shop, path), schema


def seen_by(table: Table, *whats: str) -> None:
    """Have triggers note that they fired, in a table they do not name the schema of."""
    table.run(
        "CREATE TABLE trap.seen (what pg_catalog.text)",
        "GRANT INSERT ON trap.seen TO PUBLIC",
        "CREATE FUNCTION trap.see() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO seen VALUES (TG_NAME); RETURN NEW; END $$",
        *(what.format(table=f'{table.target.schema}."totals"') for what in whats),
    )


def seen(table: Table) -> set[object]:
    return {what for (what,) in table.run("SELECT DISTINCT what FROM trap.seen")}


ROW = "CREATE TRIGGER by_row {} ON {{table}} FOR EACH ROW EXECUTE FUNCTION trap.see()"
BY_STATEMENT = "CREATE TRIGGER by_statement AFTER UPDATE ON {table} EXECUTE FUNCTION trap.see()"
DEFERRED = (
    "CREATE CONSTRAINT TRIGGER deferred AFTER INSERT OR UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION trap.see()"
)


@pytest.mark.parametrize("fires", [None, "AFTER INSERT OR UPDATE", "BEFORE INSERT OR UPDATE"])
def test_a_keyed_table(place: tuple[Shop, str], fires: str | None) -> None:
    trapped, schema = place
    t = served(trapped, WIDE, ["k"])
    t.option(schema=schema)
    t.declare()
    assert t.serve(("a", (1, 2), 1, ((1,), (2,)), b"x")).mode == "FULL"
    if fires is not None:
        seen_by(t, ROW.format(fires), BY_STATEMENT, DEFERRED)
    changed = ("a", (1, 3), 1, ((1,), (2,)), b"x")
    assert t.serve(changed, (None, (), None, None, None)).mode == "DIFFERENTIAL"
    assert t.run(f"SELECT tags FROM {schema}.totals WHERE k IS NOT NULL") == [([1, 3],)]
    assert t.serve(changed).mode == "DIFFERENTIAL"
    assert t.rows("k, amount, raw") == Counter({("a", 1, b"x"): 1})
    assert fires is None or seen(t) == {"by_row", "by_statement", "deferred"}
    t.feed.is_large = True
    assert t.serve(("b", (1, 3), 1, (), b"x")).mode == "DIFFERENTIAL"
    assert t.serve(("b", (1, 2), 2, (), b"x"), full=True).mode == "FULL"
    t.option(key=("k", "amount"))
    assert t.serve(("b", (1, 2), 3, (), b"x")).reason.startswith("KEY_CHANGED")
    with connected(trapped) as connection:
        PostgresSink(connection, LEDGER).grant(t.target)
        PostgresSink(connection, LEDGER).drop(t.target, cascade=False)


def test_a_bag(place: tuple[Shop, str]) -> None:
    trapped, schema = place
    t = served(trapped, BAG, None)
    t.option(schema=schema)
    t.serve(("a", 1), ("a", 1), (None, 2))
    seen_by(t, ROW.format("BEFORE INSERT"))
    assert t.serve(("a", 1), ("b", 2)).mode == "DIFFERENTIAL"
    assert t.rows() == Counter({("a", 1): 1, ("b", 2): 1})
    assert seen(t) == {"by_row"}
    assert t.serve(("c", 1), ("b", 2), full=True).mode == "FULL"
    t.option(user_triggers=UserTriggers.OFF)
    assert t.serve(("c", 1)).mode == "DIFFERENTIAL"


def test_a_path_that_a_trigger_leaves_behind_is_not_ours(trapped: Shop) -> None:
    t = served(trapped, KEYED, ["k"])
    t.serve((1, 10))
    t.run(
        "CREATE FUNCTION trap.lead() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN SET search_path = trap, pg_catalog; RETURN NEW; END $$",
        "CREATE TRIGGER lead AFTER INSERT ON public.totals FOR EACH ROW EXECUTE FUNCTION trap.lead()",
    )
    with connected(trapped) as connection:  # which serves again and again
        for row in ((2, 20), (3, 30)):
            t.put(row)
            assert PostgresSink(connection, LEDGER).serve(t.target, t.mark, t.feed).mode == "DIFFERENTIAL"
            assert connection.execute("SHOW search_path").fetchone() == ("trap, pg_catalog",)
    assert t.rows() == Counter({(3, 30): 1})


CODE = """
CREATE TABLE "Reports".notes (what text, value bigint);
CREATE TABLE "Reports".allowed (k bigint);
INSERT INTO "Reports".allowed SELECT generate_series(1, 9);
GRANT ALL ON "Reports".notes, "Reports".allowed TO PUBLIC;
CREATE FUNCTION "Reports".note(what text, value bigint) RETURNS bigint LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO notes VALUES (what, value); RETURN value; END $$;
CREATE FUNCTION "Reports".is_allowed(it bigint) RETURNS boolean LANGUAGE plpgsql AS
  $$ BEGIN RETURN it IN (SELECT k FROM allowed); END $$;
CREATE FUNCTION "Reports".fired() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM note(TG_NAME, 0); RETURN NEW; END $$;
"""
COMPUTED = """
SET search_path = "Reports";
ALTER TABLE "Reports".totals ADD COLUMN filled bigint;
ALTER TABLE "Reports".totals ALTER COLUMN filled SET DEFAULT "Reports".note('default', 1);
ALTER TABLE "Reports".totals ADD CONSTRAINT allowed CHECK ("Reports".is_allowed(k));
"""
# Policies hold for the owner, too; this one lets all rows through, and looks into a table of its own schema for it.
POLICY = """
CREATE POLICY seen ON "Reports".totals USING ("Reports".is_allowed(k));
ALTER TABLE "Reports".totals ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
"""
FIRED = [
    f'CREATE {kind} TRIGGER {name} {when} ON "Reports".totals {each} EXECUTE FUNCTION "Reports".fired()'
    for kind, name, when, each in (
        ("", "by_row", "AFTER INSERT OR UPDATE", "FOR EACH ROW"),
        ("", "by_statement", "AFTER INSERT OR UPDATE", ""),
        ("CONSTRAINT", "deferred", "AFTER INSERT OR UPDATE", "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"),
    )
]


@pytest.mark.parametrize("path", ["DEFAULT", "pg_catalog", "''"])
@pytest.mark.parametrize("key", [["k"], None])
@pytest.mark.parametrize("code", ["triggers", "computed", "policy"])
def test_users_code_finds_what_is_in_the_schema_of_the_served_table(
    shop: Shop, path: str, key: list[str] | None, code: str
) -> None:
    t = served(shop, KEYED, key)
    t.option(schema="Reports")
    t.run(
        'CREATE SCHEMA "Reports"',
        f'GRANT USAGE, CREATE ON SCHEMA "Reports" TO {MILLSTREAM}',
        f'ALTER ROLE {MILLSTREAM} IN DATABASE "{shop.name}" SET search_path = {path}',
        CODE,
    )
    t.serve((1, 10))
    t.run(*{"triggers": FIRED, "computed": [COMPUTED], "policy": [POLICY]}[code])
    assert t.serve((1, 11), (2, 20)).mode == "DIFFERENTIAL"
    t.feed.is_large = True
    assert t.serve((1, 11), (2, 21), (3, 30)).mode == "DIFFERENTIAL"
    assert t.serve((1, 11), (2, 22), (4, 40), full=True).mode == "FULL"
    assert Counter(t.run('SELECT k, v FROM "Reports".totals')) == Counter([(1, 11), (2, 22), (4, 40)])
    fired = {"triggers": {"by_row", "by_statement", "deferred"}, "computed": {"default"}, "policy": set()}[code]
    assert {what for (what,) in t.run('SELECT what FROM "Reports".notes')} == fired


def test_a_column_of_another_type_runs_users_checks_and_none_of_the_traps(place: tuple[Shop, str]) -> None:
    trapped, schema = place
    t = served(trapped, pa.schema([("k", pa.int32()), ("v", pa.string()), ("w", pa.int32())]), ["k"])
    t.option(schema=schema)
    t.serve((1, "10", 1), (2, "20", 2))
    t.run(
        f"CREATE TABLE {schema}.allowed (k bigint); INSERT INTO {schema}.allowed VALUES (1), (2)",
        f"GRANT SELECT ON {schema}.allowed TO PUBLIC",
        f"CREATE FUNCTION {schema}.is_allowed(it bigint) RETURNS boolean LANGUAGE plpgsql AS "
        "$$ BEGIN RETURN EXISTS (SELECT FROM allowed a WHERE a.k OPERATOR(pg_catalog.=) it); END $$",
        f"SET search_path = pg_catalog, {schema}; ALTER TABLE {schema}.totals ADD CHECK (is_allowed(k))",
    )
    t.feed.schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.string())])
    t.option(columns=served_columns(t.feed.schema))
    assert t.serve((1, 10, "one"), (2, 21, "two")).reason.startswith("TYPES_CHANGED")
    assert t.rows() == Counter([(1, 10, "one"), (2, 21, "two")])
    t.run(f"ALTER TABLE {schema}.totals DROP CONSTRAINT totals_k_check")
    t.feed.schema = pa.schema([("k", pa.date32()), ("v", pa.binary()), ("w", pa.list_(pa.string()))])  # all made again
    t.option(columns=served_columns(t.feed.schema))
    t.serve((date(2024, 5, 1), b"x", ("a",)))
    assert t.rows("k, v") == Counter([(date(2024, 5, 1), b"x")])


def test_users_code_sees_the_served_schema_and_then_what_the_role_has_chosen(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.option(schema="reports")
    t.run(
        "CREATE SCHEMA reports",
        f"GRANT USAGE, CREATE ON SCHEMA reports TO {MILLSTREAM}",
        "CREATE TABLE reports.paths (path text)",
        "GRANT ALL ON reports.paths TO PUBLIC",
        "CREATE FUNCTION reports.see() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO reports.paths VALUES (current_setting('search_path')); RETURN NULL; END $$",
    )
    t.serve((1, 10))
    t.run("CREATE TRIGGER see AFTER UPDATE ON reports.totals EXECUTE FUNCTION reports.see()")
    with connected(shop) as connection:  # the session's own choice is none of the role's
        connection.execute("SET search_path = nowhere")
        t.put((1, 11))
        PostgresSink(connection, LEDGER).serve(t.target, t.mark, t.feed)
        assert connection.execute("SHOW search_path").fetchone() == ("pg_catalog, pg_temp",)
    assert t.run("SELECT path FROM reports.paths") == [('"reports", "$user", public',)]


def test_the_traps_are_sprung_by_names_without_a_schema(trapped: Shop) -> None:
    with connected(trapped) as connection:
        for statement in (
            "SELECT pg_relation_filenode(1259::oid)",
            "SELECT ARRAY[1::bigint] IS DISTINCT FROM ARRAY[2::bigint]",
        ):
            with pytest.raises(psycopg.errors.RaiseException, match="trapped"):
                connection.execute(statement)
