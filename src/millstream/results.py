"""The frozen records the public calls return; columns and names follow the specification's functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from millstream.errors import MillstreamError


class RefreshMode(StrEnum):
    """How a stream table is kept up to date."""

    AUTO = "AUTO"
    DIFFERENTIAL = "DIFFERENTIAL"
    DIFFERENTIAL_STRICT = "DIFFERENTIAL STRICT"
    FULL = "FULL"


class Status(StrEnum):
    """The state of a stream table."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    SUSPENDED = "SUSPENDED"
    ERROR = "ERROR"


class Action(StrEnum):
    """What a refresh did."""

    NO_DATA = "NO_DATA"
    APPEND_ONLY = "APPEND_ONLY"
    DIFFERENTIAL = "DIFFERENTIAL"
    FULL = "FULL"
    REINITIALIZE = "REINITIALIZE"
    SKIP = "SKIP"


class RefreshStatus(StrEnum):
    """How a refresh ended."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class InitiatedBy(StrEnum):
    """What initiated a refresh."""

    INITIAL = "INITIAL"
    MANUAL = "MANUAL"
    SCHEDULER = "SCHEDULER"


class Portion(str):
    """A progress text with the share of the work that is done."""

    __slots__ = ("share",)
    share: float

    @classmethod
    def of(cls, text: str, done: int, expected: int) -> Portion:
        """A text with its share; more may be done than was expected."""
        portion = cls(text)
        portion.share = min(done / max(expected, 1), 1.0)
        return portion


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What one refresh did. `frontier` maps each base table to the version the contents now reflect."""

    action: Action
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    duration_ms: float
    reason: str
    frontier: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RefreshOutcome:
    """How a stream table fared in `refresh_stream_tables`: its result, its error, or the stream table it waits for.

    A table that was refreshed and could not be served has both a result and an error.
    """

    name: str
    result: RefreshResult | None = None
    error: MillstreamError | None = None
    waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """Which process refreshes the lake by itself, and when it last looked for work.

    `leader` is `process id@host`, None if no process does; one that was killed is shown until another takes over.
    """

    version: str
    leader: str | None
    leader_version: str | None
    since: datetime | None
    woke_at: datetime | None
    is_paused: bool


@dataclass(frozen=True, slots=True)
class StreamTableStatus:
    """One row of `status()`."""

    name: str
    status: Status
    refresh_mode: RefreshMode
    is_populated: bool
    consecutive_errors: int
    schedule: str
    data_timestamp: datetime | None
    staleness: float | None
    waits_for: str | None = None
    """The suspended or failed stream table because of which it is not refreshed automatically."""
    cycle: tuple[str, ...] = ()
    """The stream tables that it reads in a cycle, itself included; they are refreshed together."""


@dataclass(frozen=True, slots=True)
class RefreshStats:
    """One row of `refresh_stats()`."""

    name: str
    schema: str
    status: Status
    refresh_mode: RefreshMode
    is_populated: bool
    total_refreshes: int
    successful_refreshes: int
    failed_refreshes: int
    total_rows_inserted: int
    total_rows_updated: int
    total_rows_deleted: int
    avg_duration_ms: float | None
    last_refresh_action: Action | None
    last_refresh_status: RefreshStatus | None
    last_refresh_at: datetime | None
    staleness_secs: float | None
    stale: bool | None
    """None for a stream table without a duration to be stale after: its schedule is a cron expression."""


