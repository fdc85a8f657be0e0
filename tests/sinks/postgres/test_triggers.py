"""Users' triggers on a served table: they see each change as it is, and cannot break the match of rows."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, ClassVar, Self

import psycopg
import pytest

from kits.serving import BAG, KEYED, LEDGER, Table, served, shop
from kits.shops import MILLSTREAM, OWNER, Shop
from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.serve import PostgresSink
from millstream.sinks.postgres.target import UserTriggers
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings

__all__ = ["shop"]
pytestmark = pytest.mark.postgres


def audited(t: Table, *, level: str = "ROW") -> None:
    """Have a trigger of a user write down what it sees."""
    seen = "TG_OP, to_jsonb(OLD), to_jsonb(NEW)" if level == "ROW" else "TG_OP, NULL, NULL"
    t.run(
        "CREATE TABLE IF NOT EXISTS public.audit (n serial, op text, old jsonb, new jsonb)",
        "GRANT ALL ON public.audit TO millstream; GRANT USAGE ON SEQUENCE public.audit_n_seq TO millstream",
        # unqualified: a trigger runs with the search_path its writer expects
        f"CREATE FUNCTION public.audit_{level}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN INSERT INTO audit (op, old, new) SELECT {seen}; RETURN NULL; END $$",
        f"CREATE TRIGGER audit_{level} AFTER INSERT OR UPDATE OR DELETE ON public.totals "
        f"FOR EACH {level} EXECUTE FUNCTION public.audit_{level}()",
    )


def audit(t: Table) -> list[tuple[Any, ...]]:
    """What was written down since the last time."""
    return t.run("WITH gone AS (DELETE FROM public.audit RETURNING *) SELECT op, old, new FROM gone ORDER BY n")


def before(t: Table, body: str, events: str = "INSERT OR UPDATE") -> None:
    """A BEFORE trigger of a user."""
    t.run(
        f"CREATE FUNCTION public.meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
        f"CREATE TRIGGER meddle BEFORE {events} ON public.totals FOR EACH ROW EXECUTE FUNCTION public.meddle()",
    )


def test_row_triggers_see_op_old_and_new_in_order(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10), (2, 20), (None, 5))
    audited(t)
    t.serve((1, 11), (3, 30), (None, 6))
    assert audit(t) == [
        ("DELETE", {"k": 2, "v": 20}, None),
        ("UPDATE", {"k": 1, "v": 10}, {"k": 1, "v": 11}),
        ("UPDATE", {"k": None, "v": 5}, {"k": None, "v": 6}),
        ("INSERT", None, {"k": 3, "v": 30}),
    ]


def test_a_bag_has_deletes_and_inserts(shop: Shop) -> None:
    t = served(shop, BAG, None)
    t.serve(("a", 1), ("a", 1))
    audited(t)
    t.serve(("a", 1), ("b", 1))
    assert audit(t) == [("DELETE", {"a": "a", "b": 1}, None), ("INSERT", None, {"a": "b", "b": 1})]


def test_what_is_as_it_should_be_fires_nothing(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10), (2, 20))
    audited(t)
    audited(t, level="STATEMENT")
    t.run("ALTER TABLE public.totals DISABLE TRIGGER USER")
    t.run("UPDATE public.totals SET v = 11 WHERE k = 1", "ALTER TABLE public.totals ENABLE TRIGGER USER")
    t.serve((1, 11), (2, 20))
    assert audit(t) == []


def test_statement_triggers_fire_once_for_each_statement_that_has_rows(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10), (2, 20))
    audited(t, level="STATEMENT")
    t.serve((1, 11), (2, 21))
    assert [op for op, _, _ in audit(t)] == ["UPDATE"]
    t.serve((3, 30), (4, 40))
    assert [op for op, _, _ in audit(t)] == ["DELETE", "INSERT"]


@pytest.mark.parametrize("key", [["k"], None])
def test_full_suppresses_row_triggers_and_fires_statement_triggers(shop: Shop, key: list[str] | None) -> None:
    t = served(shop, KEYED, key)
    t.serve((1, 10), (2, 20))
    audited(t)
    audited(t, level="STATEMENT")
    t.run("ALTER TABLE public.totals ENABLE ALWAYS TRIGGER audit_row")
    done = t.serve((1, 11), (3, 30), full=True)
    assert done.mode == "FULL"
    ops = [(op, old, new) for op, old, new in audit(t)]
    assert ops == [(op, None, None) for op in (["DELETE", "UPDATE", "INSERT"] if key else ["DELETE", "INSERT"])]
    assert t.run("SELECT tgname, tgenabled FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1") == [
        ("audit_row", "A"),
        ("audit_statement", "O"),
    ]
    t.serve((1, 12), (3, 30))
    assert {op for op, _, _ in audit(t)} == ({"UPDATE"} if key else {"DELETE", "INSERT"})


@pytest.mark.parametrize("full", [False, True])
def test_off_fires_nothing(shop: Shop, full: bool) -> None:
    t = served(shop, KEYED, ["k"], triggers=UserTriggers.OFF)
    t.serve((1, 10), (2, 20))
    audited(t)
    audited(t, level="STATEMENT")
    t.serve((1, 11), (3, 30), full=full)
    assert t.rows() == Counter([(1, 11), (3, 30)])
    assert audit(t) == []
    assert t.notices == []


def test_a_trigger_may_alter_what_is_written(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    before(t, "NEW.v := NEW.v * 100; RETURN NEW;")
    t.serve((1, 11), (2, 20))
    assert t.rows() == Counter([(1, 1100), (2, 2000)])
    t.serve((2, 21))
    assert t.rows() == Counter([(2, 2100)])


def test_a_trigger_may_alter_the_key(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"], total=True)
    t.serve((1, 10), (2, 20))
    before(t, "NEW.k := NEW.k + 1000; RETURN NEW;")
    t.serve((1, 11), (2, 20), (3, 30))
    assert t.rows() == Counter([(1001, 11), (2, 20), (1003, 30)])
    t.serve((2, 20), (3, 31))
    assert t.rows() == Counter([(2, 20), (1003, 31)])
    t.serve((3, 31))
    t.serve()
    assert t.rows() == Counter()


def test_a_trigger_may_alter_rows_of_a_bag_with_duplicates(shop: Shop) -> None:
    t = served(shop, BAG, None)
    t.serve(("a", 1), ("b", 2))
    before(t, "NEW.a := 'all the same'; NEW.b := 0; RETURN NEW;", "INSERT")
    t.serve(("a", 1), ("a", 1), ("b", 2), ("c", 3), ("c", 3))
    same = ("all the same", 0)
    assert t.rows() == Counter([("a", 1), ("b", 2), same, same, same])
    t.serve(("b", 2), ("c", 3))
    assert t.rows() == Counter([("b", 2), same])
    t.serve()
    assert t.rows() == Counter()


def test_a_trigger_may_leave_rows_out_and_keep_rows(shop: Shop) -> None:
    for key in (["k"], None):
        t = served(shop, KEYED, key)
        t.serve((1, 10))
        body = "IF TG_OP = 'DELETE' THEN RETURN CASE WHEN OLD.k = 1 THEN NULL ELSE OLD END; END IF; "
        before(t, body + "RETURN CASE WHEN NEW.v = 13 THEN NULL ELSE NEW END;", "INSERT OR UPDATE OR DELETE")
        t.serve((1, 10), (2, 13), (3, 30))
        assert t.rows() == Counter([(1, 10), (3, 30)])
        t.serve((2, 13))
        assert t.rows() == Counter([(1, 10)])
        t.serve((2, 14), (1, 15))  # a row that was left out, and one that was kept, come back
        assert t.rows() == Counter([(2, 14), (1, 15)] if key else [(1, 10), (2, 14), (1, 15)])
        t.run("DROP TABLE public.totals", "DROP FUNCTION public.meddle")


def test_an_error_of_a_trigger_changes_nothing_and_is_told(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    before(t, "IF NEW.v = 13 THEN RAISE EXCEPTION 'no luck'; END IF; RETURN NEW;")
    with pytest.raises(MillstreamError) as caught:
        t.serve((1, 10), (2, 13))
    assert caught.value.code is Code.SERVE_FAILED
    assert "no luck" in caught.value.message
    assert t.rows() == Counter([(1, 10)])
    t.serve((1, 10), (2, 14))
    assert t.rows() == Counter([(1, 10), (2, 14)])


def test_a_broken_unique_index_inside_a_trigger_is_not_answered_by_suppressing_it(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    t.run("CREATE TABLE public.once (v bigint PRIMARY KEY)", "GRANT ALL ON public.once TO millstream")
    before(t, "INSERT INTO once VALUES (NEW.v); RETURN NEW;")
    t.serve((1, 10), (2, 20))
    with pytest.raises(MillstreamError) as caught:
        t.serve((1, 10), (2, 20), (3, 20))
    assert caught.value.code is Code.SERVE_FAILED


def test_each_new_trigger_is_told_once(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10))
    audited(t)
    t.serve((1, 11))
    t.serve((1, 12))
    assert len(t.notices) == 1
    assert "audit_row" in t.notices[0]


def test_a_function_of_others_that_an_owner_has_called_is_told_once(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"])
    t.run(f"GRANT {OWNER} TO {MILLSTREAM}", f"GRANT CREATE ON SCHEMA public TO {OWNER}")
    try:
        t.option(owner=OWNER)
        t.serve((1, 10))
        assert t.notices == []
        with shop.owner() as owner:
            for name in ("filled", "checked", "indexed"):
                owner.execute(
                    f"CREATE FUNCTION public.{name}(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS "
                    "$$ BEGIN RETURN $1; END $$"
                )
            owner.execute(
                "CREATE FUNCTION public.own_rights(bigint) RETURNS bigint SECURITY DEFINER LANGUAGE sql AS 'SELECT $1'"
            )
            owner.execute("ALTER TABLE totals ADD COLUMN extra bigint DEFAULT filled(1) + own_rights(1)")
            owner.execute("ALTER TABLE totals ADD CHECK (checked(v) > 0)")
            owner.execute("CREATE INDEX ON totals (abs(indexed(v)))")
        for expected in (["checked", "filled", "indexed"], []):
            t.notices.clear()
            t.serve((1, 10 + len(expected)), (2, 20))
            assert [n for n in t.notices if "with the rights of the role that serves" in n] == t.notices
            assert [re.findall(r"public\.(\w+)\(bigint\) of the role shop_owner", n)[0] for n in t.notices] == expected
    finally:
        t.run(f"REVOKE {OWNER} FROM {MILLSTREAM}")


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_trigger_that_writes_into_a_source_is_told_once(shop: Shop, is_partitioned: bool) -> None:
    t = served(shop, KEYED, ["k"])
    by = " PARTITION BY LIST (id)" if is_partitioned else ""
    t.run(f"CREATE TABLE public.orders (id bigint){by}", "GRANT ALL ON public.orders TO millstream")
    if is_partitioned:
        t.run(
            "CREATE TABLE public.part PARTITION OF public.orders DEFAULT PARTITION BY LIST (id)",
            "CREATE TABLE public.leaf PARTITION OF public.part DEFAULT",
        )
    oid = t.run("SELECT 'public.orders'::regclass::oid::bigint")[0][0]
    t.sources = {oid: "public.orders"}
    t.serve((1, 10))
    before(t, "INSERT INTO orders VALUES (NEW.k); RETURN NEW;", "UPDATE")
    t.serve((1, 11))
    assert any("public.orders" in n for n in t.notices)
    count = len(t.notices)
    t.serve((1, 12))
    assert len(t.notices) == count


def test_capture_triggers_of_another_lake_are_no_users_triggers(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"], triggers=UserTriggers.OFF)
    t.serve((1, 10))
    mark = BufferSettings(lake="another").mark.replace("'", "''")
    t.run("CREATE SCHEMA millstream_changes", f"COMMENT ON SCHEMA millstream_changes IS '{mark}'")
    t.run("GRANT USAGE ON SCHEMA millstream_changes TO millstream")
    t.run("CREATE TABLE public.seen (k bigint)", "GRANT ALL ON public.seen TO millstream")
    t.run(
        "CREATE FUNCTION millstream_changes.note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.seen VALUES (NEW.k); RETURN NULL; END $$",
        "CREATE TRIGGER note AFTER INSERT ON public.totals FOR EACH ROW EXECUTE FUNCTION millstream_changes.note()",
    )
    t.serve((1, 10), (2, 20))
    t.serve((1, 10), (2, 20), (3, 30), full=True)
    assert t.run("SELECT k FROM public.seen ORDER BY k") == [(2,), (3,)]


def test_deferred_constraint_triggers_and_foreign_keys_hold(shop: Shop) -> None:
    t = served(shop, KEYED, ["k"], total=True)
    t.serve((1, 10), (2, 20))
    audited(t)
    t.run("CREATE TABLE public.notes (k bigint REFERENCES public.totals DEFERRABLE INITIALLY DEFERRED, note text)")
    t.run("INSERT INTO public.notes VALUES (1, 'kept')")
    t.serve((1, 11), (3, 30), full=True)
    assert t.run("SELECT * FROM public.notes") == [(1, "kept")]
    with pytest.raises(MillstreamError) as caught:
        t.serve((3, 30))
    assert caught.value.code is Code.SERVE_FAILED
    assert t.rows() == Counter([(1, 11), (3, 30)])


class Noting(psycopg.Cursor[Any]):
    """A cursor that takes down what changes the served table."""

    changes: ClassVar[list[str]] = []

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Self:
        text = query.as_string(self) if isinstance(query, psycopg.sql.Composable) else str(query)
        found = re.findall(r'(MERGE|DELETE|UPDATE|INSERT)(?: INTO| FROM)?(?: ONLY)? "public"."totals"', text)
        self.changes.extend(found)
        return super().execute(query, *args, **kwargs)


@pytest.mark.parametrize("has_trigger", [False, True])
def test_one_merge_without_triggers_and_three_statements_with_one(shop: Shop, has_trigger: bool) -> None:
    t = served(shop, KEYED, ["k"])
    t.serve((1, 10), (2, 20))
    if has_trigger:
        audited(t)
    t.put((1, 11), (3, 30))
    Noting.changes.clear()
    with psycopg.connect(shop.address.conninfo(), autocommit=True, cursor_factory=Noting) as connection:
        done = PostgresSink(connection, LEDGER).serve(t.target, t.mark, t.feed)
    assert Noting.changes == (["DELETE", "UPDATE", "INSERT"] if has_trigger else ["MERGE"])
    assert (done.counts.deleted, done.counts.updated, done.counts.inserted) == (1, 1, 1)
    assert t.rows() == Counter([(1, 11), (3, 30)])
