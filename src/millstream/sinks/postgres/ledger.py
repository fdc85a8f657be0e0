"""The bookkeeping in the served database: what is served there, up to which version; written with the rows.

Schema `millstream` (a setting) holds the table `serving`, which only its owner reads, and the view `served_tables`, in
which everybody finds those tables that he may read, with how stale they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql
from psycopg.types.json import Jsonb

from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.keys import KEYLESS, Key
from millstream.sinks.postgres.target import Connection, Mark, Target

_TABLE = """
CREATE TABLE IF NOT EXISTS {serving} (
  stream_table_id text PRIMARY KEY,
  stream_table text NOT NULL,
  lake_id text NOT NULL,
  relation oid NOT NULL,
  filenode oid NOT NULL,
  stage_id text,
  version bigint,
  commit_id text,
  refresh_id bigint,
  data_timestamp timestamptz,
  served_at timestamptz,
  mode text,
  reason text,
  key jsonb NOT NULL,
  types jsonb NOT NULL,
  by_place boolean NOT NULL DEFAULT false,
  told jsonb NOT NULL DEFAULT '[]'
) WITH (fillfactor = 50)
"""
_VIEW = """
CREATE OR REPLACE VIEW {view} WITH (security_barrier) AS
SELECT relation::regclass AS served_table, stream_table, refresh_id, data_timestamp,
       extract(epoch FROM clock_timestamp() - data_timestamp)::double precision AS staleness_seconds,
       served_at, mode, reason
FROM {serving} WHERE has_table_privilege(relation, 'SELECT')
"""
# Whether the table is there, and whether it and its schema are ours: what others made could run with our rights.
_STATE = """
SELECT c.oid IS NOT NULL, pg_get_userbyid(n.nspowner) = current_user
       AND (c.oid IS NULL OR (c.relkind = 'r' AND pg_get_userbyid(c.relowner) = current_user))
FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'serving' WHERE n.nspname = %s
"""
_SERIAL = 7_205_759_403_792_811  # the advisory lock under which the schema is made


@dataclass(frozen=True, slots=True)
class Entry:
    """What the bookkeeping knows of a served table.

    Args:
        relation, filenode: the table and the file of its rows when they were written last.
        key: the key that is declared for it.
        types: the types that its columns were given.
        by_place: whether its rows are matched by their places.
        told: what its user was told about, once.
    """

    relation: int
    filenode: int
    stage_id: str | None
    version: int | None
    commit_id: str | None
    key: Key
    types: dict[str, str]
    by_place: bool
    told: frozenset[str]


class Ledger:
    """The bookkeeping in one schema of a database."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._serving = sql.Identifier(schema, "serving")
        self._view = sql.Identifier(schema, "served_tables")

    def prepare(self, connection: Connection) -> None:
        """Make the schema and what is in it, if it is not there.

        Raises:
            MillstreamError: NAME_TAKEN if somebody else has it, whose triggers would run with our rights.
        """
        _, is_ours = self._state(connection)
        if not is_ours:
            raise MillstreamError(
                Code.NAME_TAKEN,
                f"the schema {self.schema} of the database, or the table serving in it, belongs to another role",
                hint="set serving_schema to another name",
            )
        if connection.execute("SELECT to_regclass(%s)", [self._view.as_string(connection)]).fetchone() != (None,):
            return
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SERIAL])
        names = {"serving": self._serving, "view": self._view, "schema": sql.Identifier(self.schema)}
        for statement in (
            "CREATE SCHEMA IF NOT EXISTS {schema}",
            _TABLE,
            _VIEW,
            "REVOKE ALL ON {serving} FROM PUBLIC",
            "GRANT USAGE ON SCHEMA {schema} TO PUBLIC",
            "GRANT SELECT ON {view} TO PUBLIC",
        ):
            connection.execute(sql.SQL(statement).format(**names))

    def places(self, target: Target) -> sql.Identifier:
        """The table that holds the places of a served table's rows."""
        return sql.Identifier(self.schema, f"rows_{target.table_id.replace('-', '')[:16]}")

    def find(self, connection: Connection, target: Target, *, lock: bool = False) -> Entry | None:
        """What is known of a served table, by our own bookkeeping; with `lock` until the end of the transaction."""
        if self._state(connection) != (True, True):
            return None
        query = sql.SQL(
            "SELECT relation::bigint, filenode::bigint, stage_id, version, commit_id, key, types, by_place, told "
            "FROM {} WHERE stream_table_id = %s" + (" FOR UPDATE" if lock else "")
        )
        row = connection.execute(query.format(self._serving), [target.table_id]).fetchone()
        if row is None:
            return None
        relation, filenode, stage_id, version, commit_id, key, types, by_place, told = row
        return Entry(relation, filenode, stage_id, version, commit_id, Key.parse(key), types, by_place, frozenset(told))

    def _state(self, connection: Connection) -> tuple[bool, bool]:
        """Whether there is a bookkeeping, and whether what is there is ours."""
        is_there, is_ours = connection.execute(_STATE, [self.schema]).fetchone() or (False, True)
        return is_there, is_ours

    def add(
        self,
        connection: Connection,
        target: Target,
        lake_id: str,
        stream_table: str,
        relation: int,
        *,
        key: Key,
        types: dict[str, str],
    ) -> None:
        """Begin to account for a table with a key and types, or for another one in its stead."""
        connection.execute(
            sql.SQL(
                "INSERT INTO {} AS known (stream_table_id, stream_table, lake_id, relation, filenode, key, types) "
                "VALUES (%s, %s, %s, %s::oid, 0, %s, %s) ON CONFLICT (stream_table_id) DO UPDATE SET relation = "
                "excluded.relation, filenode = 0, key = excluded.key, types = excluded.types, stage_id = NULL, "
                "version = NULL, by_place = false"
            ).format(self._serving),
            [target.table_id, stream_table, lake_id, relation, Jsonb(key.stored), Jsonb(types)],
        )

    def forget_key(self, connection: Connection, target: Target) -> None:
        """Record that a table has lost its key."""
        statement = sql.SQL("UPDATE {} SET key = %s WHERE stream_table_id = %s").format(self._serving)
        connection.execute(statement, [Jsonb(KEYLESS.stored), target.table_id])

    def move(
        self,
        connection: Connection,
        target: Target,
        mark: Mark,
        mode: str,
        reason: str,
        *,
        by_place: bool,
        told: frozenset[str],
    ) -> None:
        """Record that a table is served up to a mark."""
        connection.execute(
            sql.SQL(
                "UPDATE {} SET stream_table = %s, lake_id = %s, stage_id = %s, version = %s, commit_id = %s, "
                "refresh_id = %s, data_timestamp = %s, served_at = clock_timestamp(), mode = %s, reason = %s, "
                "key = %s, types = %s, by_place = %s, told = %s, "
                "filenode = pg_relation_filenode(relation::regclass)::oid WHERE stream_table_id = %s"
            ).format(self._serving),
            [
                mark.stream_table,
                mark.lake_id,
                mark.stage_id,
                mark.version,
                mark.commit_id,
                mark.refresh_id,
                mark.data_timestamp,
                mode,
                reason,
                Jsonb(Key.of(target).stored),
                Jsonb(target.types),
                by_place,
                Jsonb(sorted(told)),
                target.table_id,
            ],
        )

    def touch(self, connection: Connection, target: Target, mark: Mark, known: Entry) -> bool:
        """Record that a table is up to date as it is; false if somebody else has served it since it was looked at."""
        done = connection.execute(
            sql.SQL(
                "UPDATE {} SET stream_table = %s, version = %s, commit_id = %s, refresh_id = %s, "
                "data_timestamp = %s WHERE stream_table_id = %s AND stage_id = %s AND version = %s"
            ).format(self._serving),
            [
                mark.stream_table,
                mark.version,
                mark.commit_id,
                mark.refresh_id,
                mark.data_timestamp,
                target.table_id,
                known.stage_id,
                known.version,
            ],
        )
        return done.rowcount == 1

    def never_served(self, connection: Connection, lake_id: str, relation: int) -> list[str]:
        """The stream tables of a lake for which a table was made, and never filled."""
        query = sql.SQL(
            "SELECT stream_table_id FROM {} WHERE lake_id = %s AND relation = %s::oid AND version IS NULL FOR UPDATE"
        )
        return [i for (i,) in connection.execute(query.format(self._serving), [lake_id, relation])]

    def remove(self, connection: Connection, target: Target, *, keep_schema: bool = False) -> None:
        """Forget a served table, and unless `keep_schema` with the last one the schema."""
        if self.find(connection, target) is None:
            return
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SERIAL])
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.places(target)))
        connection.execute(
            sql.SQL("DELETE FROM {} WHERE stream_table_id = %s").format(self._serving), [target.table_id]
        )
        is_last = connection.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(self._serving)).fetchone() is None
        if is_last and not keep_schema:
            connection.execute(sql.SQL("DROP VIEW {}").format(self._view))
            connection.execute(sql.SQL("DROP TABLE {}").format(self._serving))
            if not self._has_others(connection):
                connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(self.schema)))

    def _has_others(self, connection: Connection) -> bool:
        """Whether somebody has put something else into the schema."""
        query = (
            "SELECT 1 FROM pg_depend d JOIN pg_namespace n ON d.refobjid = n.oid "
            "WHERE n.nspname = %s AND d.refclassid = 'pg_namespace'::regclass LIMIT 1"
        )
        return connection.execute(query, [self.schema]).fetchone() is not None
