"""Bitwise equality of rows in Spark, which treats -0.0 and 0.0 as equal, although their texts differ."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructField, StructType

from millstream.naming import quote


def identities(fields: Sequence[StructField], prefix: str) -> list[Column]:
    """A column per field, named `prefix` and its number, with equal values exactly where the bits are equal."""
    return [identity(field).alias(f"{prefix}{i}") for i, field in enumerate(fields)]


def identity(field: StructField) -> Column:
    """A value that is equal exactly if the bits are. The text of nested values alone does not show where one ends."""
    column = F.col(quote(field.name))
    if not holds_floats(field.dataType):
        return column
    text = column.cast("string")
    return text if isinstance(field.dataType, DoubleType | FloatType) else F.struct(column, text)


def identical_sql(field: StructField, left: str, right: str) -> str:
    """The condition that two relations agree in a column bit by bit."""
    ours, theirs = (f"{side}.{quote(field.name)}" for side in (left, right))
    if not holds_floats(field.dataType):
        return f"{ours} <=> {theirs}"
    return f"({ours} <=> {theirs} AND CAST({ours} AS STRING) <=> CAST({theirs} AS STRING))"


def holds_floats(data_type: DataType) -> bool:
    """Whether equal values may have different bits."""
    if isinstance(data_type, ArrayType):
        return holds_floats(data_type.elementType)
    if isinstance(data_type, MapType):
        return holds_floats(data_type.keyType) or holds_floats(data_type.valueType)
    if isinstance(data_type, StructType):
        return any(holds_floats(f.dataType) for f in data_type.fields)
    return isinstance(data_type, DoubleType | FloatType)
