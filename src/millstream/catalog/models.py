"""The catalog's records: frozen, and checked on creation."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from millstream.catalog.definition_body import DefinitionBody
from millstream.catalog.object_details import ObjectDetails
from millstream.catalog.refresh_details import RefreshDetails
from millstream.results import Action, InitiatedBy, RefreshMode, RefreshRecord, RefreshStatus, Status

if TYPE_CHECKING:
    from millstream.catalog.attached import Serving
    from millstream.naming import TableName

Frontier = Mapping[str, int]
"""The version of each input, by its name."""


def new_id() -> str:
    """A fresh id for a stream table or a stage."""
    return str(uuid.uuid4())


class SourceKind(StrEnum):
    """What a stream table reads."""

    TABLE = "TABLE"
    STREAM_TABLE = "STREAM_TABLE"
    VIEW = "VIEW"
    FUNCTION = "FUNCTION"


class ObjectKind(StrEnum):
    """The kinds of objects in a lake, apart from stream tables."""

    TABLE = "TABLE"
    VIEW = "VIEW"
    FUNCTION = "FUNCTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A source that a stream table reads. `source_id` is a stream table's id, or else the location of the source."""

    kind: SourceKind
    name: str
    source_id: str
    columns_used: tuple[str, ...] = ()
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stored Delta table of a stream table; `id` is the application id of its Delta transactions."""

    id: str
    ordinal: int
    path: str
    is_public: bool
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a stream table computes: the user's text, its compiled form, and its dependencies.

    `settings` holds the session settings that are part of the query's meaning.
    """

    original_query: str
    dialect: str
    body: DefinitionBody
    settings: Mapping[str, Any]
    columns: tuple[tuple[str, str], ...]
    dependencies: tuple[Dependency, ...]
    functions_used: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        keys = [(d.kind, d.name) for d in self.dependencies]
        if len(set(keys)) != len(keys):
            raise ValueError(f"a dependency is given twice: {keys}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStreamTable:
    """What `Catalog.create_stream_table` needs; the caller chooses the ids and names directories after them."""

    id: str
    name: TableName
    schedule: str
    refresh_mode: RefreshMode
    definition: Definition
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        check_stages(self.stages)


def check_stages(stages: tuple[Stage, ...]) -> None:
    """Refuse stages that are not numbered from 0, or that do not include exactly one public stage."""
    if [s.ordinal for s in stages] != list(range(len(stages))):
        raise ValueError("stages must be given in order, numbered from 0")
    if sum(s.is_public for s in stages) != 1:
        raise ValueError("a stream table has exactly one public stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTable:
    """A stream table as the catalog knows it, read in one snapshot."""

    id: str
    name: TableName
    schedule: str
    refresh_mode: RefreshMode
    status: Status
    status_reason: str | None
    is_populated: bool
    data_timestamp: datetime | None
    frontier: Frontier
    base_frontier: Frontier
    last_refresh_at: datetime | None
    consecutive_errors: int
    needs_reinit: bool
    reinit_reason: str | None
    definition: Definition
    definition_version: int
    created_at: datetime
    updated_at: datetime
    stages: tuple[Stage, ...]
    open_refresh_id: int | None
    """The refresh whose intent is still recorded: it is running, or was interrupted and must be recovered."""

    @property
    def public_stage(self) -> Stage:
        """The stage that users read."""
        return next(s for s in self.stages if s.is_public)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshStart:
    """What `Catalog.begin_refresh` needs. `floor` is the highest transaction number in the table's storage."""

    table_id: str
    action: Action
    initiated_by: InitiatedBy
    data_timestamp: datetime
    old_frontier: Frontier
    new_frontier: Frontier
    base_frontier: Frontier
    reason: str | None = None
    floor: int = 0
    freshness_deadline: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A refresh that was begun: what it will commit, for recovery after a crash."""

    table_id: str
    refresh_id: int
    action: Action
    data_timestamp: datetime
    old_frontier: Frontier
    new_frontier: Frontier
    base_frontier: Frontier
    reinit_mark: int
    """How often the table had been marked for reinitialisation: a later mark remains after this refresh."""
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshOutcome:
    """What `Catalog.complete_refresh` records; `action` and `reason` only if they differ from the plan.

    `reinit_reason` says why the next refresh must reinitialise, if what was committed cannot be maintained.
    """

    stage_versions: Mapping[str, int]
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    action: Action | None = None
    reason: str | None = None
    reinit_reason: str | None = None
    duration_ms: float | None = None
    details: RefreshDetails | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of a new definition's stages, before the definition takes effect: its intent was never recorded."""

    intent: Intent
    initiated_by: InitiatedBy
    reason: str
    outcome: RefreshOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDefinition:
    """What `Catalog.replace_stream_table` needs. None changes nothing.

    Args:
        stages: new stages, which no process has read yet, at the versions they were loaded to.
        load: the load that filled them; None if the stream table was never refreshed.
        is_altered: the user altered the table itself, not one of its sources: its dependents must reinitialise.
        serving: where it is served from now on.
        cycle: the ids of the stream tables, itself included, that it may read in a cycle.
    """

    table_id: str
    name: TableName
    definition: Definition
    stages: tuple[Stage, ...]
    load: Load | None
    cycle: frozenset[str] = frozenset()
    is_altered: bool = True
    refresh_mode: RefreshMode | None = None
    schedule: str | None = None
    status: Status | None = None
    serving: Serving | None = None

    def __post_init__(self) -> None:
        check_stages(self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoData:
    """What `Catalog.record_no_data` needs. Frontiers advance although nothing was computed."""

    table_id: str
    initiated_by: InitiatedBy
    data_timestamp: datetime
    frontier: Frontier
    base_frontier: Frontier
    started_at: datetime
    reason: str | None = None
    freshness_deadline: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """One row of the refresh history."""

    refresh_id: int
    table_id: str
    table_name: TableName
    data_timestamp: datetime | None
    start_time: datetime
    end_time: datetime | None
    action: Action | None
    status: RefreshStatus
    initiated_by: InitiatedBy
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    duration_ms: float | None
    reason: str | None
    error_code: str | None
    error_message: str | None
    freshness_deadline: datetime | None
    repeats: int
    details: RefreshDetails | None

    def as_record(self) -> RefreshRecord:
        """The row as the public API shows it."""
        return RefreshRecord(
            refresh_id=self.refresh_id,
            name=str(self.table_name),
            data_timestamp=self.data_timestamp,
            start_time=self.start_time,
            end_time=self.end_time,
            action=self.action,
            status=self.status,
            initiated_by=self.initiated_by,
            rows_inserted=self.rows_inserted,
            rows_updated=self.rows_updated,
            rows_deleted=self.rows_deleted,
            duration_ms=self.duration_ms,
            reason=self.reason,
            error_message=self.error_message,
            freshness_deadline=self.freshness_deadline,
            repeats=self.repeats,
            details={} if self.details is None else self.details.dump(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeObject:
    """A table (by location and provider), view or SQL function (by its text) of the lake."""

    kind: ObjectKind
    name: TableName
    location: str | None = None
    provider: str | None = None
    text: str | None = None
    fingerprint: str = ""
    details: ObjectDetails = field(default_factory=ObjectDetails)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    """The catalog sets both times: values from a caller are not stored."""
