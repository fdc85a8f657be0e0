"""A lake of one table that needs no Spark, for translations from PostgreSQL's dialect."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millstream.ops import Column
from millstream.sql.postgres import translate
from millstream.sql.sources import NativeType, Source

COLUMNS = {
    "id": "int",
    "i": "int",
    "k": "int",
    "b": "bigint",
    "n": "decimal(10,2)",
    "u": "decimal(38,18)",
    "f": "double",
    "s": "string",
    "ok": "boolean",
    "d": "date",
    "ts": "timestamp_ntz",
    "tu": "timestamp_ntz",
    "tz": "timestamp",
    "ia": "array<int>",
    "j": "string",
    "m": "map<string,int>",
}


ATTACHED = {
    "id": NativeType("integer"),
    "j": NativeType("jsonb"),
    "u": NativeType("uuid"),
    "at": NativeType("time without time zone"),
    "mood": NativeType("mood", is_enum=True),
    "moods": NativeType("mood", is_enum=True),
    "h": NativeType("hstore"),
    "span": NativeType("interval"),
    "name": NativeType("character varying"),
}
SPARK_TYPES = {"id": "int", "moods": "array<string>"}


class OneTable:
    """A lake with one table, v, and an attached database with another, shop.public.w."""

    def find(self, parts: Sequence[str]) -> Source | None:
        if tuple(parts) == ("shop", "public", "w"):
            columns = tuple(Column(n, SPARK_TYPES.get(n, "string")) for n in ATTACHED)
            return Source("shop.public.w", columns, native_types=tuple(ATTACHED.items()))
        return Source("v", tuple(Column(n, t) for n, t in COLUMNS.items())) if tuple(parts) == ("v",) else None

    def describe(self, query: exp.Query) -> tuple[Column, ...]:
        raise AssertionError("nothing here needs Spark")

    def is_scalar(self, query: exp.Query, expressions: Sequence[exp.Expression]) -> bool:
        raise AssertionError("nothing here needs Spark")


def translated(text: str) -> str:
    return translate(text, OneTable(), OneTable()).spark_text
