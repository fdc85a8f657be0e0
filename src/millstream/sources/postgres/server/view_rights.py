"""Decides, from the catalog alone, whether PostgreSQL would let a role read through a view what its text names.

millstream translates a view's text and computes it from its tables; it does not ask PostgreSQL for the view's rows.
PostgreSQL's rule is: a role that names a view needs SELECT on it; what the view's text names is read with the rights of
the view's owner or, if the view has `security_invoker`, with those of the reading role. So each of several nested views
is judged by itself: by the relations that its own text names, and the role they are read as.

Nothing here plans or runs a user's query: that could call functions of other roles with our rights. The columns that a
text uses are those that its rewrite rule depends on. PostgreSQL does not check what its planner removes from a query,
such as a subquery whose result is not used; this module does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import LiteralString

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql

# One statement, so that a text and the relations it names belong to one snapshot; privileges are the current ones.
# A reference to a whole row leaves no trace among the dependencies: then all columns of all relations are needed.
# Row security follows the server's `check_enable_rls`, for a role other than the current one. PostgreSQL reads a
# foreign table with the user mapping of the role it is read as, and we read it with our own.
# LATERAL and OFFSET 0 as in `table_fingerprints`: one plan serves any number of views. A SELECT hides their number from
# the planner: planning the statement for each tick would take longer than running it.
_READ_RIGHTS = """
WITH me AS MATERIALIZED (
  SELECT oid FROM pg_roles WHERE rolname = current_user
),
viewed AS MATERIALIZED (
  SELECT c.oid, n.oid AS namespace, n.nspname, c.relname, c.relowner, r.oid AS rule, me.oid AS me, o.is_invoker,
         strpos(r.ev_action::text, ':varattno 0 ') > 0 AS has_whole_row
  FROM me CROSS JOIN unnest((SELECT %s::text[]), (SELECT %s::text[])) w(schema, name)
  JOIN pg_namespace n ON n.nspname = w.schema
  CROSS JOIN LATERAL (
    SELECT c.oid, c.relname, c.relowner, c.reloptions FROM pg_class c
    WHERE c.relname = w.name AND c.relnamespace = n.oid AND c.relkind = 'v' OFFSET 0) c
  CROSS JOIN LATERAL (
    SELECT r.oid, r.ev_action FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.rulename = '_RETURN' OFFSET 0) r
  CROSS JOIN LATERAL (
    SELECT coalesce(bool_or(o.option_value::boolean), false) AS is_invoker
    FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'security_invoker') o
),
named AS MATERIALIZED (
  SELECT v.oid AS view, a.reader, a.is_reader, v.me, v.has_whole_row, d.places, c.*
  FROM viewed v CROSS JOIN LATERAL (
    SELECT v.relowner AS reader, NOT v.is_invoker AS is_reader UNION ALL SELECT v.me, true WHERE v.is_invoker) a
  CROSS JOIN LATERAL (
    SELECT d.refobjid, array_agg(d.refobjsubid::smallint) FILTER (WHERE d.refobjsubid <> 0) AS places
    FROM pg_depend d
    WHERE d.classid = 'pg_rewrite'::regclass AND d.objid = v.rule AND d.refclassid = 'pg_class'::regclass
      AND d.refobjid <> v.oid
    GROUP BY d.refobjid OFFSET 0) d
  CROSS JOIN LATERAL (
    SELECT c.oid, c.relname, c.relnamespace, c.relkind, c.relowner, c.relrowsecurity, c.relforcerowsecurity,
           c.relhassubclass
    FROM pg_class c WHERE c.oid = d.refobjid AND c.relkind IN ('r', 'p', 'v', 'm', 'f') OFFSET 0) c
),
judged AS MATERIALIZED (
  SELECT n.view, n.oid, n.relnamespace, n.relname, n.is_reader,
         CASE WHEN has_table_privilege(n.reader, n.oid, 'SELECT') THEN NULL
              WHEN n.places IS NULL AND NOT n.has_whole_row
              THEN CASE WHEN has_any_column_privilege(n.reader, n.oid, 'SELECT') THEN NULL ELSE '{}'::text[] END
              ELSE nullif(ARRAY(
                SELECT a.attname::text FROM pg_attribute a
                WHERE a.attrelid = n.oid AND NOT a.attisdropped
                  AND (a.attnum = ANY (n.places) OR n.has_whole_row AND a.attnum > 0)
                  AND has_column_privilege(n.reader, n.oid, a.attnum, 'SELECT') IS NOT TRUE
                ORDER BY a.attnum), '{}') END AS lacking,
         CASE WHEN n.relrowsecurity THEN NOT (
           (SELECT r.rolsuper OR r.rolbypassrls FROM pg_roles r WHERE r.oid = n.reader)
           OR pg_has_role(n.reader, n.relowner, 'USAGE') AND NOT n.relforcerowsecurity) ELSE false END AS is_filtered,
         CASE WHEN n.is_reader AND n.reader <> n.me AND (n.relkind = 'f' OR n.relhassubclass) THEN EXISTS (
           WITH RECURSIVE below AS (
             SELECT n.oid UNION ALL SELECT i.inhrelid FROM below JOIN pg_inherits i ON i.inhparent = below.oid)
           SELECT FROM below JOIN pg_foreign_table t ON t.ftrelid = below.oid
           WHERE (SELECT m.umid FROM pg_user_mappings m
                  WHERE m.srvid = t.ftserver AND m.umuser IN (n.reader, 0) ORDER BY m.umuser = 0 LIMIT 1)
             IS DISTINCT FROM
                 (SELECT m.umid FROM pg_user_mappings m
                  WHERE m.srvid = t.ftserver AND m.umuser IN (n.me, 0) ORDER BY m.umuser = 0 LIMIT 1))
         ELSE false END AS is_mapped_otherwise
  FROM named n
),
summed AS MATERIALIZED (
  SELECT j.view, array_agg(j.oid::bigint) AS reads,
         jsonb_agg(jsonb_build_array(s.nspname, j.relname, j.lacking, j.is_filtered, j.is_mapped_otherwise, j.is_reader)
                   ORDER BY s.nspname, j.relname)
           FILTER (WHERE j.lacking IS NOT NULL OR j.is_filtered OR j.is_mapped_otherwise) AS refusals
  FROM judged j JOIN pg_namespace s ON s.oid = j.relnamespace GROUP BY j.view
)
SELECT v.nspname, v.relname, pg_get_viewdef(v.oid, true), v.is_invoker, pg_get_userbyid(v.relowner),
       pg_get_userbyid(v.me), has_schema_privilege(v.namespace, 'USAGE'),
       CASE WHEN has_table_privilege(v.oid, 'SELECT') THEN true
            WHEN NOT has_any_column_privilege(v.oid, 'SELECT') THEN false
            ELSE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = v.oid AND a.attnum > 0
                             AND has_column_privilege(v.oid, a.attnum, 'SELECT') IS NOT TRUE) END,
       coalesce(s.reads, '{}'), coalesce(s.refusals, '[]')
