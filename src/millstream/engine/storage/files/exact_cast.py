"""Arrow's casts between types, where a value that the other type cannot hold is an error.

Arrow guarantees this for every safe cast, with two exceptions. A decimal that is cast to a larger scale than there is
room for wraps around at 2^128 (1e30 as DECIMAL(38,18) is 18960114910927365649.47…), and a double that is too large for
a float becomes infinity.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_WIDE = 76


def exactly(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the types of a schema that has the same columns in the same order.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit, or a nested value cannot be checked.
    """
    if rows.column_names != schema.names:
        raise pa.ArrowInvalid(f"columns {rows.column_names} are not {schema.names}")
    columns = [exactly_typed(column, field.type) for column, field in zip(rows.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def exactly_typed(values: pa.ChunkedArray | pa.Array, wanted: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """The values of one column as another type.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit.
    """
    have = values.type
    if have == wanted:
        return values
    if pa.types.is_decimal(have) and pa.types.is_decimal(wanted) and _may_wrap(have, wanted):
        return values.cast(pa.decimal256(_WIDE, wanted.scale)).cast(wanted)
    cast = values.cast(wanted)
    if _narrows_float(have, wanted):
        again = cast.cast(have)
        if not pc.all(pc.or_(pc.equal(again, values), pc.is_nan(values)), min_count=0).as_py():
            raise pa.ArrowInvalid(f"a value of {have} does not fit {wanted}")
    elif _holds_unchecked(have, wanted):
        raise pa.ArrowInvalid(f"cannot check whether values of {have} fit {wanted}")
    return cast


def _may_wrap(have: pa.DataType, wanted: pa.DataType) -> bool:
    """A larger scale, and fewer digits before the decimal point; for a smaller scale, Arrow's division checks."""
    return bool(wanted.scale > have.scale and have.precision - have.scale > wanted.precision - wanted.scale)


def _narrows_float(have: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(pa.types.is_floating(have) and pa.types.is_floating(wanted) and wanted.bit_width < have.bit_width)


def _holds_unchecked(have: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a nested type contains numbers that one of these two casts would convert."""
    if pa.types.is_decimal(have) and pa.types.is_decimal(wanted):
        return _may_wrap(have, wanted)
    if pa.types.is_nested(have) and pa.types.is_nested(wanted) and have.num_fields == wanted.num_fields:
        pairs = ((have.field(i).type, wanted.field(i).type) for i in range(have.num_fields))
        return any(_narrows_float(h, w) or _holds_unchecked(h, w) for h, w in pairs)
    return False
