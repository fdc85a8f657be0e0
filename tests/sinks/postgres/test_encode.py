"""Values as lines of COPY: exact, or refused by the name of their column."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given
from psycopg.types.json import set_json_loads

from kits.serving import Feed, served
from kits.shops import Shop
from millstream import naming
from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.encode import lines_of
from millstream.sinks.postgres.types import pg_type

pytestmark = pytest.mark.postgres

_LARGEST, _LEAST = int(Decimal("3.4028235e38")), Decimal("1e-45")

JSON: list[tuple[pa.DataType, list[tuple[Any, Any]]]] = [
    (
        pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.decimal128(38, 10))]),
        [
            ({"a": 1, "b": 'x"\\\n', "c": Decimal("12345678901234567890.0000000001")},
             {"a": 1, "b": 'x"\\\n', "c": Decimal("12345678901234567890.0000000001")}),
            ({"a": None, "b": "\\u0000", "c": None}, {"a": None, "b": "\\u0000", "c": None}),
            (None, None),
        ],
    ),
    (pa.map_(pa.string(), pa.int64()), [([("k", 1), ("l", None)], {"k": 1, "l": None}), ([], {})]),
    (pa.map_(pa.int32(), pa.float64()), [([(1, float("nan"))], {"1": "nan"})]),
    (
        pa.struct([("r", pa.float32()), ("s", pa.list_(pa.float32()))]),  # as to_jsonb(0.1::real) is
        [({"r": 0.1, "s": [3.4028234663852886e38, 1e-45, None]}, {"r": Decimal("0.1"), "s": [_LARGEST, _LEAST, None]})],
    ),
    (pa.list_(pa.list_(pa.int64())), [([[1], [], [2, 3]], [[1], [], [2, 3]])]),
    (
        pa.list_(pa.struct([("d", pa.date32()), ("t", pa.timestamp("us")), ("x", pa.binary()), ("y", pa.bool_())])),
        [([{"d": dt.date(2024, 1, 2), "t": dt.datetime(2024, 1, 2, 3), "x": b"ab", "y": True}],
          [{"d": "2024-01-02", "t": "2024-01-02T03:00:00", "x": "YWI=", "y": True}])],
    ),
]  # fmt: skip


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


@pytest.mark.parametrize(("arrow", "pairs"), JSON, ids=[str(p[0])[:20] for p in JSON])
def test_nested_values_are_json(shop: Shop, arrow: pa.DataType, pairs: list[tuple[Any, Any]]) -> None:
    set_json_loads(partial(json.loads, parse_float=Decimal))
    try:
        found, kind = roundtrip(shop, arrow, [given for given, _ in pairs])
    finally:
        set_json_loads(json.loads)
    assert kind == "jsonb" == pg_type(arrow)
    assert found == [expected for _, expected in pairs]


def test_not_a_number_and_minus_zero_are_kept(shop: Shop) -> None:
    found, _ = roundtrip(shop, pa.float64(), [float("nan"), -0.0, 0.0])
    assert [str(v) for v in found] == ["nan", "-0.0", "0.0"]


def test_dates_before_christ_are_kept(shop: Shop) -> None:
    t = served(shop, pa.schema([("d", pa.date32()), ("t", pa.timestamp("us"))]), None)
    days = pa.array([-719162 - 1, -719162 - 366 - 1], pa.int32()).cast(pa.date32())  # the last day of 1 BC, and of 2 BC
    moments = pa.array([-62135596800000000 - 1, 0], pa.timestamp("us"))
    t.feed.contents = lambda: [pa.table({"d": days, "t": moments})]  # type: ignore[method-assign]
    t.serve()
    assert t.run("SELECT d::text, t::text FROM public.totals ORDER BY totals.d") == [
        ("0002-12-31 BC", "1970-01-01 00:00:00"),
        ("0001-12-31 BC", "0001-12-31 23:59:59.999999 BC"),
    ]


REFUSED: list[tuple[str, pa.Array]] = [
    ("NUL", pa.array(["a\0b"])),
    ("NUL", pa.array([["a\0b"]], pa.list_(pa.string()))),
    ("NUL", pa.array([{"x": "a\0b"}], pa.struct([("x", pa.string())]))),
    ("too far", pa.array([9_000_000_000_000_000_000], pa.timestamp("us"))),
    ("too far", pa.array([100_000_000], pa.int32()).cast(pa.date32())),
    ("out of range", pa.array([-300_000_000_000_000_000], pa.timestamp("us"))),  # before PostgreSQL's first day
    ("as text", pa.array([[[900_000_000_000_000_000]]], pa.list_(pa.list_(pa.timestamp("us"))))),
]


@pytest.mark.parametrize(("word", "values"), REFUSED)
def test_what_postgres_cannot_hold_is_refused_by_name(shop: Shop, word: str, values: pa.Array) -> None:
    t = served(shop, pa.schema([("good", pa.int64()), ("bad one", values.type)]), None)
    rows = pa.table({"good": [1], "bad one": values})
    t.feed.contents = lambda: [rows]  # type: ignore[method-assign]
    with pytest.raises(MillstreamError) as caught:
        t.serve()
    assert caught.value.code is Code.SERVE_FAILED
    assert "bad one" in caught.value.message
    assert word in caught.value.message
    assert t.run("SELECT to_regclass('public.totals')") == [(None,)]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.none(), max_size=5))
def test_equal_rows_and_no_others_have_equal_lines(texts: list[str | None]) -> None:
    pairs = [(a, b) for a in texts for b in texts]
    rows = pa.table(
        {"a": pa.array([a for a, _ in pairs], pa.string()), "b": pa.array([b for _, b in pairs], pa.string())}
    )
    lines = lines_of(rows, ["a", "b"])
    assert all("\n" not in line and line.count("\t") == 1 for line in lines)
    assert [[x == y for y in lines] for x in lines] == [[x == y for y in pairs] for x in pairs]
