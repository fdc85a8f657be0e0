"""What the server's catalog says about a table: its columns, its key and its partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.locked_names import Named


class RelationKind(StrEnum):
    """What a name in a query may stand for."""

    TABLE = "r"
    PARTITIONED = "p"
    FOREIGN = "f"
    MATERIALIZED_VIEW = "m"
    VIEW = "v"

    @property
    def is_captured(self) -> bool:
        """Whether its changes can be captured; for other kinds only the contents can be read."""
        return self in (RelationKind.TABLE, RelationKind.PARTITIONED)


@dataclass(frozen=True, slots=True)
class PgColumn:
    """A column: `type` as PostgreSQL prints it with its modifiers, `type_kind` and `element` for enums and arrays.

    Args:
        base: the type behind a domain, or the type itself, printed with its modifiers.
        base_oid: its oid, which is not a fixed one for an enum or composite type.
        type_kind: `b`ase, `e`num, `c`omposite, `r`ange, `m`ultirange, `d`omain.
        element: the type of an array's elements, also behind a domain, printed; None if it is not an array.
        generated: `s`tored, `v`irtual, or empty.
        loose_collation: the name of its collation if it is nondeterministic: different texts may be equal.
    """

    number: int
    name: str
    type: str
    base: str
    base_oid: int
    type_kind: str
    element: str | None
    element_kind: str | None
    not_null: bool
    generated: str
    loose_collation: str | None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows itself: a plain table, or one partition."""

    oid: int
    schema: str
    name: str
    filenode: int
    is_logged: bool
    kind: str

    @property
    def named(self) -> Named:
        """The table with its name, for statements that name it."""
        return Named(self.oid, self.kind, self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is now."""

    oid: int
    schema: str
    name: str
    kind: RelationKind
    owner: str
    columns: tuple[PgColumn, ...]
    key: tuple[str, ...]
    """The columns of the primary key, or of the replica identity's index; empty if there is none."""
    leaves: tuple[Leaf, ...]
    has_row_security: bool
    view_text: str | None = field(default=None, compare=False)

    @property
    def qualified(self) -> str:
        """Its name for messages."""
        return f"{self.schema}.{self.name}"

    @property
    def named(self) -> Named:
        """The relation with its name, for statements that name it."""
        return Named(self.oid, self.kind.value, self.schema, self.name)

    def column(self, name: str) -> PgColumn:
        """The column of that name."""
        return next(c for c in self.columns if c.name == name)


_FOUND = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, pg_get_userbyid(c.relowner), c.relrowsecurity,
       CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid, true) END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'm', 'v') AND n.nspname NOT LIKE 'pg\\_%%' AND n.nspname <> 'information_schema'
"""

_COLUMNS = """
SELECT a.attrelid::bigint, a.attnum::int, a.attname, format_type(a.atttypid, a.atttypmod),
       format_type(b.oid, b.modifier), b.oid::bigint, b.typtype::text,
       CASE WHEN b.is_array THEN format_type(e.oid, e.modifier) END, CASE WHEN b.is_array THEN e.typtype::text END,
       a.attnotnull, a.attgenerated::text,
       (SELECT l.collname FROM pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic)
FROM pg_attribute a
JOIN LATERAL (
  WITH RECURSIVE down AS (  -- a domain may be of a domain; the innermost one has the modifiers
    SELECT a.atttypid AS oid, a.atttypmod AS modifier
    UNION ALL SELECT d.typbasetype, d.typtypmod FROM down JOIN pg_type d ON d.oid = down.oid WHERE d.typtype = 'd'
  ) SELECT y.oid, y.typtype, y.typelem, y.typelem <> 0 AND y.typcategory = 'A' AS is_array, down.modifier
    FROM pg_type y JOIN down ON down.oid = y.oid WHERE y.typtype <> 'd'
) b ON true
LEFT JOIN LATERAL (
  WITH RECURSIVE down AS (
    SELECT b.typelem AS oid, b.modifier
    UNION ALL SELECT d.typbasetype, d.typtypmod FROM down JOIN pg_type d ON d.oid = down.oid WHERE d.typtype = 'd'
  ) SELECT y.oid, y.typtype, down.modifier FROM pg_type y JOIN down ON down.oid = y.oid WHERE y.typtype <> 'd'
) e ON b.is_array
WHERE a.attrelid = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

_KEYS = """
SELECT DISTINCT ON (i.indrelid) i.indrelid::bigint, ARRAY(
  SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY k(num, place)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num
  WHERE k.place <= i.indnkeyatts ORDER BY k.place)
FROM pg_index i
WHERE i.indrelid = ANY(%s) AND i.indisvalid AND (i.indisprimary OR i.indisreplident)
ORDER BY i.indrelid, i.indisprimary DESC
"""

