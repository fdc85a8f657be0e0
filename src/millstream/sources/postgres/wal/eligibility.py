"""Whether tables can be captured from their database's WAL: the hindrances, and the statements that remove them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.driver import sql
from millstream.sources.postgres.server.privileges import missing_replication
from millstream.sources.postgres.server.relations import Leaf, Relation, RelationKind
from millstream.sources.postgres.server.table_error import TableError
from millstream.sources.postgres.values.types import MirrorColumn

_FULL = "f"
_USE_PARTITIONS = "use partitions instead of inheritance"
_GENERATED_SINCE = 180_000


@dataclass(frozen=True, slots=True)
class Hindrance:
    """What keeps a database from being captured from the WAL; `table` is None if it is the server or the role."""

    table: str | None
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.table}: {self.what}" if self.table else self.what


@dataclass(frozen=True, slots=True)
class WalTable:
    """What the reader of the WAL knows about a captured table.

    Args:
        id: the capture's.
        key: the columns by which the WAL identifies an old row; empty if there are none.
        is_full: whether every part of it writes whole old rows, so that nothing has to be looked up.
        types: oid and modifier of each captured column's type, as the WAL's messages name them.
        leaves: the oids of the partitions that hold its rows; empty for a table that is not partitioned.
    """

    id: str
    oid: int
    name: str
    columns: tuple[MirrorColumn, ...]
    key: tuple[str, ...]
    is_full: bool
    types: dict[str, tuple[int, int]] = field(hash=False)
    leaves: frozenset[int] = frozenset()


_TYPES = """
SELECT attrelid::bigint, attname, atttypid::bigint, atttypmod FROM pg_attribute
WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
"""
# what identifies an old row of each leaf in the WAL; a DEFERRABLE key does not
_IDENTITIES = """
SELECT c.oid::bigint, c.relreplident::text, c.relpersistence = 'p', ARRAY(
  SELECT a.attname::text FROM pg_index i
  CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY k(num, place)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num
  WHERE i.indexrelid = pg_get_replica_identity_index(c.oid) AND k.place <= i.indnkeyatts ORDER BY k.place)
