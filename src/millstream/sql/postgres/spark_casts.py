"""Spark's casts and types, and errors at run time, which a failing cast raises."""

from __future__ import annotations

from sqlglot import exp

from millstream.sql.postgres.spark_builders import NULL, Node, Operand, cases, fn, is_null, number, quoted_name, text
from millstream.sql.postgres.types import INTEGER, Type

_SPARK_TYPES = {
    "smallint": exp.DType.SMALLINT,
    "integer": exp.DType.INT,
    "bigint": exp.DType.BIGINT,
    "real": exp.DType.FLOAT,
    "double precision": exp.DType.DOUBLE,
    "boolean": exp.DType.BOOLEAN,
    "bytea": exp.DType.BINARY,
    "date": exp.DType.DATE,
    "timestamp": exp.DType.TIMESTAMPNTZ,
    "timestamptz": exp.DType.TIMESTAMPTZ,
    **dict.fromkeys(("text", "json", "jsonb", "uuid", "time", "enum", "opaque", "unknown"), exp.DType.TEXT),
}


def data_type(type_: Type) -> exp.DataType:
    """The Spark type that stores the values of a PostgreSQL type."""
    if type_.name == "numeric":
        sizes = [exp.DataTypeParam(this=number(n)) for n in (type_.digits, type_.scale)]
        return exp.DataType(this=exp.DType.DECIMAL, expressions=sizes)
    if type_.element is not None:
        return exp.DataType(this=exp.DType.ARRAY, expressions=[data_type(type_.element)], nested=True)
    if type_.fields:
        fields = [exp.ColumnDef(this=quoted_name(field), kind=data_type(kind)) for field, kind in type_.fields]
        return exp.DataType(this=exp.DType.STRUCT, expressions=fields, nested=True)
    return exp.DataType(this=_SPARK_TYPES[type_.name])


def cast(node: Operand, type_: Type) -> exp.Cast:
    """Spark's cast, for types where it means the same as PostgreSQL's."""
    return exp.Cast(this=number(node) if isinstance(node, int) else node, to=data_type(type_))


def try_cast(node: Node, type_: Type) -> exp.TryCast:
    """A cast that returns NULL where it fails."""
    return exp.TryCast(this=node, to=data_type(type_), safe=True)


def fail_unless(condition: Node, result: Node, message: str, seen: Node) -> Node:
    """`result`, or an error at run time that shows `message` and the value `seen`."""
    broken = cast(fn("CONCAT", text(f"{message}: "), seen), INTEGER)
    return cases((condition, result), (is_null(broken), NULL))
