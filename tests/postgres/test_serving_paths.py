"""Whatever others put into the path of the role that serves, it runs none of it; and triggers see that path."""

from __future__ import annotations

from collections import Counter

import psycopg
import pyarrow as pa
import pytest
from serving_kit import BAG, KEYED, LEDGER, Table, connected, served
from shops import MILLSTREAM, Shop

from millstream.sinks.postgres.serve import PostgresSink
from millstream.sinks.postgres.target import UserTriggers

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


@pytest.fixture(params=PATHS)
def trapped(request: pytest.FixtureRequest, shop: Shop) -> Shop:
    with shop.server.superuser(shop.name) as superuser:
        superuser.execute("CREATE SCHEMA trap")
        superuser.execute(f"GRANT USAGE ON SCHEMA trap TO {MILLSTREAM}")
        superuser.execute(TRAPS)
        superuser.execute(f'ALTER ROLE {MILLSTREAM} IN DATABASE "{shop.name}" SET search_path = {request.param}')
    return shop


def seen_by(table: Table, *whats: str) -> None:
    """Have triggers note that they fired, in a table they do not name the schema of."""
    table.run(
        "CREATE TABLE trap.seen (what pg_catalog.text)",
        "GRANT INSERT ON trap.seen TO PUBLIC",
        "CREATE FUNCTION trap.see() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO seen VALUES (TG_NAME); RETURN NEW; END $$",
        *(what.format(table='public."totals"') for what in whats),
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
def test_a_keyed_table(trapped: Shop, fires: str | None) -> None:
    t = served(trapped, WIDE, ["k"])
    t.declare()
    assert t.serve(("a", (1, 2), 1, ((1,), (2,)), b"x")).mode == "FULL"
    if fires is not None:
        seen_by(t, ROW.format(fires), BY_STATEMENT, DEFERRED)
    changed = ("a", (1, 3), 1, ((1,), (2,)), b"x")
    assert t.serve(changed, (None, (), None, None, None)).mode == "DIFFERENTIAL"
    assert t.run("SELECT tags FROM public.totals WHERE k IS NOT NULL") == [([1, 3],)]
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


def test_a_bag(trapped: Shop) -> None:
    t = served(trapped, BAG, None)
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


def test_the_traps_are_sprung_by_names_without_a_schema(trapped: Shop) -> None:
    with connected(trapped) as connection:
        for statement in (
            "SELECT pg_relation_filenode(1259::oid)",
            "SELECT ARRAY[1::bigint] IS DISTINCT FROM ARRAY[2::bigint]",
        ):
            with pytest.raises(psycopg.errors.RaiseException, match="trapped"):
                connection.execute(statement)
