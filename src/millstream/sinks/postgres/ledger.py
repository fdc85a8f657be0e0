"""The ledger in the served database: which tables are served there, up to which version; written with the rows.

Schema `millstream` (a setting) holds the table `serving`, which only its owner may read, and the view `served_tables`,
which shows each role the tables that it may read and how stale they are; where the role may create one, an event
trigger warns who creates a trigger on a served table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millstream.errors import Code, MillstreamError
from millstream.postgres.closed_objects import Grant, close, close_only
from millstream.postgres.connection import Connection
from millstream.postgres.ddl_turns import TURNS, CollidedError, colliding, drop_turns, prepare_turns, take_turn
from millstream.postgres.driver import errors, json, sql
from millstream.sinks.postgres.keys import KEYLESS, Key
from millstream.sinks.postgres.locks import in_short_waits
from millstream.sinks.postgres.target import Mark, Target
from millstream.sinks.postgres.trigger_warning import FUNCTION, drop_warning, has_warning, install_warning
from millstream.sinks.postgres.triggers import CAPTURE_MARK

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
# the grants that other roles get
_MEANT = ("GRANT USAGE ON SCHEMA {schema} TO PUBLIC", "GRANT SELECT ON {view} TO PUBLIC")
# Whether the table exists, and whether it and its schema are ours: other roles' objects could run code with our rights.
_STATE = """
SELECT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'serving'),
       pg_get_userbyid(n.nspowner) = current_user AND NOT EXISTS (
         SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND (c.relname = ANY(%s) OR c.relname ~ %s)
         AND (c.relkind <> 'r' OR pg_get_userbyid(c.relowner) <> current_user))
FROM pg_namespace n WHERE n.nspname = %s
"""
_SERVING, _VIEW_NAME = "serving", "served_tables"
_CTID_TABLES = re.compile(r"^rows_[0-9a-f]{16}$")


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger records about a served table.

    Args:
        relation, filenode: the OIDs of the table and of its file when its rows were last written.
        key: the key that is declared for it.
        types: the types that its columns were given.
        by_ctid: whether its rows are matched by their ctids (`by_place` in the table).
        notified: keys of the warnings that its user has seen (`told` in the table).
    """

    relation: int
    filenode: int
    stage_id: str | None
    version: int | None
    commit_id: str | None
    key: Key
    types: dict[str, str]
    by_ctid: bool
    notified: frozenset[str]


