"""What a poll sees of captured tables: fingerprints by which it is told that something happened no capture has seen.

One query for all tables of a database, read in the transaction whose snapshot the poll reads the changes by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.sources.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class Look:
    """A table, as far as capture depends on it.

    Args:
        shape: of the captured columns: their places, types and enums' labels.
        storage: of the files and partitions its rows lie in. TRUNCATE and every rewrite move it, and so do a partition
            that is attached, also one that was detached in between, and a column that was renamed and renamed back.
        key: the columns of the primary key or replica identity.
    """

    oid: int
    schema: str
    name: str
    shape: str
    storage: str
    key: tuple[str, ...]


# An index on the parent alone says nothing of rows that inherit, unless they are partitions.
_LOOK = """
SELECT c.oid::bigint, n.nspname, c.relname, s.mark, b.storage, coalesce(CASE WHEN c.relkind = 'p' OR b.n = 1 THEN (
         SELECT array_agg(a.attname::text ORDER BY k.place)
         FROM (SELECT i.* FROM pg_index i
               WHERE i.indrelid = c.oid AND i.indisvalid AND (i.indisprimary OR i.indisreplident)
               ORDER BY i.indisprimary DESC LIMIT 1) i
         CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY k(num, place)
         JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num WHERE k.place <= i.indnkeyatts) END, '{}')
FROM unnest(%s::oid[], %s::jsonb[]) w(oid, names)
JOIN pg_class c ON c.oid = w.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
  SELECT coalesce(md5(string_agg(concat_ws(' ', a.attnum, quote_ident(a.attname), a.atttypid, a.atttypmod,
    a.attgenerated, a.attcollation,
    (SELECT string_agg(quote_literal(e.enumlabel), '/' ORDER BY e.enumsortorder) FROM pg_enum e
     WHERE e.enumtypid IN (t.oid, t.typelem, t.typbasetype))), ',' ORDER BY a.attnum)), '') AS mark,
    string_agg(a.xmin::text, ',' ORDER BY a.attnum) AS touched
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND w.names ? a.attname::text
) s
CROSS JOIN LATERAL (
  WITH RECURSIVE below(oid, mark) AS (
    SELECT c.oid, ''
    UNION ALL SELECT i.inhrelid, i.xmin::text || i.inhparent FROM pg_inherits i JOIN below ON below.oid = i.inhparent
  )
  SELECT md5(concat(c.relrowsecurity, c.relkind, s.touched, string_agg(
           concat_ws(' ', below.oid, below.mark, l.relfilenode), ',' ORDER BY below.oid))) AS storage, count(*) AS n
  FROM below JOIN pg_class l ON l.oid = below.oid
) b
"""


def look_at(connection: Connection, columns: Mapping[int, Sequence[str]]) -> dict[int, Look]:
    """The tables of some oids, as readers of those of their columns depend on them; dropped ones are missing."""
    if not columns:
        return {}
    rows = connection.execute(_LOOK, [list(columns), [json.dumps(list(names)) for names in columns.values()]])
    return {oid: Look(oid, schema, name, shape, storage, tuple(key)) for oid, schema, name, shape, storage, key in rows}
