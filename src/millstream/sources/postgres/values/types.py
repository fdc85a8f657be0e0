"""Which Spark type stands for a PostgreSQL type in a mirror, and which types are refused.

A value must be the same however it was read (COPY, a trigger's buffer, the WAL), or a retraction would miss its row.
So the mapping never needs SQL on the server: a column's `pg_type` and `spark_type` are all that the decoder needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.errors import Code, MillstreamError
from millstream.naming import RESERVED_PREFIX, postgres_name
from millstream.postgres.driver import sql
from millstream.sources.postgres.server.relations import PgColumn, Relation

UNBOUNDED_NUMERIC = "decimal(38,18)"
"""What stands for `numeric` without a precision, unless the user has declared another range for the column.

A value that does not fit exactly is an error, never rounded. A string would not be safer: Spark adds strings up as
doubles, silently.
"""

_SPARK: dict[str, DataType] = {
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "binary": BinaryType(),
}

# PostgreSQL's own types, without their modifiers, and Spark's.
PLAIN_TYPES: dict[str, str] = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "oid": "bigint",
    "boolean": "boolean",
    "real": "float",
    "double precision": "double",
    "text": "string",
    "character varying": "string",
    "character": "string",
    "bpchar": "string",
    '"char"': "string",
    "name": "string",
    "date": "date",
    "timestamp without time zone": "timestamp_ntz",
    "timestamp with time zone": "timestamp",
    "time without time zone": "string",
    "time with time zone": "string",
    "interval": "string",
    "uuid": "string",
    "bytea": "binary",
    "bit": "string",
    "bit varying": "string",
    "json": "string",
    "jsonb": "string",
    "jsonpath": "string",
    "xml": "string",
    "inet": "string",
    "cidr": "string",
    "macaddr": "string",
    "macaddr8": "string",
    "tsvector": "string",
    "tsquery": "string",
    "pg_lsn": "string",
    "point": "string",
    "line": "string",
    "lseg": "string",
    "box": "string",
    "path": "string",
    "polygon": "string",
    "circle": "string",
}

# Types of extensions, which are in the schema that the extension was created in.
EXTENSION_TYPES: dict[str, str] = {
    "citext": "string",
    "hstore": "string",
    "ltree": "string",
}

_REFUSED = {
    "money": ("its text depends on the server's lc_monetary", "change the column to numeric(p,s)"),
    "int2vector": ("it is a type of the system catalog", "use smallint[]"),
    "oidvector": ("it is a type of the system catalog", "use oid[]"),
}

_MODIFIER = re.compile(r"\(([-\d, ]+)\)")
_INTERVAL_FIELDS = re.compile(r"interval (year|month|day|hour|minute|second)( to \w+)?")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MAX_PRECISION = 38
_UNSTORABLE = set(" ,;{}()\n\t=")  # Delta needs column mapping for them, which the direct path does not write


@dataclass(frozen=True, slots=True)
class MirrorColumn:
    """A column of a mirror.

    The first three values are stored with a capture.

    Args:
        pg_type: the type behind all domains, with its modifiers, as SQL.
        spark_type: as Spark's SQL spells it.
        table: the name of its table as SQL, for messages.
    """

    name: str
    pg_type: str
    spark_type: str
    table: str = field(default="", compare=False)

    @property
    def field(self) -> StructField:
        """The column of the mirror, nullable: what PostgreSQL guarantees need not be checked again."""
        return StructField(self.name, data_type(self.spark_type), nullable=True)


def mirror_column(column: PgColumn, table: str = "", declared: str | None = None) -> MirrorColumn:
    """The mirror's column for a column of PostgreSQL.

    Args:
        table: its table's name as SQL, for messages.
        declared: the range that the user has declared, `decimal(p,s)`, if its own type does not have one.

    Raises:
        MillstreamError: UNSUPPORTED_TYPE, naming the type, with a hint.
    """
    if column.generated == "v":
        raise _unsupported(
            column, "is virtual, so capture never sees its values", "make it STORED, or compute it in the query"
        )
    if column.element is not None and column.base.endswith("[]"):
        if column.element == "box":
            raise _unsupported(column, "its elements are not separated by commas", "keep them as polygon[]")
        element = _scalar(column, column.element, column.element_kind or "b", declared)
        pg_type, spark_type = f"{column.element}[]", f"array<{element}>"
    else:
        pg_type, spark_type = column.base, _scalar(column, column.base, column.type_kind, declared)
    return MirrorColumn(
        name=column.name,
        pg_type=pg_type,
        spark_type=spark_type,
        table=table,
    )


def mirror_columns(
    relation: Relation, names: Sequence[str] | None = None, ranges: Mapping[str, str] | None = None
) -> tuple[MirrorColumn, ...]:
    """The mirror's columns for some of a relation's, by default all, in the relation's order.

    Args:
        ranges: those that users have declared for its columns.

    Raises:
        MillstreamError: UNSUPPORTED_TYPE, NAME_INVALID, DUPLICATE_COLUMN for names that differ only in case.
    """
    used = [c for c in relation.columns if names is None or c.name in names]
    seen: dict[str, str] = {}
    for column in used:
        _check_name(relation, column.name)
        twin = seen.setdefault(column.name.lower(), column.name)
        if twin != column.name:
            raise MillstreamError(
                Code.DUPLICATE_COLUMN,
                f"{relation.qualified} has the columns {twin} and {column.name}, which are the same name in Spark",
                hint="rename one of them, or use only one in the query",
            )
    table = postgres_name(relation.schema, relation.name)
    return tuple(mirror_column(column, table, (ranges or {}).get(column.name)) for column in used)


def mirror_schema(columns: Sequence[MirrorColumn]) -> StructType:
    """The schema of a mirror."""
    return StructType([column.field for column in columns])


def data_type(spark_type: str) -> DataType:
    """The Spark type of a `MirrorColumn.spark_type`, without asking a JVM.

    >>> data_type("array<decimal(10,2)>").simpleString()
    'array<decimal(10,2)>'
    """
    if spark_type.startswith("array<"):
        return ArrayType(data_type(spark_type.removeprefix("array<").removesuffix(">")))
    decimal = _DECIMAL.fullmatch(spark_type)
    if decimal is not None:
        return DecimalType(int(decimal[1]), int(decimal[2]))
    return _SPARK[spark_type]


def text_of(column: MirrorColumn, expression: sql.Composable) -> sql.Composable:
    """The SQL item whose output is the text to decode: the value itself, as COPY and a text-format result write it.

    Never a cast to text, which writes `true` for `t`, `10.0.0.1/32` for `10.0.0.1`, and char(n) without its blanks.
    """
    del column  # no type needs more, and none may: the WAL has only the plain text
    return expression


def _scalar(column: PgColumn, printed: str, kind: str, declared: str | None) -> str:
    if kind in ("e", "r", "m"):
        return "string"
    if kind == "c":
        raise _unsupported(column, "is a composite type", "keep its fields as columns, or as jsonb")
    if kind != "b":
        raise _unsupported(column, "is not a type that can be stored", "use another type")
    plain, modifier = _without_modifier(printed)
    if plain == "numeric":
        return declared if declared is not None and takes_range(printed) else _numeric(column, modifier)
    if plain in PLAIN_TYPES:
        return PLAIN_TYPES[plain]
    schema, _, last = plain.rpartition(".")
    if schema and last in EXTENSION_TYPES:
        return EXTENSION_TYPES[last]
    why, hint = _REFUSED.get(plain, ("has no counterpart in Spark", "leave the column out of the query"))
    raise _unsupported(column, why, hint)


def _numeric(column: PgColumn, modifier: tuple[int, ...]) -> str:
    if not modifier:
        return UNBOUNDED_NUMERIC
    if modifier[1] > _MAX_PRECISION:
        raise _unsupported(
            column, f"has more than {_MAX_PRECISION} decimals", "give it a smaller scale, or declare its range"
        )
    return _numeric_type(*modifier)


def _numeric_type(precision: int, scale: int) -> str:
    # numeric(3,-2) holds up to 99900, numeric(3,5) down to 0.00001: Spark wants 0 <= scale <= precision
    digits, decimals = (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)
    return f"decimal({min(digits, _MAX_PRECISION)},{decimals})"


def takes_range(pg_type: str) -> bool:
    """Whether a type is a `numeric` whose values do not all fit a DECIMAL, e.g. without a precision, or an array of it.

    >>> [takes_range(t) for t in ("numeric", "numeric(50,2)[]", "numeric(3,-40)", "numeric(38,2)", "text")]
    [True, True, True, False, False]
    """
    plain, modifier = _without_modifier(pg_type.removesuffix("[]"))
    if plain != "numeric" or not modifier:
        return plain == "numeric"
    precision, scale = modifier
    return max(precision, scale, precision - scale) > _MAX_PRECISION


def has_range(pg_type: str, spark_type: str, declared: str | None) -> bool:
    """Whether a mirror's column has the range that is declared for it, or the default if none is declared."""
    if not takes_range(pg_type):
        return True
    modifier = _without_modifier(pg_type.removesuffix("[]"))[1]
    wanted = declared or (_numeric_type(*modifier) if modifier else UNBOUNDED_NUMERIC)
    return spark_type in (wanted, f"array<{wanted}>")