# without partitions that a DETACH ... CONCURRENTLY has taken out, even if it was interrupted after that
_LEAVES = """
WITH RECURSIVE below AS (
  SELECT c.oid AS top, c.oid FROM pg_class c WHERE c.oid = ANY(%s)
  UNION ALL SELECT below.top, i.inhrelid FROM pg_inherits i JOIN below ON below.oid = i.inhparent
  WHERE NOT i.inhdetachpending
)
SELECT below.top::bigint, c.oid::bigint, n.nspname, c.relname, coalesce(pg_relation_filenode(c.oid), 0)::bigint,
       c.relpersistence = 'p', c.relkind::text
FROM below JOIN pg_class c ON c.oid = below.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'f', 'm') ORDER BY below.top, c.oid
"""


_EXACTLY = " AND {} = %s"
_IN_ANY_CASE = ' AND lower({}::text COLLATE "C") = lower(%s COLLATE "C")'  # of ASCII letters, in any locale


def _by_name(condition: str, name: str, schema: str | None) -> tuple[str, list[str]]:
    query = _FOUND + condition.format("c.relname") + (condition.format("n.nspname") if schema else "")
    return query, [name, schema] if schema else [name]


def find_relation(connection: Connection, name: str, schema: str | None = None, *, exact: bool = False) -> Relation:
    """The table or view of a name; without a schema it must be the only one of that name.

    If none has exactly that name, the only one whose name differs in case alone is found, unless `exact`.

    Raises:
        MillstreamError: UNKNOWN_TABLE; NAME_AMBIGUOUS with the names to choose from.
    """
    rows = connection.execute(*_by_name(_EXACTLY, name, schema)).fetchall()
    if not rows and not exact:
        rows = connection.execute(*_by_name(_IN_ANY_CASE, name, schema)).fetchall()
    said = f"{schema}.{name}" if schema else name
    if not rows:
        raise MillstreamError(Code.UNKNOWN_TABLE, f"the database has no table or view {said} that you may see")
    if len(rows) > 1:
        is_case = len({(r[1].lower(), r[2].lower()) for r in rows}) == 1
        raise MillstreamError(
            Code.NAME_AMBIGUOUS,
            f"{said} may be {' or '.join(sorted(f'{r[1]}.{r[2]}' for r in rows))}",
            hint="write the name as it is in the database, in quotes" if is_case else "write the schema too",
        )
    return _relations(connection, rows)[0]


def find_named(connection: Connection, schema: str, name: str) -> Relation | None:
    """The table or view of exactly that schema and name."""
    rows = connection.execute(_FOUND + " AND c.relname = %s AND n.nspname = %s", [name, schema]).fetchall()
    return next(iter(_relations(connection, rows)), None)


def read_relations(connection: Connection, oids: list[int]) -> dict[int, Relation]:
    """The relations of some oids as they are now; those that were dropped are missing."""
    rows = connection.execute(_FOUND + " AND c.oid = ANY(%s)", [oids]).fetchall()
    return {r.oid: r for r in _relations(connection, rows)}


def _relations(connection: Connection, rows: list[tuple[Any, ...]]) -> list[Relation]:
    oids = [row[0] for row in rows]
    columns: dict[int, list[PgColumn]] = {}
    for (
        oid,
        number,
        name,
        type_,
        base,
        base_oid,
        kind,
        element,
        element_kind,
        not_null,
        generated,
        loose_collation,
    ) in connection.execute(_COLUMNS, [oids]):
        columns.setdefault(oid, []).append(
            PgColumn(
                number, name, type_, base, base_oid, kind, element, element_kind, not_null, generated, loose_collation
            )
        )  # fmt: skip
    keys = {oid: tuple(names) for oid, names in connection.execute(_KEYS, [oids])}
    leaves: dict[int, list[Leaf]] = {}
    for top, *leaf in connection.execute(_LEAVES, [oids]):
        leaves.setdefault(top, []).append(Leaf(*leaf))
    return [
        Relation(
            oid=oid,
            schema=schema,
            name=name,
            kind=RelationKind(kind),
            owner=owner,
            columns=tuple(columns.get(oid, ())),
            key=keys.get(oid, ()),
            leaves=tuple(leaves.get(oid, ())),
            has_row_security=row_security,
            view_text=text,
        )
        for oid, schema, name, kind, owner, row_security, text in rows
    ]
