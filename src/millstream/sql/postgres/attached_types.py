"""The column types of tables in attached databases: PostgreSQL's own, where Spark stores only a string."""

from __future__ import annotations

from millstream.sql.postgres import types as t
from millstream.sql.postgres.types import Type
from millstream.sql.sources import NativeType

_AS_THEY_ARE = {
    "text": t.TEXT,
    "character varying": t.TEXT,
    "character": t.TEXT,
    "bpchar": t.TEXT,
    '"char"': t.TEXT,
    "name": t.TEXT,
    "json": t.JSON,
    "jsonb": t.JSONB,
    "uuid": t.UUID,
    "time without time zone": t.TIME,
    "interval": Type("opaque", label="interval column"),
}


def column_type(spark: str, native: NativeType | None) -> Type:
    """The type of a column, from Spark's type and, in an attached database, PostgreSQL's.

    >>> str(column_type("string", NativeType("jsonb"))), str(column_type("array<string>", NativeType("uuid")))
    ('jsonb', 'uuid[]')
    """
    if native is not None and spark == "string":
        return _text_of(native)
    if native is not None and spark == "array<string>":
        return t.array_of(_text_of(native))
    type_ = t.from_spark(spark) or Type(spark)
    return t.without_scale(type_) if native is not None and native.has_free_scale else type_


def _text_of(native: NativeType) -> Type:
    if native.is_enum:
        return Type("enum", label=native.name)
    return _AS_THEY_ARE.get(native.name) or Type("opaque", label=native.name)