def plain_type(printed: str) -> str:
    """A printed type without its modifiers; one of an extension without its schema.

    >>> plain_type("timestamp(3) with time zone"), plain_type("public.citext"), plain_type("interval day to second")
    ('timestamp with time zone', 'citext', 'interval')
    """
    plain, _ = _without_modifier(printed)
    _, _, last = plain.rpartition(".")
    return last if last in EXTENSION_TYPES else plain


def _without_modifier(printed: str) -> tuple[str, tuple[int, ...]]:
    """`timestamp(3) with time zone` is `timestamp with time zone` and (3,)."""
    found = _MODIFIER.search(printed)
    plain = _MODIFIER.sub("", printed)
    if _INTERVAL_FIELDS.fullmatch(plain):
        plain = "interval"
    return plain, tuple(int(part) for part in found[1].split(",")) if found else ()


def _unsupported(column: PgColumn, why: str, hint: str) -> MillstreamError:
    return MillstreamError(Code.UNSUPPORTED_TYPE, f"column {column.name} of type {column.type} {_verb(why)}", hint=hint)


def _verb(why: str) -> str:
    return why if why.startswith(("is ", "has ")) else f"cannot be mirrored: {why}"


def _check_name(relation: Relation, name: str) -> None:
    if _UNSTORABLE & set(name) or name.lower().startswith(RESERVED_PREFIX):
        raise MillstreamError(
            Code.NAME_INVALID,
            f"column {name!r} of {relation.qualified} cannot be stored under its name",
            hint="rename it, or leave it out of the query",
        )