@dataclass(frozen=True, slots=True)
class RefreshRecord:
    """One row of `refresh_history()`.

    Args:
        freshness_deadline: when it had to be finished; None if it was not due at a time.
        repeats: for how many refreshes in a row it stands: those by the scheduler that find nothing to do share a row,
            whose `start_time` is of the first of them and everything else of the last.
        details: the planner's inputs and what the refresh cost: changed rows, rows read, Spark jobs, milliseconds per
            step.
    """

    refresh_id: int
    name: str
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
    error_message: str | None
    details: Mapping[str, object] = field(default_factory=dict)
    freshness_deadline: datetime | None = None
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One row of `sources()`: a captured table of an attached database, or a database from which nothing is captured.

    Args:
        cdc: how changes should be captured: `auto`, `trigger` or `wal`; `mode` is how they are captured.
        position: up to where the table was read: a snapshot of the database, or a place in its WAL.
        staleness: seconds since the table had no unread changes; 0 while the database reports that it has none.
        buffered_rows: changes that wait in the database; None if that is not known.
        readers: the stream tables that read it directly.
        hindrance: why triggers capture it although `cdc` allows the WAL.
        state: of the table: `FOLLOWED` if it is brought forward with the others of its database; `LOADING`; `BEHIND`
            them, until its problem is solved or it is compared with its mirror; `STALE`, until its dependents have
            adapted to its new columns; `MISSING`. None if nothing is captured.
        reason: why it is not `FOLLOWED`.
        numeric: the ranges declared for `numeric` columns: of the table, or of all tables if nothing is captured.
    """

    name: str
    kind: str
    address: str
    cdc: str
    mode: str
    table: str | None
    columns: tuple[str, ...]
    position: str | None
    staleness: float | None
    buffered_rows: int | None
    readers: tuple[str, ...]
    hindrance: str | None = None
    state: str | None = None
    reason: str | None = None
    numeric: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotHealth:
    """One row of `slot_health()`: the replication slot of an attached database, and the tables that are read from it.

    Args:
        retained_wal_bytes: how much WAL the server keeps for it.
        wal_status: `reserved`, `extended`, `unreserved`, `lost`; `missing` if there should be a slot but is none;
            `unreachable` if its database cannot be reached.
        safe_wal_bytes: how much more can be written before the slot is lost; None if there is no limit.
    """

    slot_name: str
    source_relids: tuple[int, ...]
    sources: tuple[str, ...]
    active: bool
    retained_wal_bytes: int | None
    wal_status: str | None
    restart_lsn: str | None
    confirmed_lsn: str | None
    safe_wal_bytes: int | None
    inactive_since: datetime | None
    invalidation_reason: str | None


@dataclass(frozen=True, slots=True)
class CdcHealth:
    """One row of `check_cdc_health()`: a captured table.

    Args:
        database: the name it is attached under.
        cdc_mode: `TRIGGER`, `TRANSITIONING` or `WAL`.
        slot_name, lag_bytes, confirmed_lsn: of its database's slot; None while triggers capture.
        alert: what is wrong, e.g. `slot_lag_exceeds_threshold`, `replication_slot_missing`, `database_unreachable`,
            `writes_refused`, `capture_triggers_disabled`, `replica_sessions_not_captured`; None if nothing is.
    """

    database: str
    source_relid: int
    source_table: str
    cdc_mode: str
    slot_name: str | None
    lag_bytes: int | None
    confirmed_lsn: str | None
    alert: str | None


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """The dependency graph, as a running process draws it for its clients."""

    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    stream_tables: frozenset[str]
    cycles: tuple[frozenset[str], ...]
    mermaid_text: str
    dot_text: str

    def mermaid(self) -> str:
        """The graph in Mermaid's language."""
        return self.mermaid_text

    def dot(self) -> str:
        """The graph in Graphviz's language."""
        return self.dot_text


@dataclass(frozen=True, slots=True)
class WaitResult:
    """What `wait_for` waited for: the stream table, how long, and the time of the state that it shows now."""

    name: str
    waited_ms: float
    data_timestamp: datetime


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Whether the contents equal the query at the frontier: rows missing from, and extra in, the stream table."""

    ok: bool
    missing: int
    extra: int


class MaintenanceKind(StrEnum):
    """What maintenance does to a lake."""

    VACUUM = "VACUUM"
    """Delete data files, change files and deletion vectors that no version in use needs."""
    CHECKPOINT = "CHECKPOINT"
    """Summarise many commits of a log in one file."""
    LOG = "LOG"
    """Delete commits and checkpoints that no version in use needs."""
    COMPACT = "COMPACT"
    """Rewrite small files and files with many deleted rows."""
    HISTORY = "HISTORY"
    """Delete old rows of the refresh history."""
    SWEEP = "SWEEP"
    """Delete stored tables that a crash has orphaned."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """One bite of maintenance: what it was done to, and how many files and bytes that had before and has after it.

    VACUUM and COMPACT count the files of a table, CHECKPOINT and LOG those of its log, SWEEP directories, and HISTORY
    rows. After a dry run, `files_after` and `bytes_after` are estimates.
    """

    kind: MaintenanceKind
    name: str
    """The stream table, with the number of the stage if it is hidden; the captured table; or the source."""
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    duration_ms: float = 0.0
    skipped: str | None = None
    """Why nothing was done; None if it was done."""


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """One line of an explanation: an operator, how it is maintained, and when it is recomputed instead."""

    depth: int
    operator: str
    strategy: str
    falls_back: str = ""

    def __str__(self) -> str:
        special = f"; recomputed: {self.falls_back}" if self.falls_back and not self.is_always_differential else ""
        return f"{'  ' * self.depth}{self.operator}  [{self.strategy}{special}]"

    @property
    def is_always_differential(self) -> bool:
        """Whether its change is never computed by recomputing all of it."""
        return self.falls_back.startswith("never")


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a query is maintained. `steps` are the named queries of a refresh, exactly as Spark runs them."""

    name: str | None
    refresh_mode: RefreshMode
    supported: bool
    operators: tuple[OperatorPlan, ...]
    steps: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    fallbacks: tuple[tuple[str, str], ...] = ()
    """The codes and meanings of the reasons for which a refresh recomputes the whole query instead."""

    def __str__(self) -> str:
        lines = [str(o) for o in self.operators]
        lines += ["", *(f"-- {reason}" for reason in self.reasons)] if self.reasons else []
        for name, sql in self.steps:
            lines += ["", f"-- {name}", sql]
        return "\n".join(lines)