FROM viewed v LEFT JOIN summed s ON s.view = v.oid
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A relation that a view's text names and that the role it is read as may not read.

    Args:
        lacking: columns without SELECT; empty for the relation as a whole, None where SELECT is granted.
        is_filtered: row security would hide rows from the role it is read as.
        is_mapped_otherwise: it is foreign, and that role has another user mapping than ours.
    """

    schema: str
    name: str
    lacking: tuple[str, ...] | None
    is_filtered: bool
    is_mapped_otherwise: bool


@dataclass(frozen=True, slots=True)
class ViewRights:
    """A view as it is now, and what PostgreSQL would refuse to those who read it.

    Args:
        text: its query.
        is_invoker: what its text names is read as `role`, not as `owner`.
        role: the role that reads.
        may_use_schema, may_select: whether `role` may name it in a query that uses all its columns.
        reads: the oids of what its text names, including other views, without the server's own catalogs.
        refusals: what may not be read with the rights that the text is read with.
        owner_refusals: for an invoker view, what its owner may not read.
    """

    schema: str
    name: str
    text: str
    is_invoker: bool
    owner: str
    role: str
    may_use_schema: bool
    may_select: bool
    reads: frozenset[int]
    refusals: tuple[Refusal, ...]
    owner_refusals: tuple[Refusal, ...] = ()

    @property
    def qualified(self) -> str:
        """Its name for messages."""
        return f"{self.schema}.{self.name}"

    @property
    def mark(self) -> str:
        """A fingerprint of its text and of whose rights it is read with: if it differs, the view was replaced."""
        return hashlib.sha256(repr((self.text, self.is_invoker)).encode()).hexdigest()[:16]

    def reading_error(self) -> MillstreamError | None:
        """Why what its text names may not be read through it."""
        if self.is_invoker:
            return self._error(self.refusals, self.role, f"the role that reads it, {self.role} (security_invoker)")
        return self._error(self.refusals, self.owner, f"its owner {self.owner}")

    def replacing_error(self) -> MillstreamError | None:
        """Why it may not take the place of the view that a query was written for.

        PostgreSQL shows the rows of an invoker view only to the role that reads it. A stream table may show them to
        others, including the view's owner: a role that replaces its view by one that reads with the rights of the
        reading role must not see through the stream table what only the reading role may read.
        """
        return self._error(
            self.owner_refusals,
            self.owner,
            f"its owner {self.owner}, which is required of a view that was replaced by one with security_invoker",
            " Or drop the stream table and create it again, to accept the view as it is now.",
        )

    def _error(
        self, refusals: Sequence[Refusal], reader: str, whose: str, other_hint: str = ""
    ) -> MillstreamError | None:
        if not refusals:
            return None
        reasons = "; ".join(_reason(refusal, reader, self.role) for refusal in refusals)
        remedies = [remedy for refusal in refusals for remedy in _remedies(refusal, reader, self)]
        return MillstreamError(
            Code.PRIVILEGE_MISSING,
            f"the view {self.qualified} cannot be read with the rights of {whose}: {reasons}",
            hint=" ".join(dict.fromkeys(remedies)) + other_hint,
        )

    def naming_error(self) -> MillstreamError | None:
        """Why a query of ours may not name it."""
        remedies: list[str] = []
        if not self.may_use_schema:
            remedies.append(_statement("GRANT USAGE ON SCHEMA {} TO {};", (self.schema,), (self.role,)))
        if not self.may_select:
            remedies.append(_statement("GRANT SELECT ON {} TO {};", (self.schema, self.name), (self.role,)))
        if not remedies:
            return None
        return MillstreamError(
            Code.PRIVILEGE_MISSING, f"{self.role} may not read the view {self.qualified}", hint=" ".join(remedies)
        )


def read_view_rights(connection: Connection, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ViewRights]:
    """The views with the given schemas and names; what is dropped or not a view is missing."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return {}
    rows = connection.execute(_READ_RIGHTS, [[schema for schema, _ in wanted], [name for _, name in wanted]])
    found: dict[tuple[str, str], ViewRights] = {}
    for schema, name, text, is_invoker, owner, role, may_use, may_select, reads, refusals in rows:
        if text is None:  # just dropped
            continue
        found[schema, name] = ViewRights(
            schema=schema,
            name=name,
            text=text,
            is_invoker=is_invoker,
            owner=owner,
            role=role,
            may_use_schema=may_use,
            may_select=may_select,
            reads=frozenset(reads),
            refusals=tuple(_refusal(*row) for *row, is_reader in refusals if is_reader),
            owner_refusals=tuple(_refusal(*row) for *row, is_reader in refusals if not is_reader),
        )
    return found


