"""Casts between Arrow's types keep values or refuse them."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from millstream.engine.storage.files.data_file import conformed
from millstream.engine.storage.files.exact_cast import exactly, exactly_typed

D = Decimal


@pytest.mark.parametrize(
    ("value", "have", "wanted"),
    [
        (D("1e30"), pa.decimal128(38, 2), pa.decimal128(38, 18)),
        (D("1e20"), pa.decimal128(38, 2), pa.decimal128(38, 18)),
        (D("340282366920938463463"), pa.decimal128(38, 0), pa.decimal128(38, 18)),
        (D("1.234"), pa.decimal128(38, 3), pa.decimal128(38, 2)),
        (D("100"), pa.decimal128(10, 2), pa.decimal128(4, 2)),
        (D("1e40"), pa.decimal256(76, 2), pa.decimal128(38, 2)),
        (2**40, pa.int64(), pa.int32()),
        (2**53 + 1, pa.int64(), pa.float64()),
        (10**12, pa.int64(), pa.decimal128(10, 2)),
        (1e39, pa.float64(), pa.float32()),
        (0.1, pa.float64(), pa.float32()),
        (1e-46, pa.float64(), pa.float32()),
        (1, pa.timestamp("ns"), pa.timestamp("us")),
        (2**62, pa.timestamp("us"), pa.timestamp("ns")),
        (2**62, pa.timestamp("s"), pa.timestamp("us")),
        ([D("1e30")], pa.list_(pa.decimal128(38, 2)), pa.list_(pa.decimal128(38, 18))),
        ([1e39], pa.list_(pa.float64()), pa.list_(pa.float32())),
        ({"a": [D("1e30")]}, pa.struct([("a", pa.list_(pa.decimal128(38, 0)))]),
         pa.struct([("a", pa.list_(pa.decimal128(38, 18)))])),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(value: Any, have: pa.DataType, wanted: pa.DataType) -> None:
    given_values = pa.array([None, value], have)
    with pytest.raises(pa.ArrowInvalid):
        exactly_typed(given_values, wanted)
    schema = pa.schema([("v", wanted)])
    with pytest.raises(pa.ArrowInvalid):
        conformed(pa.table({"v": given_values}), schema, 2)
    with pytest.raises(pa.ArrowInvalid):
        exactly(pa.table({"v": given_values}), schema)


@pytest.mark.parametrize(
    ("values", "have", "wanted"),
    [
        ([D("1.5"), None], pa.decimal128(10, 2), pa.decimal128(38, 18)),
        ([D("99999999999999999999")], pa.decimal128(38, 0), pa.decimal128(38, 18)),
        ([1, None], pa.int32(), pa.int64()),
        ([0.5, math.inf, -math.inf], pa.float64(), pa.float32()),
        (["a"], pa.large_string(), pa.string()),
        ([[D("1.5")]], pa.list_(pa.decimal128(10, 2)), pa.large_list(pa.decimal128(12, 2))),
    ],
)
def test_what_fits_stays_the_same(values: list[Any], have: pa.DataType, wanted: pa.DataType) -> None:
    assert exactly_typed(pa.array(values, have), wanted).to_pylist() == values


def test_nan_and_minus_zero_stay() -> None:
    narrow = exactly_typed(pa.array([math.nan, -0.0]), pa.float32()).to_pylist()
    assert [str(v) for v in narrow] == ["nan", "-0.0"]


@given(st.data())
def test_decimals_are_exact_or_refused(data: st.DataObject) -> None:
    have, wanted = (pa.decimal128(p := data.draw(st.integers(1, 38)), data.draw(st.integers(0, p))) for _ in range(2))
    units = data.draw(st.integers(-(10**have.precision) + 1, 10**have.precision - 1))
    with localcontext(prec=100):
        value = Decimal(units).scaleb(-have.scale)
        there = value.scaleb(wanted.scale)
        fits = there == there.to_integral_value() and abs(there) < 10**wanted.precision
    try:
        [found] = exactly_typed(pa.array([value], have), wanted).to_pylist()
    except pa.ArrowInvalid:
        assert not fits
    else:
        assert fits
        assert found == value
