"""Declares the key of a served table, and replaces it when the result has another one."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.sinks.postgres.locks import lock_out_readers
from millstream.sinks.postgres.target import Target, listed

_NULLS_NOT_DISTINCT = 150_000
# A user may have an index on the same columns: ours is the constraint, or else the index that was created first.
_OURS = """
SELECT k.conname, n.nspname, x.relname
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_namespace n ON n.oid = x.relnamespace
LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid AND k.contype = %(kind)s
WHERE i.indrelid = %(relation)s::oid AND i.indisunique AND i.indpred IS NULL
  AND coalesce(pg_get_expr(i.indexprs, i.indrelid), '') = %(expression)s
  AND ARRAY(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY AS c (number, place)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = c.number
            WHERE c.place <= i.indnkeyatts ORDER BY c.place) = %(columns)s::text[]
  AND (k.oid IS NOT NULL OR NOT %(is_constraint)s)
ORDER BY i.indexrelid LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Key:
    """The key a served table was given; see `Target`."""

    columns: tuple[str, ...] | None
    is_total: bool

    @classmethod
    def of(cls, target: Target) -> Key:
        """The key a table should have."""
        return cls(target.key, target.is_key_total)

    @classmethod
    def parse(cls, stored: dict[str, Any]) -> Key:
        """A key from the ledger."""
        columns = stored["columns"]
        return cls(tuple(columns) if columns is not None else None, bool(stored["is_total"]))

    @property
    def stored(self) -> dict[str, Any]:
        """The key for the ledger."""
        return {"columns": list(self.columns) if self.columns is not None else None, "is_total": self.is_total}

    def forbids(self, other: Key) -> bool:
        """Whether rows with the other key may violate this one, during the change or after it.

        >>> Key(("a",), True).forbids(Key(("a", "b"), True)), Key(("a", "b"), False).forbids(Key(("a",), True))
        (True, False)
        """
        if self.columns is None:
            return False
        if other.columns is None or not set(other.columns) <= set(self.columns):
            return True
        return self.is_total and not (other.is_total and set(self.columns) <= set(other.columns))


KEYLESS = Key(None, False)


def declare_key(connection: Connection, target: Target) -> None:
    """Declare the key of a table, and set a replica identity if it is not a primary key."""
    if target.key is not None:
        key = listed([sql.Identifier(k) for k in target.key])
        if not target.key:
            statement, key = sql.SQL("CREATE UNIQUE INDEX ON {} ({})"), listed([sql.SQL("(true)")])
        elif target.is_key_total:
            statement = sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})")
        elif connection.info.server_version >= _NULLS_NOT_DISTINCT:
            statement = sql.SQL("ALTER TABLE {} ADD UNIQUE NULLS NOT DISTINCT ({})")
        else:
            statement = sql.SQL("CREATE UNIQUE INDEX ON {} ({})")
        connection.execute(statement.format(target.relation, key))
    _identify(connection, target, has_key=target.has_primary_key)


def change_key(connection: Connection, target: Target, relation: int, old: Key) -> None:
    """Replace the key of a table; readers wait from when the new index is built until the commit."""
    name = sql.Identifier(_new_name(target))
    has_constraint = _is_constraint(connection, Key.of(target))
    if target.key is not None:
        key = listed([sql.Identifier(k) for k in target.key] or [sql.SQL("(true)")])
        nulls = sql.SQL("NULLS NOT DISTINCT" if has_constraint and not target.is_key_total else "")
        connection.execute(sql.SQL("CREATE UNIQUE INDEX {} ON {} ({}) {}").format(name, target.relation, key, nulls))
    lock_out_readers(connection, target.named(relation))
    revoke_key(connection, target, relation, old, never_null=(target.key or ()) if target.is_key_total else ())
    if has_constraint:
        kind = sql.SQL("PRIMARY KEY" if target.is_key_total else "UNIQUE")
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {} USING INDEX {}").format(target.relation, name, kind, name)
        )
    _identify(connection, target, has_key=target.has_primary_key)


def _new_name(target: Target) -> str:
    """A unique name for an index, of a length that PostgreSQL allows."""
    return f"{target.table.encode()[:50].decode(errors='ignore')}_{uuid.uuid4().hex[:8]}"


def _is_constraint(connection: Connection, key: Key) -> bool:
    """Whether a key is declared as a constraint, and not only as an index."""
    return bool(key.columns) and (key.is_total or connection.info.server_version >= _NULLS_NOT_DISTINCT)


def revoke_key(
    connection: Connection, target: Target, relation: int, key: Key, never_null: Collection[str] = ()
) -> None:
    """Drop the key that a table was given; users' own indexes and constraints stay.

    Args:
        never_null: columns that stay NOT NULL.
    """
    if key.columns is None:
        return
    wanted = {
        "relation": relation,
        "columns": list(key.columns),
        "kind": "p" if key.is_total else "u",
        "expression": "" if key.columns else "true",
        "is_constraint": _is_constraint(connection, key),
    }
    row = connection.execute(_OURS, wanted).fetchone()
    if row is not None:
        constraint, schema, index = row
        if constraint is not None:
            drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(target.relation, sql.Identifier(constraint))
        else:
            drop = sql.SQL("DROP INDEX {}").format(sql.Identifier(schema, index))
        connection.execute(drop)
    if key.is_total:  # dropping a primary key leaves its columns NOT NULL
        loose = sql.SQL("ALTER COLUMN {} DROP NOT NULL")
        if actions := [loose.format(sql.Identifier(c)) for c in key.columns if c not in never_null]:
            connection.execute(sql.SQL("ALTER TABLE {} {}").format(target.relation, listed(actions)))
    _identify(connection, target, has_key=False)


def _identify(connection: Connection, target: Target, *, has_key: bool) -> None:
    """Set the replica identity: without one, a publication would forbid us to change rows. A user's choice stays."""
    row = connection.execute(
        "SELECT relreplident::text, EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident) "
        "FROM pg_class c WHERE c.oid = %s::regclass",
        [target.relation.as_string(connection)],
    ).fetchone()
    assert row is not None
    kind, has_index = row
    if kind == "f" and has_key:
        wanted = sql.SQL("DEFAULT")
    elif not has_key and (kind == "d" or (kind == "i" and not has_index)):
        wanted = sql.SQL("FULL")
    else:
        return
    connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY {}").format(target.relation, wanted))
