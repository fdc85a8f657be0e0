"""Fingerprints of captured tables, by which a tick detects what capture did not see.

One query reads those of all tables of a database, in the transaction whose snapshot the tick reads the changes by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class TableFingerprint:
    """What capture depends on in a table.

    Args:
        shape: a hash of the captured columns: their positions, types and enum labels, also inside other types.
        storage: a hash of the files and partitions that hold its rows. TRUNCATE and every rewrite change it, and so do
            attaching a partition, even one that was detached in between, and renaming a column and back.
        key: the columns of the primary key or replica identity.
        not_null: the captured columns that are never NULL.
    """

    oid: int
    schema: str
    name: str
    shape: str
    storage: str
    key: tuple[str, ...]
    not_null: tuple[str, ...]


# A table's key does not cover the rows of tables that inherit from it, unlike the rows of partitions. Nor does
# NOT NULL: a foreign table does not enforce it, and rows older than a NOT VALID constraint may violate it.
# What is found by a table's oid is looked up for each table (LATERAL with OFFSET 0, which the planner does not merge
# into the rest): a generic plan for any number of tables would otherwise read all of pg_attribute several times.
_READ_FINGERPRINTS = """
WITH RECURSIVE wanted AS MATERIALIZED (
  SELECT w.oid, w.names, c.relname, c.relnamespace, c.relkind, c.relrowsecurity, c.relfilenode
  FROM unnest(%s::oid[], %s::jsonb[]) w(oid, names) JOIN pg_class c ON c.oid = w.oid
),
below(top, oid, mark, relfilenode) AS (
  SELECT oid, oid, '', relfilenode FROM wanted
  UNION ALL
  SELECT below.top, i.inhrelid, i.xmin::text || i.inhparent, c.relfilenode
  FROM below JOIN pg_inherits i ON i.inhparent = below.oid JOIN pg_class c ON c.oid = i.inhrelid
  WHERE NOT i.inhdetachpending
),
stored AS (
  SELECT top, count(*) AS tables, string_agg(concat_ws(' ', oid, mark, relfilenode), ',' ORDER BY oid) AS mark
  FROM below GROUP BY top
),
attributes AS MATERIALIZED (
  SELECT a.xmin::text AS touched, w.oid AS attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated,
         a.attcollation, a.attnotnull
  FROM wanted w CROSS JOIN LATERAL (
    SELECT a.xmin, a.* FROM pg_attribute a WHERE a.attrelid = w.oid AND a.attnum > 0 AND NOT a.attisdropped OFFSET 0) a
  WHERE w.names ? a.attname::text
),
inside(top, oid) AS (  -- the types inside arrays, domains and ranges; the server's own types hold no enum
  SELECT DISTINCT atttypid, atttypid FROM attributes WHERE atttypid >= 16384
  UNION
  SELECT i.top, n.oid FROM inside i JOIN pg_type t ON t.oid = i.oid
  LEFT JOIN pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid)
  CROSS JOIN LATERAL (VALUES (t.typelem), (t.typbasetype), (r.rngsubtype)) n(oid) WHERE n.oid <> 0
),
labels AS (
  SELECT i.top, string_agg(quote_literal(e.enumlabel), '/' ORDER BY e.enumtypid, e.enumsortorder) AS mark
  FROM inside i JOIN pg_enum e ON e.enumtypid = i.oid GROUP BY 1
),
shaped AS (
  SELECT a.attrelid, string_agg(a.touched, ',' ORDER BY a.attnum) AS touched,
         md5(string_agg(concat_ws(' ', a.attnum, quote_ident(a.attname), a.atttypid, a.atttypmod, a.attgenerated,
                                  a.attcollation, l.mark), ',' ORDER BY a.attnum)) AS mark,
         array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attnotnull AND NOT EXISTS (
           SELECT FROM pg_constraint n WHERE n.conrelid = a.attrelid AND n.contype = 'n' AND NOT n.convalidated
             AND n.conkey[1] = a.attnum)) AS not_null
  FROM attributes a LEFT JOIN labels l ON l.top = a.atttypid GROUP BY 1
)
SELECT w.oid::bigint, n.nspname, w.relname, coalesce(s.mark, ''),
       md5(concat(w.relrowsecurity, w.relkind, s.touched, b.mark)),
       CASE WHEN w.relkind = 'p' OR b.tables = 1 THEN ARRAY(
         SELECT a.attname::text FROM unnest(k.places) WITH ORDINALITY p(num, place)
         JOIN pg_attribute a ON a.attrelid = w.oid AND a.attnum = p.num WHERE p.place <= k.n ORDER BY p.place)
       ELSE '{}' END,
       CASE WHEN w.relkind = 'p' OR w.relkind = 'r' AND b.tables = 1 THEN coalesce(s.not_null, '{}') ELSE '{}' END
FROM wanted w JOIN pg_namespace n ON n.oid = w.relnamespace
JOIN stored b ON b.top = w.oid LEFT JOIN shaped s ON s.attrelid = w.oid LEFT JOIN LATERAL (
  SELECT i.indkey::smallint[] AS places, i.indnkeyatts AS n FROM pg_index i
  WHERE i.indrelid = w.oid AND i.indisvalid AND (i.indisprimary OR i.indisreplident)
  ORDER BY i.indisprimary DESC LIMIT 1) k ON true
"""


def read_fingerprints(connection: Connection, columns: Mapping[int, Sequence[str]]) -> dict[int, TableFingerprint]:
    """The fingerprints of tables with regard to some of their columns, by oid; dropped tables are missing."""
    if not columns:
        return {}
    rows = connection.execute(
        _READ_FINGERPRINTS, [list(columns), [json.dumps(list(names)) for names in columns.values()]]
    )
    return {
        oid: TableFingerprint(oid, schema, name, shape, storage, tuple(key), tuple(not_null))
        for oid, schema, name, shape, storage, key, not_null in rows
    }
