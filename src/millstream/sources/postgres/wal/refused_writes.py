"""Published tables whose UPDATE and DELETE PostgreSQL refuses: nothing identifies their old rows for subscribers.

A table's owner causes this after the table was published, by REPLICA IDENTITY NOTHING, or by dropping the key that
identified rows. The application's own statements then fail as long as the table is published.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql

# PostgreSQL's own rule (CheckCmdReplicaIdentity), applied to the catalogs alone: it waits for no lock. A
# partitioned table is refused if one of its partitions is.
_REFUSED = """
WITH RECURSIVE ours AS (
  SELECT p.oid, p.pubname, p.puballtables, to_jsonb(p) ->> 'pubgencols' = 'n' AS omits_generated
  FROM pg_publication p WHERE p.pubname = ANY(%(names)s) AND (p.pubupdate OR p.pubdelete)
),
published(publication, name, omits_generated, top, is_member) AS (
  SELECT p.oid, p.pubname, p.omits_generated, r.prrelid, true FROM ours p JOIN pg_publication_rel r ON r.prpubid = p.oid
  UNION ALL
  SELECT p.oid, p.pubname, p.omits_generated, c.oid, false FROM ours p CROSS JOIN pg_class c
  WHERE c.oid = ANY(%(oids)s) AND (p.puballtables{in_schema})
),
below(publication, top, oid) AS (
  SELECT publication, top, top FROM published
  UNION
  SELECT b.publication, b.top, i.inhrelid FROM below b JOIN pg_class c ON c.oid = b.oid AND c.relkind = 'p'
  JOIN pg_inherits i ON i.inhparent = b.oid
)
SELECT DISTINCT ON (p.name, p.top) p.name, p.top::bigint, n.nspname, t.relname, p.is_member
FROM published p JOIN pg_class t ON t.oid = p.top JOIN pg_namespace n ON n.oid = t.relnamespace
JOIN below b ON b.publication = p.publication AND b.top = p.top
JOIN pg_class c ON c.oid = b.oid AND c.relkind = 'r'
WHERE CASE WHEN c.relreplident = 'f' THEN EXISTS (
    SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND (a.attgenerated = 'v' OR a.attgenerated = 's' AND p.omits_generated))
  ELSE NOT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
      AND i.indpred IS NULL
      AND (c.relreplident = 'd' AND i.indisprimary OR c.relreplident = 'i' AND i.indisreplident)) END
ORDER BY p.name, p.top, p.is_member DESC
"""
_IN_SCHEMA = """ OR EXISTS (
    SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"""
_SCHEMAS_SINCE = 150_000


@dataclass(frozen=True, slots=True)
class RefusedWrites:
    """A published table that the application cannot update.

    Args:
        is_member: whether the publication names the table itself, not its schema or all tables.
    """

    publication: str
    oid: int
    schema: str
    table: str
    is_member: bool

    @property
    def name(self) -> str:
        """Its name for messages."""
        return f"{self.schema}.{self.table}"

    def remedy(self, connection: Connection) -> str:
        """The statement with which an owner can fix it."""
        table = sql.Identifier(self.schema, self.table)
        if self.is_member:
            statement = sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(sql.Identifier(self.publication), table)
        else:
            statement = sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table)
        return statement.as_string(connection)


def refused_writes(connection: Connection, names: Collection[str], oids: Collection[int]) -> list[RefusedWrites]:
    """The tables of some publications whose UPDATE and DELETE fail.

    Args:
        names: of the publications; one that does not exist publishes nothing.
        oids: tables to check where a publication does not name its tables.
    """
    in_schema = _IN_SCHEMA if connection.info.server_version >= _SCHEMAS_SINCE else ""
    query = sql.SQL(_REFUSED).format(in_schema=sql.SQL(in_schema))
    rows = connection.execute(query, {"names": list(names), "oids": list(oids)}).fetchall()
    return [RefusedWrites(*row) for row in rows]
