"""One schema in three spellings: Delta's JSON, Spark's types, Arrow's types.

Arrow types are chosen so that what pyarrow writes is what Spark would have written: timestamps in microseconds,
adjusted to UTC for TIMESTAMP and not adjusted for TIMESTAMP_NTZ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_PLAIN: dict[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    BinaryType: pa.binary(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    TimestampNTZType: pa.timestamp("us"),
}


class UnsupportedTypeError(Exception):
    """A type that the direct path does not read or write (VARIANT, intervals, collated strings, ...)."""


@lru_cache(maxsize=512)
def spark_schema(schema_string: str) -> StructType:
    """The Spark schema of a `metaData` action.

    Raises:
        UnsupportedTypeError: a type for which this PySpark has no class.
    """
    try:
        return StructType.fromJson(json.loads(schema_string))
    except (ValueError, KeyError, TypeError) as e:
        raise UnsupportedTypeError(f"unreadable schema: {e}") from e


@lru_cache(maxsize=512)
def arrow_schema_of(schema_string: str) -> pa.Schema:
    """The Arrow schema of a `metaData` action, every column nullable."""
    return arrow_schema(spark_schema(schema_string))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that holds rows of `schema`.

    >>> arrow_schema(StructType([StructField("t", TimestampType())])).field("t").type
    TimestampType(timestamp[us, tz=UTC])
    """
    return pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in schema.fields])


def arrow_type(data_type: DataType) -> pa.DataType:
    """The Arrow type of one column; raises `UnsupportedTypeError` if there is no equivalent."""
    plain = _PLAIN.get(type(data_type))
    if plain is not None:
        return plain
    if isinstance(data_type, StringType) and type(data_type) is StringType and data_type == StringType():
        return pa.string()
    if isinstance(data_type, DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, ArrayType):
        return pa.list_(pa.field("element", arrow_type(data_type.elementType)))
    if isinstance(data_type, MapType):
        return pa.map_(arrow_type(data_type.keyType), arrow_type(data_type.valueType))
    if isinstance(data_type, StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType)) for f in data_type.fields])
    raise UnsupportedTypeError(f"type {data_type.simpleString()} is read through Spark only")


def delta_schema_string(schema: StructType) -> str:
    """`schema` for a `metaData` action: every column nullable, only names and types."""
    plain = StructType([StructField(f.name, f.dataType, nullable=True) for f in schema.fields])
    return plain.json()


def columns_of(schema: StructType) -> tuple[tuple[str, str, bool], ...]:
    """Name, type in SQL and nullability of each column."""
    return tuple((f.name, f.dataType.simpleString(), f.nullable) for f in schema.fields)


def narrowed(schema: StructType, columns: Sequence[str] | None) -> StructType:
    """The fields that `columns` names, in that order, found as in Spark: ignoring case."""
    if columns is None:
        return schema
    by_name = {f.name.lower(): f for f in schema.fields}
    return StructType([by_name[c.lower()] for c in columns])


def types_of(schema: StructType) -> dict[str, str]:
    """The type of each column, by its name in lower case."""
    return {f.name.lower(): f.dataType.json() for f in schema.fields}


def is_comparable(data_type: pa.DataType) -> bool:
    """Whether Arrow can group by the type."""
    return not pa.types.is_nested(data_type)
