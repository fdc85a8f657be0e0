"""Alters the column types of a served table when those of the result have changed, e.g. after a source's were widened.

PostgreSQL converts the stored values, so correct rows stay, and so does everything that users built on the table.
The result is compared with the table afterwards in any case, so a conversion need not be exact: values that cannot be
converted become NULL until then, and rows whose keys cannot be converted are deleted. All of it happens in the
transaction that writes the new rows: readers wait for its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.driver import errors, sql
from millstream.sinks.postgres.locks import lock_out_readers
from millstream.sinks.postgres.search_path import users_path
from millstream.sinks.postgres.table import Found
from millstream.sinks.postgres.target import Target, listed
from millstream.sinks.postgres.types import ServedColumn

_REFERENCES = """
SELECT conname::text, conrelid::regclass::text FROM pg_constraint
WHERE confrelid = %s::oid AND contype = 'f' AND conrelid <> confrelid ORDER BY 1 LIMIT 1
"""


def outgrown(target: Target, found: Found) -> list[ServedColumn]:
    """The columns whose type is not what the result needs."""
    return [c for c in target.columns if found.columns.get(c.name) != c.pg_type]


def retype(connection: Connection, target: Target, found: Found) -> int:
    """Give columns the types of the result, inside the transaction that brings the table to it.

    Returns:
        How many rows were deleted for it.

    Raises:
        MillstreamError: DEPENDENTS_EXIST if a user's object depends on a column, so that PostgreSQL cannot alter it.
    """
    columns = outgrown(target, found)
    if not columns:
        return 0
    lock_out_readers(connection, target.named(found.oid))
    usings = {c.name: _converted(connection, c, found.columns[c.name]) for c in columns}
    null = sql.SQL("NULL")
    kept = {name: using if name in (target.key or ()) else null for name, using in usings.items()}
    try:
        if _alter(connection, target, columns, usings, only=False) or _alter(connection, target, columns, kept):
            return 0
        _refuse_references(connection, target, found)
        with users_path(connection, target):
            gone = connection.execute(sql.SQL("DELETE FROM ONLY {}").format(target.relation)).rowcount
        statement = _statement(target, columns, dict.fromkeys(usings, null), only=True)
        with users_path(connection, target):
            connection.execute(statement)
        return gone
    except (
        # PostgreSQL's answers for views, policies, generated columns, triggers (0A000), defaults, checks and indexes
        errors.FeatureNotSupported,
        errors.DatatypeMismatch,
        errors.UndefinedFunction,
        errors.InvalidTableDefinition,
        errors.InvalidObjectDefinition,
        errors.DependentObjectsStillExist,
    ) as e:
        said = e.diag.message_primary or type(e).__name__
        detail = f" ({e.diag.message_detail})" if e.diag.message_detail else ""
        changes = ", ".join(f"{c.name} from {found.columns[c.name]} to {c.pg_type}" for c in columns)
        raise MillstreamError(
            Code.DEPENDENTS_EXIST,
            f"the result's types have changed, and {target.name} cannot be altered ({changes}): {said}{detail}",
            hint="drop the dependent object, refresh, and create it again; or cast to the old type in the query",
        ) from e


def _converted(connection: Connection, column: ServedColumn, old: str) -> sql.Composable:
    """The column cast to its new type, through its text if PostgreSQL has no direct cast."""
    new = column.qualified_type_sql
    try:
        with connection.transaction():
            connection.execute(sql.SQL("SELECT NULL::{}::{}").format(sql.SQL(old), new))
    except errors.CannotCoerce:
        return sql.SQL("{}::pg_catalog.text::{}").format(column.identifier, new)
    return sql.SQL("{}::{}").format(column.identifier, new)


def _alter(
    connection: Connection,
    target: Target,
    columns: Sequence[ServedColumn],
    usings: dict[str, sql.Composable],
    *,
    only: bool = True,
) -> bool:
    """Alter the columns; false if the table's contents do not fit."""
    try:
        with connection.transaction(), users_path(connection, target):
            connection.execute(_statement(target, columns, usings, only=only))
    except (errors.DataError, errors.IntegrityError):  # values do not fit the new types, or violate users' constraints
        return False
    return True


def _statement(
    target: Target, columns: Sequence[ServedColumn], usings: dict[str, sql.Composable], *, only: bool
) -> sql.Composed:
    """With `only`, tables that inherit from this one are refused: their rows are not ours."""
    change = sql.SQL("ALTER COLUMN {} TYPE {} USING {}")
    changes = [change.format(c.identifier, c.qualified_type_sql, usings[c.name]) for c in columns]
    return sql.SQL("ALTER TABLE {} {} {}").format(sql.SQL("ONLY" if only else ""), target.relation, listed(changes))


def _refuse_references(connection: Connection, target: Target, found: Found) -> None:
    """Refuse if rows of other tables refer to ours: deleting ours would delete or change them."""
    row = connection.execute(_REFERENCES, [found.oid]).fetchone()
    if row is not None:
        raise MillstreamError(
            Code.DEPENDENTS_EXIST,
            f"the key of {target.name} has a new type to which its values cannot be converted, and the constraint "
            f"{row[0]} of {row[1]} refers to them",
            hint="drop that constraint, refresh, and create it again",
        )
