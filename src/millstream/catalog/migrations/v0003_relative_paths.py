"""Paths in the lake become relative to its root.

| column | before | after |
|---|---|---|
| `ms_stages.path` | absolute | relative |
| `ms_captures.path` | absolute | relative |
| `ms_lake_objects.location` | absolute | relative if in the lake |
| `ms_lake_objects.details`: `landing` | absolute | relative |
| `ms_lake_objects.details`: `create` | may have a LOCATION | has none: `location` has the path |
| the same | names the default collation, with which no Delta copy can be created | does not |
| `ms_dependencies.source_id` of a table | absolute | relative if in the lake |
| `ms_dependencies.fingerprint` of a stream table | hashes its public stage's path | hashes that stage's id |
| `ms_intents.plan` | always empty | dropped |

No other column holds a path that millstream reads. The keys of frontiers are names; `definition`, `settings`,
`columns`, `columns_used` and `functions_used` hold names, types, ids and the user's own texts; `position`, `open_tick`
and the `details` of databases, captures, servings and refreshes hold positions, names, ids and figures; errors and
reasons are for people.

A lake that was moved before the upgrade still has paths with its old root. Stages, landed tables and mirrors are always
at fixed places in the lake, so their paths show every root that the lake has had; if there are none, the paths of
managed tables do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_JSON = sa.JSON(none_as_null=True)
_STREAM_TABLES = sa.table("ms_stream_tables", sa.column("id"), sa.column("columns", _JSON))
_STAGES = sa.table("ms_stages", *map(sa.column, ("id", "stream_table_id", "path", "is_public")))
_CAPTURES = sa.table("ms_captures", *map(sa.column, ("id", "path")))
_OBJECTS = sa.table(
    "ms_lake_objects",
    *map(sa.column, ("namespace", "schema_name", "name", "kind", "location")),
    sa.column("details", _JSON),
)
_DEPENDENCIES = sa.table(
    "ms_dependencies",
    *map(sa.column, ("stream_table_id", "source_kind", "source_name", "source_id", "fingerprint")),
)

_OF_STAGE = re.compile(r"(.*)/stream_tables/[^/]+-[0-9a-f]{8}/(?:result|stage_\d+)")
_OF_LANDED = re.compile(r"(.*)/landed/[^/]+")
_OF_MIRROR = re.compile(r"(.*)/mirrors/[^/]+")
_OF_MANAGED = re.compile(r"(.*)/tables/(?:[^/]+\.db/)?[^/]+")
_LOCATION = re.compile(r"^LOCATION '(?:[^'\\]|\\.)*'$\n?", re.MULTILINE)
_DEFAULT_COLLATION = re.compile(r"\b(STRING) COLLATE UTF8_BINARY\b")
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def upgrade(connection: Connection, root: Path | None) -> None:
    """Rewrite the paths. `root` is where the lake is now, if it is known."""
    roots = _roots(connection, root)
    _compare_stages_by_id(connection)
    for row in connection.execute(sa.select(_STAGES)).all():
        _set(connection, _STAGES, _STAGES.c.id == row.id, path=_relative(row.path, roots))
    for row in connection.execute(sa.select(_CAPTURES)).all():
        _set(connection, _CAPTURES, _CAPTURES.c.id == row.id, path=_relative(row.path, roots))
    for row in connection.execute(sa.select(_OBJECTS).where(_OBJECTS.c.kind == "TABLE")).all():
        details = dict(row.details)
        if details.get("landing"):
            details["landing"] = _relative(details["landing"], roots)
        if details.get("create"):
            details["create"] = _DEFAULT_COLLATION.sub(r"\1", _LOCATION.sub("", details["create"]))
        location = None if row.location is None else _relative(row.location, roots)
        _set(
            connection,
            _OBJECTS,
            _same(_OBJECTS, row, "namespace", "schema_name", "name"),
            location=location,
            details=details,
        )
    of_tables = sa.select(_DEPENDENCIES).where(_DEPENDENCIES.c.source_kind == "TABLE")
    for row in connection.execute(of_tables).all():
        key = _same(_DEPENDENCIES, row, "stream_table_id", "source_kind", "source_name")
        _set(connection, _DEPENDENCIES, key, source_id=_relative(row.source_id, roots))
    connection.execute(sa.text("ALTER TABLE ms_intents DROP COLUMN plan"))


def _roots(connection: Connection, root: Path | None) -> list[str]:
    """Every root that the lake has had, longest first: one may be inside another."""
    objects = connection.execute(sa.select(_OBJECTS.c.location, _OBJECTS.c.details)).all()
    found = _matches(_OF_STAGE, connection.execute(sa.select(_STAGES.c.path)).scalars())
    found |= _matches(_OF_MIRROR, connection.execute(sa.select(_CAPTURES.c.path)).scalars())
    found |= _matches(_OF_LANDED, (row.details.get("landing") for row in objects))
    found = found or _matches(_OF_MANAGED, (row.location for row in objects if row.details.get("managed")))
    if root is not None:
        found.add(str(root))
    return sorted(found, key=len, reverse=True)


def _matches(pattern: re.Pattern[str], paths: Iterable[str | None]) -> set[str]:
    return {found[1] for path in paths if path and (found := pattern.fullmatch(path))}


def _relative(path: str, roots: Iterable[str]) -> str:
    for root in roots:
        if path.startswith(f"{root}/"):
            inside = path.removeprefix(f"{root}/")
            return f"./{inside}" if _HAS_SCHEME.match(inside) else inside
    return path


def _compare_stages_by_id(connection: Connection) -> None:
    """Dependents of a stream table record a hash of its public stage; a hash that no longer matched is not changed."""
    columns = {row.id: tuple(map(tuple, row.columns)) for row in connection.execute(sa.select(_STREAM_TABLES))}
    public = connection.execute(sa.select(_STAGES).where(_STAGES.c.is_public == sa.true())).all()
    for stage in public:
        table = stage.stream_table_id
        before, after = (_hash(table, place, str(columns[table])) for place in (stage.path, stage.id))
        c = _DEPENDENCIES.c
        readers = (c.source_kind == "STREAM_TABLE") & (c.source_id == table) & (c.fingerprint == before)
        _set(connection, _DEPENDENCIES, readers, fingerprint=after)


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _same(table: sa.TableClause, row: sa.Row[tuple[object, ...]], *keys: str) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[key] == getattr(row, key) for key in keys))


def _set(connection: Connection, table: sa.TableClause, where: sa.ColumnElement[bool], **values: object) -> None:
    connection.execute(sa.update(table).where(where).values(values))