class Ledger:
    """The ledger in one schema of a database."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._serving = sql.Identifier(schema, _SERVING)
        self._view = sql.Identifier(schema, _VIEW_NAME)

    def prepare(self, connection: Connection) -> None:
        """Create the schema and its objects where missing, and close all of them except the view to other roles.

        Raises:
            MillstreamError: NAME_TAKEN if another role owns one, whose triggers would run with our rights;
                LOCK_TIMEOUT.
        """
        self._require_ours(connection)
        with self._coded():
            in_short_waits(connection, lambda: self._make(connection))

    def _require_ours(self, connection: Connection) -> None:
        _, is_ours = self._state(connection)
        if not is_ours:
            raise MillstreamError(
                Code.NAME_TAKEN,
                f"the schema {self.schema} of the database, or a table of millstream's in it, belongs to another role",
                hint="set serving_schema to another name",
            )

    def _make(self, connection: Connection) -> None:
        has = connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [self.schema]).fetchone() is not None
        names = {"serving": self._serving, "view": self._view, "schema": sql.Identifier(self.schema)}
        if not has:
            with colliding():
                connection.execute(sql.SQL("CREATE SCHEMA {schema}").format(**names))
        if not self._has_all(connection):
            prepare_turns(connection, self.schema)
            take_turn(connection, self.schema)
            self._require_ours(connection)
            for statement in (_TABLE, _VIEW, *_MEANT):
                connection.execute(sql.SQL(statement).format(**names))
        if not has_warning(connection, self.schema):
            install_warning(connection, self.schema, self._serving, CAPTURE_MARK)
        close(connection, self.schema, _is_meant)

    def _has_all(self, connection: Connection) -> bool:
        row = connection.execute(
            "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = ANY(%s)",
            [self.schema, [_SERVING, _VIEW_NAME, TURNS]],
        ).fetchone()
        return row == (3,)

    def close_ctid_table(self, connection: Connection, target: Target) -> None:
        """Close a new ctid table to other roles."""
        close_only(connection, self.schema, _ctid_table(target))

    @contextmanager
    def _coded(self) -> Iterator[None]:
        try:
            yield
        except (errors.LockNotAvailable, errors.DeadlockDetected, CollidedError) as e:
            raise MillstreamError(
                Code.LOCK_TIMEOUT,
                f"another session is creating or dropping the schema {self.schema}",
                hint="look for long transactions in pg_stat_activity, and try again",
            ) from e

    def ctid_table(self, target: Target) -> sql.Identifier:
        """The table that holds the ctids of a served table's rows."""
        return sql.Identifier(self.schema, _ctid_table(target))

    def find(self, connection: Connection, target: Target, *, lock: bool = False) -> Entry | None:
        """The entry of a served table; with `lock` it is locked until the end of the transaction."""
        if self._state(connection) != (True, True):
            return None
        query = sql.SQL(
            "SELECT relation::bigint, filenode::bigint, stage_id, version, commit_id, key, types, by_place, told "
            "FROM {} WHERE stream_table_id = %s" + (" FOR UPDATE" if lock else "")
        )
        row = connection.execute(query.format(self._serving), [target.table_id]).fetchone()
        if row is None:
            return None
        relation, filenode, stage_id, version, commit_id, key, types, by_ctid, notified = row
        return Entry(
            relation, filenode, stage_id, version, commit_id, Key.parse(key), types, by_ctid, frozenset(notified)
        )

    def _state(self, connection: Connection) -> tuple[bool, bool]:
        """Whether there is a ledger, and whether the existing objects are ours."""
        parameters = [[_SERVING, TURNS], _CTID_TABLES.pattern, self.schema]
        is_there, is_ours = connection.execute(_STATE, parameters).fetchone() or (False, True)
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
        """Add a table with its key and types, or replace the table that the entry describes."""
        connection.execute(
            sql.SQL(
                "INSERT INTO {} AS known (stream_table_id, stream_table, lake_id, relation, filenode, key, types) "
                "VALUES (%s, %s, %s, %s::oid, 0, %s, %s) ON CONFLICT (stream_table_id) DO UPDATE SET relation = "
                "excluded.relation, filenode = 0, key = excluded.key, types = excluded.types, stage_id = NULL, "
                "version = NULL, by_place = false"
            ).format(self._serving),
            [target.table_id, stream_table, lake_id, relation, json.Jsonb(key.stored), json.Jsonb(types)],
        )

    def forget_key(self, connection: Connection, target: Target) -> None:
        """Record that a table has lost its key."""
        statement = sql.SQL("UPDATE {} SET key = %s WHERE stream_table_id = %s").format(self._serving)
        connection.execute(statement, [json.Jsonb(KEYLESS.stored), target.table_id])

    def record_served(
        self,
        connection: Connection,
        target: Target,
        mark: Mark,
        mode: str,
        reason: str,
        *,
        by_ctid: bool,
        notified: frozenset[str],
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
                json.Jsonb(Key.of(target).stored),
                json.Jsonb(target.types),
                by_ctid,
                json.Jsonb(sorted(notified)),
                target.table_id,
            ],
        )

    def record_unchanged(self, connection: Connection, target: Target, mark: Mark, known: Entry) -> bool:
        """Record that an unchanged table is up to date; false if another session served it after `known` was read."""
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
        """The ids of a lake's stream tables for which this table was created but never filled."""
        query = sql.SQL(
            "SELECT stream_table_id FROM {} WHERE lake_id = %s AND relation = %s::oid AND version IS NULL FOR UPDATE"
        )
        return [i for (i,) in connection.execute(query.format(self._serving), [lake_id, relation])]

    def remove(self, connection: Connection, target: Target, *, keep_schema: bool = False) -> None:
        """Remove a served table, and with the last one the schema, unless `keep_schema`."""
        if self.find(connection, target) is None:
            return

        def turn() -> None:
            prepare_turns(connection, self.schema)
            take_turn(connection, self.schema)
            close(connection, self.schema, _is_meant)

        with self._coded():
            in_short_waits(connection, turn)
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.ctid_table(target)))
        connection.execute(
            sql.SQL("DELETE FROM {} WHERE stream_table_id = %s").format(self._serving), [target.table_id]
        )
        is_last = connection.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(self._serving)).fetchone() is None
        if is_last and not keep_schema:
            drop_warning(connection, self.schema)
            connection.execute(sql.SQL("DROP VIEW {}").format(self._view))
            connection.execute(sql.SQL("DROP TABLE {}").format(self._serving))
            drop_turns(connection, self.schema)
            if not self._has_others(connection):
                connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(self.schema)))

    def _has_others(self, connection: Connection) -> bool:
        """Whether the schema holds objects that are not ours."""
        query = (
            "SELECT 1 FROM pg_depend d JOIN pg_namespace n ON d.refobjid = n.oid "
            "WHERE n.nspname = %s AND d.refclassid = 'pg_namespace'::regclass LIMIT 1"
        )
        return connection.execute(query, [self.schema]).fetchone() is not None


def _ctid_table(target: Target) -> str:
    return f"rows_{target.table_id.replace('-', '')[:16]}"


def _is_meant(grant: Grant) -> bool:
    """Whether a grant stays; grants on objects in the schema that are not the ledger's, e.g. a served table, do."""
    if grant.kind == "SCHEMA":
        return grant.privilege == "USAGE"
    if grant.kind == "TABLE" and grant.name == _VIEW_NAME:
        return grant.privilege == "SELECT"
    if grant.kind == "ROUTINE":
        return grant.name != f"{FUNCTION}()"
    is_ours = grant.name in (_SERVING, TURNS) or _CTID_TABLES.fullmatch(grant.name) is not None
    return not (grant.kind == "TABLE" and is_ours)