FROM pg_class c WHERE c.oid = ANY(%s)
"""
# a new partition gets the primary key, but no other replica identity
_PRIMARY = """
SELECT indrelid::bigint FROM pg_index WHERE indrelid = ANY(%s) AND indisprimary AND indimmediate AND indisvalid
"""
_SERVER = """
SELECT current_setting('wal_level'), current_user::text, current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> %s)
"""


@dataclass(frozen=True, slots=True)
class _Identity:
    is_full: bool
    is_logged: bool
    key: tuple[str, ...]


def server_hindrances(connection: Connection, slot_name: str) -> tuple[Hindrance, ...]:
    """The hindrances in the server's settings and the role's rights."""
    row = connection.execute(_SERVER, [slot_name]).fetchone()
    assert row is not None
    wal_level, role, most, used = row
    found = []
    if wal_level != "logical":
        found.append(Hindrance(None, f"wal_level is {wal_level}", "ALTER SYSTEM SET wal_level = logical; then restart"))
    if (lacking := missing_replication(connection)) is not None:
        found.append(Hindrance(None, f"the role {role} may not replicate", lacking.as_string(connection)))
    if used >= most:
        found.append(
            Hindrance(
                None,
                f"all {most} replication slots are in use",
                f"ALTER SYSTEM SET max_replication_slots = {most + 5}; then restart",
            )
        )
    return tuple(found)


def wal_tables(
    connection: Connection, captured: Sequence[tuple[str, Relation, Sequence[MirrorColumn]]]
) -> tuple[tuple[WalTable, ...], tuple[Hindrance, ...]]:
    """The captured tables as the WAL's reader needs them, and the hindrances of the others.

    Args:
        captured: id of the capture, the table as it is now, the captured columns.
    """
    types: dict[int, dict[str, tuple[int, int]]] = {}
    for oid, name, type_oid, modifier in connection.execute(_TYPES, [[r.oid for _, r, _ in captured]]):
        types.setdefault(oid, {})[name] = (type_oid, modifier)
    leaves = [leaf.oid for _, relation, _ in captured for leaf in relation.leaves]
    identities = {
        oid: _Identity(identity == _FULL, is_logged, tuple(key))
        for oid, identity, is_logged, key in connection.execute(_IDENTITIES, [leaves])
    }
    partitioned = [r.oid for _, r, _ in captured if r.kind is RelationKind.PARTITIONED]
    primary = {oid for (oid,) in connection.execute(_PRIMARY, [partitioned])} if partitioned else set()
    tables, hindrances = [], []
    for id_, relation, columns in captured:
        parts = [(leaf, identities[leaf.oid]) for leaf in relation.leaves if leaf.oid in identities]
        found = _hindrances(connection, relation, columns, parts)
        if not found and relation.oid in set(partitioned) - primary:  # once published, its UPDATE and DELETE would fail
            quoted = sql.Identifier(relation.schema, relation.name).as_string(connection)
            why = "it has no primary key, so the WAL would not say which row of a new partition was changed"
            found = [Hindrance(relation.qualified, why, f"ALTER TABLE {quoted} ADD PRIMARY KEY (...)")]
        hindrances += found
        if not found:
            names = {c.name for c in columns}
            keys = [part.key for _, part in parts if not part.is_full]
            key = keys[0] if keys else relation.key
            tables.append(
                WalTable(
                    id=id_,
                    oid=relation.oid,
                    name=relation.qualified,
                    columns=tuple(columns),
                    key=key if names.issuperset(key) else (),
                    is_full=not keys,
                    types={name: types[relation.oid][name] for name in names},
                    leaves=frozenset(leaf.oid for leaf in relation.leaves if leaf.oid != relation.oid),
                )
            )
    return tuple(tables), tuple(hindrances)


def nested_hindrance(table: str, parent: str) -> Hindrance:
    """The hindrance of a partition whose changes the WAL reports as those of a published table above it."""
    return Hindrance(
        table,
        f"the WAL reports its changes as those of {parent}",
        f"read either {table} or {parent}, not both",
    )


def ineligible_error(hindrances: Sequence[Hindrance]) -> MillstreamError:
    """The error for a database that must be captured from its WAL and cannot; about tables, if only they hinder it."""
    message = "the database cannot be captured from its WAL: " + "; ".join(str(o) for o in hindrances)
    hint = "; ".join(dict.fromkeys(o.remedy for o in hindrances))
    tables = [o.table for o in hindrances if o.table is not None]
    if len(tables) < len(hindrances):
        return MillstreamError(Code.DATABASE_UNFIT, message, hint=hint)
    return TableError(Code.DATABASE_UNFIT, message, tables, hint=hint)


def _hindrances(
    connection: Connection, relation: Relation, columns: Sequence[MirrorColumn], parts: Sequence[tuple[Leaf, _Identity]]
) -> list[Hindrance]:
    name = relation.qualified
    quoted = sql.Identifier(relation.schema, relation.name).as_string(connection)
    if not relation.kind.is_captured:
        return [Hindrance(name, "it is not a table", "read it in FULL mode")]
    found = []
    if relation.kind is RelationKind.TABLE and [leaf.oid for leaf in relation.leaves] != [relation.oid]:
        found.append(
            Hindrance(
                name, "it has inheritance children, whose rows the WAL does not report as its own", _USE_PARTITIONS
            )
        )
    if not all(part.is_logged for _, part in parts):
        found.append(
            Hindrance(name, "it is UNLOGGED: its changes are not in the WAL", f"ALTER TABLE {quoted} SET LOGGED")
        )
    found += _identity_hindrances(connection, relation, columns, parts)
    generated = [c for c in relation.columns if c.generated]
    captured = {c.name for c in columns}
    has_published = connection.info.server_version >= _GENERATED_SINCE
    for column in generated:
        if column.generated == "s" and not has_published and column.name in captured:
            found.append(
                Hindrance(
                    name,
                    f"the WAL of this server has no generated columns such as {column.name}",
                    "leave the column out of the queries, or use PostgreSQL 18",
                )
            )
        if column.generated == "v" and any(part.is_full for _, part in parts):
            # once published, the application's own UPDATE and DELETE would fail
            found.append(
                Hindrance(
                    name,
                    f"it has REPLICA IDENTITY FULL and the virtual column {column.name}, so it cannot be published",
                    f"ALTER TABLE {quoted} REPLICA IDENTITY DEFAULT",
                )
            )
    return found


def _identity_hindrances(
    connection: Connection, relation: Relation, columns: Sequence[MirrorColumn], parts: Sequence[tuple[Leaf, _Identity]]
) -> list[Hindrance]:
    name = relation.qualified
    keys = {part.key for _, part in parts if not part.is_full}
    if () in keys:  # once published, the application's own UPDATE and DELETE would fail
        statements = [
            sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(sql.Identifier(leaf.schema, leaf.name))
            for leaf, part in parts
            if not part.is_full and not part.key
        ]
        return [
            Hindrance(
                name,
                "the WAL does not say which row was changed: no key, and not REPLICA IDENTITY FULL",
                "; ".join(s.as_string(connection) for s in statements),
            )
        ]
    if len(keys) > 1:
        return [Hindrance(name, "its partitions have different keys", "give them the same REPLICA IDENTITY")]
    captured = {c.name for c in columns}
    absent = [column for key in keys for column in key if column not in captured]
    if absent:
        return [
            Hindrance(
                name,
                f"the key's column {absent[0]} is not captured, so old rows cannot be found",
                "use the column in a query, or set REPLICA IDENTITY FULL",
            )
        ]
    return []
