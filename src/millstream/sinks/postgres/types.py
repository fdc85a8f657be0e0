"""The PostgreSQL type of a result's column, by the Arrow type its rows come in."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millstream.errors import Code, MillstreamError
from millstream.postgres.driver import sql

_PLAIN: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.date32(): "date",
}
_NAMED = {"text", "bytea", "date", "jsonb"}  # the others mean PostgreSQL's own types under any search path
_MAX_NAME = 63  # bytes; PostgreSQL truncates longer names, and two columns may then have the same
_SYSTEM_COLUMNS = {"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"}


@dataclass(frozen=True, slots=True)
class ServedColumn:
    """A column of a served table; `pg_type` as PostgreSQL prints it."""

    name: str
    arrow: pa.DataType
    pg_type: str

    @property
    def identifier(self) -> sql.Identifier:
        """Its name in a statement."""
        return sql.Identifier(self.name)

    @property
    def type_sql(self) -> sql.SQL:
        """Its type in a statement; it is one of our own constants, never a user's text."""
        return sql.SQL(self.pg_type)

    @property
    def qualified_type_sql(self) -> sql.SQL:
        """The same under a user's search path: names that are not SQL keywords are qualified.

        >>> ServedColumn("a", pa.list_(pa.string()), "text[]").qualified_type_sql
        SQL('pg_catalog.text[]')
        """
        is_name = self.pg_type.removesuffix("[]") in _NAMED
        return sql.SQL(f"pg_catalog.{self.pg_type}" if is_name else self.pg_type)


def served_columns(schema: pa.Schema) -> tuple[ServedColumn, ...]:
    """The columns of the table that holds rows of a schema.

    Raises:
        MillstreamError: UNSUPPORTED_TYPE, NAME_INVALID, naming the column.
    """
    for name in schema.names:
        if len(name.encode()) > _MAX_NAME or name in _SYSTEM_COLUMNS:
            raise MillstreamError(
                Code.NAME_INVALID,
                f"PostgreSQL does not accept a column named {name!r}",
                hint=f"rename it in the query, with at most {_MAX_NAME} bytes",
            )
    return tuple(ServedColumn(f.name, f.type, _named(f)) for f in schema)


def pg_type(arrow: pa.DataType) -> str | None:
    """The PostgreSQL type that holds all values of an Arrow type; None if there is none.

    Arrays of plain values are arrays; other nested types are `jsonb`, since PostgreSQL's arrays of arrays must be
    rectangular.

    >>> pg_type(pa.list_(pa.decimal128(10, 2)))
    'numeric(10,2)[]'
    """
    if arrow in _PLAIN:
        return _PLAIN[arrow]
    if pa.types.is_decimal(arrow):
        return f"numeric({arrow.precision},{arrow.scale})"
    if pa.types.is_timestamp(arrow):
        return "timestamp with time zone" if arrow.tz else "timestamp without time zone"
    if not pa.types.is_nested(arrow):
        return None
    if is_list(arrow) and not pa.types.is_nested(arrow.value_type):
        element = pg_type(arrow.value_type)
        return f"{element}[]" if element is not None else None
    if pa.types.is_map(arrow):
        inner = [arrow.key_type, arrow.item_type]
    elif is_list(arrow):
        inner = [arrow.value_type]
    else:
        inner = [arrow.field(i).type for i in range(arrow.num_fields)]
    return "jsonb" if all(pg_type(i) is not None for i in inner) else None


def is_list(arrow: pa.DataType) -> bool:
    """Whether a type is one of Arrow's lists; a map is not."""
    return bool(pa.types.is_list(arrow) or pa.types.is_large_list(arrow))


def _named(field: pa.Field) -> str:
    found = pg_type(field.type)
    if found is None:
        raise MillstreamError(
            Code.UNSUPPORTED_TYPE,
            f"the column {field.name} is a {field.type}, for which there is no PostgreSQL type",
            hint="cast it in the query, e.g. to a string",
        )
    return found
