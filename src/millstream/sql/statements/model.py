"""The kinds of statements: millstream's own, and plain Spark statements with the objects they write."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from millstream.errors import Position
from millstream.naming import DEFAULT_SCHEMA, TableName

SESSION_CATALOG = "spark_catalog"


@dataclass(frozen=True, slots=True)
class ServeClause:
    """SERVE TO: the table and the options; options that were not given are None or empty."""

    to: str
    owner: str | None = None
    grants: tuple[str, ...] = ()
    user_triggers: str | None = None


@dataclass(frozen=True, slots=True)
class CreateStreamTable:
    """CREATE STREAM TABLE. `text[query_offset:]` starts with `query`; clauses that were not given are None."""

    name: TableName
    query: str
    query_offset: int
    schedule: str | None = None
    refresh_mode: str | None = None
    or_replace: bool = False
    if_not_exists: bool = False
    with_no_data: bool = False
    serve: ServeClause | None = None
    dialect: str | None = None


@dataclass(frozen=True, slots=True)
class AlterStreamTable:
    """ALTER STREAM TABLE; exactly one of the changes is given. `cascade` and `keep_table` belong to `stop_serving`."""

    name: TableName
    set_schedule: str | None = None
    set_refresh_mode: str | None = None
    set_status: str | None = None
    query: str | None = None
    query_offset: int = 0
    dialect: str | None = None
    serve: ServeClause | None = None
    stop_serving: bool = False
    cascade: bool = False
    keep_table: bool = False


@dataclass(frozen=True, slots=True)
class DropStreamTable:
    """DROP STREAM TABLE."""

    name: TableName
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class RefreshStreamTable:
    """REFRESH STREAM TABLE."""

    name: TableName
    full: bool = False


@dataclass(frozen=True, slots=True)
class WaitPoint:
    """AFTER: an LSN, the id of a transaction, or a version; of what, if that was given."""

    kind: str
    value: str | int
    of: str | None = None


@dataclass(frozen=True, slots=True)
class WaitForStreamTable:
    """WAIT FOR STREAM TABLE; without points, for all that is committed now."""

    name: TableName
    points: tuple[WaitPoint, ...] = ()
    timeout: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRefresh:
    """CANCEL REFRESH STREAM TABLE."""

    name: TableName


@dataclass(frozen=True, slots=True)
class ShowStreamTables:
    """SHOW STREAM TABLES."""


@dataclass(frozen=True, slots=True)
class DescribeStreamTable:
    """DESCRIBE STREAM TABLE."""

    name: TableName


@dataclass(frozen=True, slots=True)
class ExplainStreamTable:
    """EXPLAIN STREAM TABLE."""

    name: TableName


@dataclass(frozen=True, slots=True)
class AttachDatabase:
    """ATTACH POSTGRES. The address may still contain a password; such an address is refused later.

    `numeric` holds the columns as written, and the ranges declared for them.
    """

    name: str
    address: str = field(repr=False)
    cdc: str = "auto"
    numeric: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DetachDatabase:
    """DETACH."""

    name: str
    cascade: bool = False


class Effect(StrEnum):
    """What a plain statement does to its targets."""

    READ = "READ"  # nothing
    ROWS = "ROWS"  # changes the rows of a table
    DEFINITION = "DEFINITION"  # creates, alters or removes an object
    FILES = "FILES"  # rewrites or removes files; the rows stay
    SESSION = "SESSION"  # changes this session only
    UNKNOWN = "UNKNOWN"  # not known here: Spark runs or refuses it


@dataclass(frozen=True, slots=True)
class Target:
    """The object a plain statement is about: the parts of its name, or a path; `position` is where it is written."""

    parts: tuple[str, ...] = ()
    path: str | None = None
    position: Position | None = field(default=None, compare=False)

    def table_name(self, current_schema: str = DEFAULT_SCHEMA) -> TableName | None:
        """The name within the lake; None for a path or another catalog's table."""
        parts = [p.lower() for p in self.parts]
        if len(parts) == 3 and parts[0] == SESSION_CATALOG:
            parts = parts[1:]
        if not 1 <= len(parts) <= 2:
            return None
        return TableName(parts[0] if len(parts) == 2 else current_schema.lower(), parts[-1])

    def schema_name(self) -> str | None:
        """The name of a schema, if `Other.kind` is SCHEMA; None for another catalog's schema."""
        parts = [p.lower() for p in self.parts]
        if len(parts) == 2 and parts[0] == SESSION_CATALOG:
            parts = parts[1:]
        return parts[0] if len(parts) == 1 else None

    def __str__(self) -> str:
        return self.path if self.path is not None else ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Other:
    """A plain Spark statement: the text as given, and what it does to which objects.

    `verb` is the decisive word (INSERT for `WITH … INSERT INTO …`), `kind` what the targets are: TABLE, VIEW, FUNCTION,
    SCHEMA, VARIABLE or DIRECTORY, SCRIPT for a whole `BEGIN … END`, None if nothing is named. `changes_columns` is set
    for an ALTER TABLE that drops, renames, retypes or replaces columns; `columns` then names them (empty: any column
    may be affected).
    """

    text: str
    verb: str
    kind: str | None = None
    targets: tuple[Target, ...] = ()
    effect: Effect = Effect.UNKNOWN
    temporary: bool = False
    or_replace: bool = False
    if_not_exists: bool = False
    if_exists: bool = False
    cascade: bool = False
    changes_columns: bool = False
    columns: tuple[str, ...] = ()
    renamed_to: Target | None = None


OwnStatement = (
    CreateStreamTable
    | AlterStreamTable
    | DropStreamTable
    | RefreshStreamTable
    | WaitForStreamTable
    | CancelRefresh
    | ShowStreamTables
    | DescribeStreamTable
    | ExplainStreamTable
    | AttachDatabase
    | DetachDatabase
)
Statement = OwnStatement | Other


@dataclass(frozen=True, slots=True)
class StatementText:
    """One statement of a longer text: `whole[offset:offset + len(text)] == text`."""

    text: str
    offset: int
