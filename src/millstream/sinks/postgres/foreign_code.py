"""Finds other roles' functions that a served table's definition calls: they run with our rights when rows are served.

The owner of a table may add defaults, checks, indexes, statistics, rules and policies. Triggers are reported
separately.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.postgres.connection import Connection
from millstream.sinks.postgres.table import Found
from millstream.sinks.postgres.target import Target

# Superusers need no table to run their code, and SECURITY DEFINER functions run with their owner's rights.
_CALLED = """
WITH parts (class, part) AS (
  SELECT 'pg_attrdef'::regclass, oid FROM pg_attrdef WHERE adrelid = %(relation)s::oid
  UNION ALL SELECT 'pg_constraint'::regclass, oid FROM pg_constraint WHERE conrelid = %(relation)s::oid
  UNION ALL SELECT 'pg_class'::regclass, indexrelid FROM pg_index WHERE indrelid = %(relation)s::oid
  UNION ALL SELECT 'pg_statistic_ext'::regclass, oid FROM pg_statistic_ext WHERE stxrelid = %(relation)s::oid
  UNION ALL SELECT 'pg_rewrite'::regclass, oid FROM pg_rewrite WHERE ev_class = %(relation)s::oid
  UNION ALL SELECT 'pg_policy'::regclass, oid FROM pg_policy WHERE polrelid = %(relation)s::oid
)
SELECT DISTINCT p.oid::regprocedure::text, r.rolname::text
FROM parts JOIN pg_depend d ON d.classid = parts.class AND d.objid = parts.part
JOIN pg_proc p ON p.oid = CASE d.refclassid
  WHEN 'pg_proc'::regclass THEN d.refobjid
  WHEN 'pg_operator'::regclass THEN (SELECT o.oprcode::oid FROM pg_operator o WHERE o.oid = d.refobjid) END
JOIN pg_roles r ON r.oid = p.proowner AND NOT r.rolsuper AND r.rolname <> current_user
WHERE NOT p.prosecdef
ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class ForeignFunction:
    """A function that another role owns."""

    name: str
    owner: str


def foreign_functions(connection: Connection, found: Found) -> list[ForeignFunction]:
    """The functions of other roles that a table calls for each row; none if the table is ours."""
    if found.owner == connection.info.user:
        return []
    rows = connection.execute(_CALLED, {"relation": found.oid}).fetchall()
    return [ForeignFunction(name, owner) for name, owner in rows]


def foreign_function_notice(name: str, target: Target, function: ForeignFunction) -> str:
    """The notice for a function that is seen for the first time."""
    return (
        f"the function {function.name} of the role {function.owner}, which a default, check, index, statistics, rule "
        f"or policy of {target.name} calls, runs with the rights of the role that serves {name} there"
    )