def _refusal(schema: str, name: str, lacking: list[str] | None, is_filtered: bool, is_mapped: bool) -> Refusal:
    return Refusal(schema, name, tuple(lacking) if lacking is not None else None, is_filtered, is_mapped)


def _reason(refusal: Refusal, reader: str, role: str) -> str:
    table = f"{refusal.schema}.{refusal.name}"
    if refusal.lacking is not None:
        columns = f" ({', '.join(refusal.lacking)})" if refusal.lacking else ""
        return f"{reader} may not read {table}{columns}"
    if refusal.is_filtered:
        return f"row security hides rows of {table} from {reader}"
    return f"{table} is foreign, and {reader} has another user mapping than {role}"


def _remedies(refusal: Refusal, reader: str, view: ViewRights) -> list[str]:
    table = (refusal.schema, refusal.name)
    found: list[str] = []
    if refusal.lacking is not None:
        if refusal.lacking:
            columns = sql.SQL(", ").join(map(sql.Identifier, refusal.lacking))
            grant = sql.SQL("GRANT SELECT ({}) ON {} TO {};")
            found.append(grant.format(columns, sql.Identifier(*table), sql.Identifier(reader)).as_string(None))
        else:
            found.append(_statement("GRANT SELECT ON {} TO {};", table, (reader,)))
    if refusal.is_filtered:
        found.append(_statement("ALTER ROLE {} BYPASSRLS;", (reader,)))
    if refusal.is_mapped_otherwise:
        found.append(_statement("ALTER VIEW {} SET (security_invoker = true);", (view.schema, view.name)))
    return found


def _statement(template: LiteralString, *names: Sequence[str]) -> str:
    return sql.SQL(template).format(*(sql.Identifier(*name) for name in names)).as_string(None)
