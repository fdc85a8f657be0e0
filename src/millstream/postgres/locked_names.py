"""Locks a relation under its name, and checks under the lock that the name still means the same relation.

Statements name relations. Between looking one up and naming it, its owner can put another in its place: for example a
view, whose functions run with the rights of the role that reads it. So a relation is first locked under its name, and
then the name is looked up again: while the lock is held, nobody can rename or drop it, or move it to another schema.

A lock on a table does not lock its *schema*, whose owner may rename it at any time, and put another one in its place.
`restrict` guards against that, where the server has the setting (14.13, 15.8, 16.4, 17 and later): the server then
expands no view of a user, even if a name has come to mean one; and a reader looks the name up once more at the end.
docs/adr/0017-locked-before-read.md lists which statements name what, and what keeps each name from changing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from millstream.postgres.connection import Connection
from millstream.postgres.driver import psycopg, sql

RESTRICTION = "restrict_nonsystem_relation_kind"
VIEWS, FOREIGN = "view", "foreign-table"
"""What `restrict` can forbid."""

_STORED = frozenset("rm")
"""The kinds that have rows of their own: before PostgreSQL 16 a rule could turn an empty table into a view."""


class MovedError(Exception):
    """A name no longer means the relation that was looked up."""


@dataclass(frozen=True, slots=True)
class Named:
    """A relation as it was looked up; `kind` as in pg_class."""

    oid: int
    kind: str
    schema: str
    name: str

    @property
    def identifier(self) -> sql.Identifier:
        """Its name in a statement."""
        return sql.Identifier(self.schema, self.name)

    @property
    def qualified(self) -> str:
        """Its name for messages."""
        return f"{self.schema}.{self.name}"

    def forbidden(self, *, only: bool = False) -> tuple[str, ...]:
        """The kinds of relations that must not be read in its place; none if it is itself a view, read on purpose.

        Args:
            only: leave out what inherits from it, which may be foreign tables.
        """
        if self.kind == "v":
            return ()
        return (VIEWS, FOREIGN) if only or self.kind == "m" else (VIEWS,)


def hold(connection: Connection, named: Named, *, forbidden: Iterable[str] | None = None) -> None:
    """Lock a relation of any kind until the end of the transaction, so that its name stays; without running any code.

    Parsing a statement locks what it names, as a reader does. The statement is never planned, so nobody's code runs;
    unlike LOCK TABLE it needs no right on the table itself, since the role may have rights on columns only, and it
    locks materialized views and foreign tables as well. It takes the transaction's snapshot.

    Args:
        forbidden: kinds of relations that the transaction must not read: see `restrict`.

    Raises:
        MovedError: the name means another relation now, or none.
    """
    steps: list[sql.Composable] = [] if forbidden is None else [_restricting(forbidden, is_local=True)]
    steps += [
        sql.SQL("PREPARE millstream_hold AS SELECT FROM ONLY {}").format(named.identifier),
        sql.SQL("DEALLOCATE millstream_hold"),
        _meaning([named]),
    ]
    try:
        done = connection.execute(sql.SQL("; ").join(steps))
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.WrongObjectType) as e:
        raise _moved(named) from e
    except psycopg.errors.ObjectNotInPrerequisiteState as e:  # a view, which is forbidden
        raise _moved(named) from e
    while done.nextset():
        pass
    _require([named], done.fetchall())


def lock(connection: Connection, named: Named, mode: str, *, only: bool = True) -> None:
    """Lock a table by LOCK TABLE, and check that it is still the same; in a transaction without a fixed snapshot.

    Raises:
        MovedError: as `hold`.
    """
    lock_only(connection, named, mode, only=only)
    require(connection, [named])


def lock_only(connection: Connection, named: Named, mode: str, *, only: bool = True) -> None:
    """As `lock`, without taking a snapshot: `require` has to follow.

    Raises:
        MovedError: there is no table of that name any more.
    """
    statement = sql.SQL("LOCK TABLE ONLY {} IN {} MODE" if only else "LOCK TABLE {} IN {} MODE")
    try:
        connection.execute(statement.format(named.identifier, sql.SQL(mode)))
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.WrongObjectType) as e:
        raise _moved(named) from e


def require(connection: Connection, named: Iterable[Named]) -> None:
    """Check that names mean what they meant, in the catalog as it is now and not in the transaction's snapshot.

    Raises:
        MovedError: one of them means another relation now, or none.
    """
    wanted = list(named)
    if wanted:
        _require(wanted, connection.execute(_meaning(wanted)).fetchall())


def restrict(connection: Connection, forbidden: Iterable[str]) -> None:
    """Keep the session from reading users' views or foreign tables: the server raises an error before it runs them.

    On a server without the setting this does nothing.
    """
    connection.execute(_restricting(forbidden, is_local=False))


def _restricting(forbidden: Iterable[str], *, is_local: bool) -> sql.Composed:
    statement = "SELECT pg_catalog.set_config({0}, {1}, {2}) WHERE pg_catalog.current_setting({0}, true) IS NOT NULL"
    values = (RESTRICTION, ", ".join(forbidden), is_local)
    return sql.SQL(statement).format(*map(sql.Literal, values))


def _meaning(wanted: Iterable[Named]) -> sql.Composed:
    """Both functions read the catalog as it is now, not as the transaction's snapshot sees it."""
    one = sql.SQL(
        "SELECT {0}::pg_catalog.int8 AS oid, pg_catalog.to_regclass({1})::pg_catalog.oid::pg_catalog.int8, "
        "pg_catalog.pg_relation_filenode(pg_catalog.to_regclass({1})) IS NOT NULL"
    )
    return sql.SQL(" UNION ALL ").join(
        one.format(sql.Literal(item.oid), sql.Literal(item.identifier.as_string())) for item in wanted
    )


def _require(wanted: Iterable[Named], rows: list[tuple[Any, ...]]) -> None:
    found = {oid: (means, is_stored) for oid, means, is_stored in rows}
    for item in wanted:
        if found.get(item.oid) != (item.oid, item.kind in _STORED):
            raise _moved(item)


def _moved(named: Named) -> MovedError:
    return MovedError(f"{named.qualified} was dropped, or the name now means another relation")
