"""How a column is kept in a buffer: as its value where the type is PostgreSQL's own, else as the value's text.

A buffer with a user's type would block DROP TYPE, and lose its column to DROP TYPE CASCADE. A text must be what our own
sessions would read, so the settings that it depends on are set for the function that writes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.relations import PgColumn, Relation
from millstream.sources.postgres.triggers.buffer_sql import BufferColumn
from millstream.sources.postgres.triggers.trigger_catalog import BufferInfo
from millstream.sources.postgres.values.types import EXTENSION_TYPES

_FIRST_USER_OID = 16_384
"""A type with a lower oid is the server's own, and cannot be dropped."""

_GEOMETRIC = ("point", "line", "lseg", "box", "path", "polygon", "circle")
_SETTINGS: dict[str, tuple[str, ...]] = {
    "date": ("datestyle",),
    "timestamp": ("datestyle",),
    "timestamptz": ("datestyle", "timezone"),
    "interval": ("intervalstyle",),
    "bytea": ("bytea_output",),
    "money": ("lc_monetary",),
    **dict.fromkeys(("float4", "float8", *_GEOMETRIC), ("extra_float_digits",)),
}
"""What the texts of PostgreSQL's own types depend on; those of the others depend on nothing."""
_ALL_SETTINGS = tuple(sorted({setting for settings in _SETTINGS.values() for setting in settings}))

_OWN_TYPES = """
SELECT oid::bigint, typname FROM pg_type
WHERE oid = ANY(%s) AND oid < %s AND typnamespace = 'pg_catalog'::regnamespace
"""

# All that a type is made of: behind domains, in arrays, ranges, multiranges and composite types.
_PARTS = """
WITH RECURSIVE part AS (
  SELECT oid AS whole, oid FROM pg_type WHERE oid = ANY(%s)
  UNION
  SELECT part.whole, inner_type.oid FROM part JOIN pg_type t ON t.oid = part.oid CROSS JOIN LATERAL (
    SELECT t.typbasetype WHERE t.typtype = 'd'
    UNION ALL SELECT t.typelem WHERE t.typcategory = 'A'
    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    UNION ALL SELECT a.atttypid FROM pg_attribute a
      WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
  ) inner_type(oid)
)
SELECT part.whole::bigint, t.typname, t.oid < %s AS is_own FROM part JOIN pg_type t ON t.oid = part.oid
WHERE t.typtype = 'b' AND t.typcategory <> 'A'
"""

_BUFFERED = """
SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s::regclass AND a.attname = ANY(%s)
"""


def kept_columns(connection: Connection, columns: Sequence[PgColumn]) -> list[BufferColumn]:
    """How some columns of a table are kept."""
    oids = [c.base_oid for c in columns]
    own: dict[int, str] = dict(connection.execute(_OWN_TYPES, [oids, _FIRST_USER_OID]).fetchall())
    settings: dict[int, set[str]] = {}
    for whole, part, is_own in connection.execute(_PARTS, [[o for o in oids if o not in own], _FIRST_USER_OID]):
        if is_own:
            needed = _SETTINGS.get(part, ())
        else:
            needed = () if part in EXTENSION_TYPES else _ALL_SETTINGS
        settings.setdefault(whole, set()).update(needed)
    return [
        BufferColumn(c.name, own[c.base_oid])
        if c.base_oid in own
        else BufferColumn(c.name, "text", by_output=True, settings=tuple(sorted(settings.get(c.base_oid, ()))))
        for c in columns
    ]


def columns_in(connection: Connection, buffer: BufferInfo, relation: Relation) -> list[BufferColumn]:
    """How a buffer keeps its columns; those whose type in the table has changed, or that are gone, stay as they are.

    The next tick detects the change.
    """
    found = connection.execute(_BUFFERED, [buffer.table.as_string(connection), list(buffer.columns)])
    types: dict[str, str] = dict(found.fetchall())
    wanted = {c.name: c for c in kept_columns(connection, [c for c in relation.columns if c.name in types])}
    return [
        wanted[name] if name in wanted and wanted[name].type == types[name] else BufferColumn(name, types[name])
        for name in buffer.columns
    ]


def has_user_type(column: PgColumn) -> bool:
    """Whether a column has a user's type, other than an enum.

    An earlier type of the same name, or an array of the type behind a domain, may have been kept in another way.
    """
    return column.base_oid >= _FIRST_USER_OID and "e" not in (column.type_kind, column.element_kind)
