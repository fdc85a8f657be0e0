"""Every type a result can have, served and read back; what PostgreSQL cannot hold is refused by its column's name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from psycopg import sql

from kits.serving import Feed, connected, served
from kits.shops import Shop
from millstream import naming
from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.types import pg_type, served_columns

pytestmark = pytest.mark.postgres

UTC = dt.UTC

PLAIN: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.int64(), "bigint", [-(2**63), 2**63 - 1, 0, None]),
    (pa.int32(), "integer", [-(2**31), 2**31 - 1, None]),
    (pa.int16(), "smallint", [-32768, 32767, None]),
    (pa.int8(), "smallint", [-128, 127]),
    (pa.bool_(), "boolean", [True, False, None]),
    (pa.float64(), "double precision", [0.1, -1e308, 5e-324, float("inf"), float("-inf"), 1e16, None]),
    (pa.float32(), "real", [0.5, -2.0, None]),
    (
        pa.decimal128(38, 18),
        "numeric(38,18)",
        [Decimal("0"), Decimal("-0.000000000000000001"), Decimal("9" * 20), None],
    ),
    (pa.decimal128(10, 0), "numeric(10,0)", [Decimal(0), Decimal("1234567890")]),
    (pa.string(), "text", ["", "a\tb\nc\rd\\N\\", "\\N", "NULL", "ünïcødé 🐘", " x ", None]),
    (pa.binary(), "bytea", [b"", b"\x00\xff\\", None]),
    (pa.date32(), "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29), None]),
    (
        pa.timestamp("us"),
        "timestamp without time zone",
        [
            dt.datetime(1, 1, 1),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
            dt.datetime(1970, 1, 1, 0, 0, 0, 1),
            None,
        ],
    ),
    (
        pa.timestamp("us", tz="UTC"),
        "timestamp with time zone",
        [dt.datetime(1900, 1, 1, 1, 2, 3, 4, tzinfo=UTC), dt.datetime(2500, 7, 1, tzinfo=UTC), None],
    ),
    (pa.list_(pa.int64()), "bigint[]", [[], [1, None, 3], None]),
    (pa.list_(pa.string()), "text[]", [["", "NULL", None, '"', "\\", "{a,b}", "a\tb\n"], [" "]]),
    (pa.list_(pa.decimal128(10, 2)), "numeric(10,2)[]", [[Decimal("1.50"), None]]),
    (pa.list_(pa.binary()), "bytea[]", [[b"\x00\\x"]]),
    (pa.list_(pa.timestamp("us")), "timestamp without time zone[]", [[dt.datetime(2024, 1, 1)]]),
    (pa.list_(pa.bool_()), "boolean[]", [[True, False]]),
]


def roundtrip(shop: Shop, arrow: pa.DataType, values: list[Any]) -> tuple[list[Any], str]:
    """What a client reads of values that were served as a whole, and again after two deltas that cancel; the type."""
    t = served(shop, pa.schema([("n", pa.int64()), ("v", arrow)]), None)

    def table(weight: int | None = None) -> pa.Table:
        rows = pa.table({"n": range(len(values)), "v": pa.array(values, arrow)})
        weights = pa.array([weight] * len(values), pa.int64())
        return rows if weight is None else rows.append_column(naming.WEIGHT, weights)

    class Given(Feed):
        def contents(self) -> Iterable[pa.Table]:
            return [table()]

        def delta(self, after: int) -> pa.Table | str:
            return table(-1 if after == 1 else 1)

    t.feed = Given(t.feed.schema)
    t.serve()
    first = t.run("SELECT v FROM public.totals ORDER BY n")
    assert t.serve().counts.deleted == len(values)  # each row is found by its text
    assert t.run("SELECT 1 FROM public.totals") == []
    assert t.serve().mode == "DIFFERENTIAL"
    again = t.run("SELECT v FROM public.totals ORDER BY n")
    assert repr(first) == repr(again)
    kind = t.run("SELECT pg_typeof(v)::text, format_type(atttypid, atttypmod) FROM public.totals, pg_attribute "
                 "WHERE attrelid = 'public.totals'::regclass AND attname = 'v' LIMIT 1")  # fmt: skip
    return [v for (v,) in first], str(kind[0][1])


@pytest.mark.parametrize(("arrow", "expected", "values"), PLAIN, ids=[p[1] for p in PLAIN])
def test_plain_values_come_back_exactly(shop: Shop, arrow: pa.DataType, expected: str, values: list[Any]) -> None:
    found, kind = roundtrip(shop, arrow, values)
    assert kind == expected == pg_type(arrow)
    assert found == values
    assert all(v.as_tuple().exponent == -arrow.scale for v in found if isinstance(v, Decimal))


@pytest.mark.parametrize("key", [["k"], None], ids=["keyed", "bag"])
@pytest.mark.parametrize("full", [False, True], ids=["differential", "full"])
@pytest.mark.parametrize(
    ("arrow", "minus", "plus"),
    [
        (pa.float64(), -0.0, 0.0),
        (pa.float32(), -0.0, 0.0),
        (pa.list_(pa.float64()), (1.0, -0.0), (1.0, 0.0)),
        (pa.list_(pa.float32()), (-0.0,), (0.0,)),
    ],
    ids=["double", "real", "double[]", "real[]"],
)
def test_an_update_of_the_sign_of_zero_is_served(
    shop: Shop, arrow: pa.DataType, minus: Any, plus: Any, full: bool, key: list[str] | None
) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", arrow)])
    t, given = served(shop, schema, key), list[Any]()

    class Given(Feed):
        """To Python, and so to the kit's own differences, the two are one."""

        def contents(self) -> Iterable[pa.Table]:
            return [pa.table({"k": [1], "v": pa.array(given[-1:], arrow)}, schema)]

        def delta(self, after: int) -> pa.Table | str:
            if full:
                return "NO_DELTA: it was recomputed"
            weights = {"k": [1, 1], "v": pa.array(given[-2:], arrow), naming.WEIGHT: pa.array([-1, 1], pa.int64())}
            return pa.table(weights)

    t.feed = Given(schema)
    for value in (minus, plus, minus):
        given.append(value)
        t.serve()
        printed = "{" + ",".join(f"{v:g}" for v in value) + "}" if isinstance(value, tuple) else f"{value:g}"
        assert t.run("SELECT v::text FROM public.totals") == [(printed,)]


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        (pa.schema([("x", pa.duration("us"))]), Code.UNSUPPORTED_TYPE),
        (pa.schema([("x", pa.struct([("y", pa.time64("us"))]))]), Code.UNSUPPORTED_TYPE),
        (pa.schema([("ctid", pa.int64())]), Code.NAME_INVALID),
        (pa.schema([("ü" * 32, pa.int64())]), Code.NAME_INVALID),
    ],
)
def test_columns_without_a_type_or_name_are_refused(schema: pa.Schema, code: Code) -> None:
    with pytest.raises(MillstreamError) as caught:
        served_columns(schema)
    assert caught.value.code is code
    assert schema.names[0] in caught.value.message


def test_names_are_quoted(shop: Shop) -> None:
    t = served(shop, pa.schema([('wei"rd %s', pa.int64()), ("Total", pa.int64())]), ['wei"rd %s'], name='my "table')
    t.serve((1, 10), (2, 20))
    t.serve((1, 11))
    t.serve((1, 12), full=True)
    with connected(shop) as connection:
        query = sql.SQL("SELECT {}, {} FROM {}").format(*map(sql.Identifier, ['wei"rd %s', "Total", 'my "table']))
        assert connection.execute(query).fetchall() == [(1, 12)]
