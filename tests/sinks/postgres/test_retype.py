"""A served table follows the types of its result's columns: a source's column may be widened, or become another one."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from kits.serving import Row, Table, served
from kits.serving import shop as either  # of PostgreSQL 18, and of 15
from kits.shops import Shop
from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.types import served_columns

__all__ = ["either"]
pytestmark = pytest.mark.postgres

Pair = tuple[pa.DataType, list[Any], pa.DataType, list[Any]]
DAY = dt.datetime(2024, 5, 1, 12)
# Old type and values, new type and values; the first value stays what it was, as far as both types can say.
WIDENED: dict[str, Pair] = {
    "smallint to integer": (pa.int16(), [1, 2], pa.int32(), [1, 2**31 - 1]),
    "integer to bigint": (pa.int32(), [1, 2], pa.int64(), [1, 2**40]),
    "integer to numeric": (pa.int32(), [1, 2], pa.decimal128(20, 2), [Decimal("1.00"), Decimal("2.50")]),
    "real to double": (pa.float32(), [0.5, 2.0], pa.float64(), [0.5, 1e300]),
    "numeric to a wider one": (
        pa.decimal128(10, 2),
        [Decimal("1.50"), Decimal("2.00")],
        pa.decimal128(12, 2),
        [Decimal("1.50"), Decimal("9999999999.99")],
    ),
    "numeric to one of more digits": (
        pa.decimal128(10, 2),
        [Decimal("1.50"), Decimal("2.00")],
        pa.decimal128(12, 4),
        [Decimal("1.5000"), Decimal("2.0001")],
    ),
    "date to timestamp": (pa.date32(), [DAY.date(), dt.date(1, 1, 1)], pa.timestamp("us"), [DAY, DAY.replace(year=2)]),
    "timestamp to timestamptz": (
        pa.timestamp("us"),
        [DAY, DAY.replace(year=2)],
        pa.timestamp("us", tz="UTC"),
        [DAY.replace(tzinfo=dt.UTC), DAY.replace(year=3, tzinfo=dt.UTC)],
    ),
    "integer to text": (pa.int32(), [1, 2], pa.string(), ["1", "two"]),
    "boolean to text": (pa.bool_(), [True, False], pa.string(), ["true", "perhaps"]),
}
NARROWED: dict[str, Pair] = {
    "bigint to integer": (pa.int64(), [1, 2**40], pa.int32(), [1, 2]),
    "numeric to a narrower one": (
        pa.decimal128(12, 2),
        [Decimal("1.50"), Decimal("9999999999.99")],
        pa.decimal128(4, 1),
        [Decimal("1.5"), Decimal("2.0")],
    ),
    "text to integer": (pa.string(), ["1", "two"], pa.int32(), [1, 2]),
    "texts that become one integer": (pa.string(), ["1", "01"], pa.int32(), [1, 2]),
    "text to date": (pa.string(), ["2024-05-01", "soon"], pa.date32(), [DAY.date(), dt.date(2025, 1, 1)]),
    "double to boolean": (pa.float64(), [1.0, 0.5], pa.bool_(), [True, False]),
    "bytes to integer": (pa.binary(), [b"1", b"\xff"], pa.int64(), [1, 2]),
}
ALL = {**WIDENED, **NARROWED}


def retype(t: Table, schema: pa.Schema) -> None:
    """The stream table was stored from scratch, with columns of other types."""
    t.feed.schema = schema
    t.option(columns=served_columns(schema))
    t.stage += "'"


def types(t: Table) -> dict[str, str]:
    return dict(
        t.run(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'public.totals'::regclass AND attnum > 0 AND NOT attisdropped"
        )
    )


DECLARED = """
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'public.totals'::regclass ORDER BY contype, conname
"""


def schema_of(k: pa.DataType, v: pa.DataType) -> pa.Schema:
    return pa.schema([("k", k), ("v", v)])


@pytest.mark.parametrize(("case", "key"), [*((case, ["k"]) for case in ALL), ("integer to bigint", None)])
def test_a_column_of_another_type(shop: Shop, case: str, key: list[str] | None) -> None:
    old, before, new, after = ALL[case]
    t = served(shop, schema_of(pa.int64(), old), key)
    t.serve(*enumerate(before))
    t.run("ALTER TABLE public.totals ADD COLUMN note text", "UPDATE public.totals SET note = 'kept' WHERE k = 0")
    retype(t, schema_of(pa.int64(), new))
    done = t.serve(*enumerate(after))
    assert (done.mode, done.reason.partition(":")[0]) == ("FULL", "TYPES_CHANGED")
    assert t.rows("k, v") == Counter(enumerate(after))
    assert types(t)["v"] == t.target.columns[1].pg_type
    if key:  # rows are known by it, and stay
        assert t.rows("k, note") == Counter([(0, "kept"), (1, None)])
    assert t.serve((0, after[1]), (2, after[0])).mode == "DIFFERENTIAL"
    assert t.rows("k, v") == Counter([(0, after[1]), (2, after[0])])
    assert t.again().mode == "NONE"


@pytest.mark.parametrize(("case", "total"), [*((case, True) for case in ALL), ("text to integer", False)])
def test_a_key_of_another_type(shop: Shop, case: str, total: bool) -> None:
    old, before, new, after = ALL[case]
    t = served(shop, schema_of(old, pa.int64()), ["k"], total=total)
    t.serve(*((k, i) for i, k in enumerate(before)))
    definition = t.run(DECLARED)
    retype(t, schema_of(new, pa.int64()))
    rows = [(k, i) for i, k in enumerate(after)]
    t.serve(*rows)
    assert t.rows("k, v") == Counter(rows)
    assert types(t)["k"] == t.target.columns[0].pg_type
    assert t.run(DECLARED) == definition != []
    assert t.serve((after[1], 7)).mode == "DIFFERENTIAL"
    assert t.rows("k, v") == Counter([(after[1], 7)])


def test_nested_values_become_others(shop: Shop) -> None:
    t = served(shop, schema_of(pa.int64(), pa.list_(pa.int32())), ["k"])
    t.serve((1, (1, 2)))
    for new, value in ((pa.list_(pa.int64()), [1, 2**40]), (pa.list_(pa.list_(pa.int64())), [[1], []])):
        retype(t, schema_of(pa.int64(), new))
        t.serve((1, tuple(map(tuple, value)) if isinstance(value[0], list) else tuple(value)))
        assert t.run("SELECT k, v FROM public.totals") == [(1, value)]


INT32, INT64 = schema_of(pa.int32(), pa.int32()), schema_of(pa.int64(), pa.int64())
WIDE: list[Row] = [(1, 11), (3, 2**40)]


def widening(
    shop: Shop, *statements: str, schema: pa.Schema = INT32, rows: tuple[Row, ...] = ((1, 10), (2, 20))
) -> Table:
    """A table whose columns are to be widened, with what its users put on it."""
    t = served(shop, schema, ["k"], total=True)
    t.serve(*rows)
    if statements:
        t.run(*statements)
    retype(t, INT64)
    return t


def test_what_users_made_on_the_table_is_kept(either: Shop) -> None:
    t = widening(
        either,
        "CREATE INDEX mine ON public.totals (v) WHERE v > 0",
        "CREATE INDEX doubled ON public.totals ((v * 2))",
        "CREATE VIEW public.counted AS SELECT count(*) AS n FROM public.totals",
        "GRANT SELECT ON public.totals TO stranger",
        "CREATE PUBLICATION all_of_it FOR TABLE public.totals",
        "ALTER TABLE public.totals ADD COLUMN note text DEFAULT 'mine', ADD CHECK (v > 0)",
        "ALTER TABLE public.totals ALTER COLUMN v SET DEFAULT 7",
        "UPDATE public.totals SET note = 'kept' WHERE k = 1",
        "CREATE TABLE public.notes (k int REFERENCES public.totals ON DELETE CASCADE)",
        "INSERT INTO public.notes VALUES (1)",
        "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER f AFTER UPDATE ON public.totals FOR EACH ROW EXECUTE FUNCTION public.f()",
    )
    done = t.serve(*WIDE)
    assert (done.counts.inserted, done.counts.updated, done.counts.deleted) == (1, 1, 1)
    assert t.rows() == Counter([(1, 11, "kept"), (3, 2**40, "mine")])
    assert types(t) == {"k": "bigint", "v": "bigint", "note": "text"}
    assert t.run("SELECT n FROM public.counted") == [(2,)]
    assert t.run("SELECT k FROM public.notes") == [(1,)]
    assert t.run("SELECT count(*) FROM pg_indexes WHERE indexname IN ('mine', 'doubled')") == [(2,)]
    assert t.run("SELECT tablename FROM pg_publication_tables") == [("totals",)]
    assert t.run("SELECT tgenabled FROM pg_trigger WHERE tgname = 'f'") == [("O",)]
    assert t.run("SELECT has_table_privilege('stranger', 'public.totals', 'SELECT')") == [(True,)]


def test_rows_that_are_as_they_should_be_are_not_touched(shop: Shop) -> None:
    t = widening(shop)
    done = t.serve((1, 10), (2, 20))
    assert (done.counts.inserted, done.counts.updated, done.counts.deleted) == (0, 0, 0)
    assert types(t) == {"k": "bigint", "v": "bigint"}


DEPENDENT = {
    "view big": ("CREATE VIEW public.big AS SELECT * FROM public.totals WHERE v > 10", "DROP VIEW public.big"),
    "column twice": (
        "ALTER TABLE public.totals ADD COLUMN twice bigint GENERATED ALWAYS AS (v * 2) STORED",
        "ALTER TABLE public.totals DROP COLUMN twice",
    ),
    "policy few": (
        "CREATE POLICY few ON public.totals USING (v > 0)",
        "DROP POLICY few ON public.totals",
    ),
    "trigger refuse": (
        "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
        "CREATE TRIGGER refuse AFTER UPDATE OF v ON public.totals FOR EACH ROW EXECUTE FUNCTION public.f()",
        "DROP TRIGGER refuse ON public.totals",
    ),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_what_postgres_does_not_alter_a_column_under_is_named(either: Shop, name: str) -> None:
    make, drop = DEPENDENT[name]
    t = widening(either, make)
    for _ in range(2):
        with pytest.raises(MillstreamError) as refused:
            t.serve(*WIDE)
        assert refused.value.code is Code.DEPENDENTS_EXIST
        assert name.split()[1] in refused.value.message
        assert t.rows("k, v") == Counter([(1, 10), (2, 20)])
    t.run(drop)
    t.again()
    assert t.rows("k, v") == Counter(WIDE)


def test_a_default_that_does_not_fit_any_more_is_named(shop: Shop) -> None:
    t = served(shop, schema_of(pa.int64(), pa.string()), ["k"])
    t.serve((1, "x"))
    t.run("ALTER TABLE public.totals ALTER COLUMN v SET DEFAULT 'none'")
    retype(t, INT64)
    with pytest.raises(MillstreamError, match='"v"') as refused:
        t.serve((1, 1))
    assert refused.value.code is Code.DEPENDENTS_EXIST
    t.run("ALTER TABLE public.totals ALTER COLUMN v DROP DEFAULT")
    t.again()
    assert t.rows() == Counter([(1, 1)])


@pytest.mark.parametrize("action", ["CASCADE", "RESTRICT", "SET NULL"])
def test_rows_that_others_refer_to_are_not_taken_away(shop: Shop, action: str) -> None:
    t = widening(
        shop,
        f"CREATE TABLE public.notes (k text REFERENCES public.totals ON DELETE {action})",
        "INSERT INTO public.notes VALUES ('one')",
        schema=schema_of(pa.string(), pa.int64()),
        rows=(("one", 10), ("two", 20)),
    )
    with pytest.raises(MillstreamError, match="notes") as refused:
        t.serve(*WIDE)
    assert refused.value.code is Code.DEPENDENTS_EXIST
    assert t.run("SELECT k FROM public.notes") == [("one",)]
    assert t.rows() == Counter([("one", 10), ("two", 20)])
    t.run("DROP TABLE public.notes")
    t.again()
    assert t.rows() == Counter(WIDE)


def test_rows_that_are_written_again_fire_statement_triggers_only(shop: Shop) -> None:
    t = widening(
        shop,
        "CREATE TABLE public.seen (what text); GRANT INSERT ON public.seen TO millstream",
        "CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO seen VALUES (TG_LEVEL || ' ' || TG_OP); RETURN NULL; END $$",
        *(
            f"CREATE TRIGGER {level} {when} INSERT OR UPDATE OR DELETE ON public.totals FOR EACH {level} "
            "EXECUTE FUNCTION public.see()"
            for level, when in (("row", "BEFORE"), ("statement", "AFTER"))
        ),
        schema=schema_of(pa.string(), pa.int64()),
        rows=(("one", 10), ("two", 20), ("3", 30)),
    )
    done = t.serve(*WIDE)
    assert (done.counts.inserted, done.counts.updated, done.counts.deleted) == (2, 0, 3)
    assert t.run("SELECT what FROM public.seen") == [("STATEMENT DELETE",), ("STATEMENT INSERT",)]
    assert t.run("SELECT tgenabled FROM pg_trigger WHERE tgrelid = 'public.totals'::regclass") == [("O",), ("O",)]
    assert t.rows() == Counter(WIDE)


@pytest.mark.parametrize("change", ["ALTER COLUMN v TYPE text", "ALTER COLUMN v TYPE smallint", "DROP COLUMN v"])
def test_a_column_that_somebody_else_has_altered_is_theirs_to_undo(shop: Shop, change: str) -> None:
    t = widening(shop, f"ALTER TABLE public.totals {change}")
    with pytest.raises(MillstreamError, match="column v") as refused:
        t.serve(*WIDE)
    assert refused.value.code is Code.SERVE_FAILED


def test_a_column_that_somebody_has_widened_already(shop: Shop) -> None:
    t = widening(shop, "ALTER TABLE public.totals ALTER COLUMN v TYPE bigint")
    t.serve(*WIDE)
    assert t.rows() == Counter(WIDE)
    assert t.serve((1, 12)).mode == "DIFFERENTIAL"


def test_a_failure_leaves_the_old_column(shop: Shop) -> None:
    t = widening(shop)
    good = t.feed.contents
    t.feed.contents = lambda: (_ for _ in ()).throw(OSError("gone"))  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        t.serve(*WIDE)
    assert types(t) == {"k": "integer", "v": "integer"}
    t.feed.contents = good  # type: ignore[method-assign]
    t.again()
    assert t.rows() == Counter(WIDE)


def test_a_key_changes_with_its_type(shop: Shop) -> None:
    t = widening(shop)
    t.option(key=("k", "v"))
    t.serve((1, 11), (1, 2**40))
    assert t.rows() == Counter([(1, 11), (1, 2**40)])
    assert t.serve((1, 11)).mode == "DIFFERENTIAL"


def test_a_table_with_places_of_its_rows(shop: Shop) -> None:
    t = widening(
        shop,
        "CREATE FUNCTION public.meddle() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.k := NEW.k + 1000; RETURN NEW; END $$",
        "CREATE TRIGGER meddle BEFORE INSERT ON public.totals FOR EACH ROW EXECUTE FUNCTION public.meddle()",
    )
    t.serve(*WIDE)
    assert t.serve((1, 12), (4, 40)).mode == "DIFFERENTIAL"
    assert t.rows() == Counter([(1, 12), (1004, 40)])


def test_whoever_reads_sees_the_old_rows_or_the_new_ones(shop: Shop) -> None:
    t = widening(shop)
    with psycopg.connect(shop.server.url(shop.name)) as reader:
        reader.execute("SELECT * FROM public.totals")
        t.put(*WIDE)
        thread = threading.Thread(target=t.again)
        thread.start()
        thread.join(1.5)
        assert thread.is_alive()
        assert t.rows() == Counter([(1, 10), (2, 20)])
        reader.rollback()
        thread.join(30)
        assert not thread.is_alive()
    assert t.rows() == Counter(WIDE)
