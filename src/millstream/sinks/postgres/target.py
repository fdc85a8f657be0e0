"""What is served where: the table's name, columns and key, whether its triggers fire, and where its rows come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from millstream.postgres.driver import sql
from millstream.postgres.locked_names import Named
from millstream.sinks.postgres.types import ServedColumn

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_KEY_COLUMNS = 32  # PostgreSQL's limit for an index


class UserTriggers(StrEnum):
    """Whether users' triggers on a served table fire."""

    AUTO = "auto"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A served table as it should be.

    Args:
        table_id: the stream table's id, which identifies the ledger's entry.
        key: columns whose values identify a row, NULLs being equal; empty if there is at most one row, and None for a
            bag of rows. A key with more columns than PostgreSQL allows is treated as None.
        is_key_total: whether the key's columns are never NULL.
        owner: the role that should own the table; by default the one that serves.
        grants: roles that may read it.
    """

    table_id: str
    schema: str
    table: str
    columns: tuple[ServedColumn, ...]
    key: tuple[str, ...] | None = None
    is_key_total: bool = False
    owner: str | None = None
    grants: tuple[str, ...] = ()
    user_triggers: UserTriggers = UserTriggers.AUTO

    def __post_init__(self) -> None:
        if self.key is not None and len(self.key) > _MAX_KEY_COLUMNS:
            object.__setattr__(self, "key", None)
            object.__setattr__(self, "is_key_total", False)

    @property
    def name(self) -> str:
        """Its name for messages."""
        return f"{self.schema}.{self.table}"

    @property
    def relation(self) -> sql.Identifier:
        """Its name in a statement."""
        return sql.Identifier(self.schema, self.table)

    def named(self, oid: int) -> Named:
        """The table of that OID with its name, for statements that name it after it was found."""
        return Named(oid, "r", self.schema, self.table)

    @property
    def is_keyed(self) -> bool:
        """Whether rows can be distinguished by their values."""
        return self.key is not None

    @property
    def has_primary_key(self) -> bool:
        """Whether the key can be declared as a primary key."""
        return bool(self.key) and self.is_key_total

    @property
    def others(self) -> tuple[ServedColumn, ...]:
        """The columns that are not part of the key."""
        return tuple(c for c in self.columns if c.name not in (self.key or ()))

    @property
    def types(self) -> dict[str, str]:
        """PostgreSQL's types of the columns, by column name."""
        return {c.name: c.pg_type for c in self.columns}

    def position(self, name: str) -> int:
        """The position of a column."""
        return [c.name for c in self.columns].index(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Up to where a table is served: a version of the stream table's public stage, and what it stands for.

    Args:
        commit_id: distinguishes the version from the same number in a lake that was restored and then changed.
    """

    lake_id: str
    stream_table: str
    stage_id: str
    version: int
    commit_id: str | None
    refresh_id: int
    data_timestamp: datetime


class Feed(Protocol):
    """Where the rows come from: the stream table's public stage."""

    def commit_id(self, version: int) -> str | None:
        """What distinguishes a version from the same number in a restored lake; None if it is no longer known."""

    def delta(self, after: int) -> pa.Table | Iterable[pa.Table] | str:
        """The change since a version, with `naming.WEIGHT`, a large one in pieces; or why there is none."""

    def contents(self) -> Iterable[pa.Table]:
        """All rows at the current version, in pieces."""


def listed(items: Sequence[sql.Composable]) -> sql.Composed:
    """Items of a statement, separated by commas."""
    return sql.SQL(", ").join(items)
