"""Typed settings: defaults and a `millstream.toml`, in which an unknown name is an error."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from millstream.errors import Code, MillstreamError
from millstream.events import EventName, parse_names

MergeStrategy = Literal["auto", "merge", "delete_insert"]
DirectWay = Literal["auto", "never"]
UserTriggers = Literal["auto", "off", "on"]
ParallelRefresh = Literal["on", "off"]

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,37}")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, with their defaults. `metadata["range"]` bounds numbers, both ends included."""

    # When stream tables are refreshed
    enabled: bool = True
    """Whether `millstream run` refreshes stream tables by their schedules; explicit refreshes always work."""
    scheduler_interval_ms: int = field(default=1_000, metadata={"range": (100, 60_000)})
    """How long a change of a definition or a setting goes unnoticed by `millstream run`, at most."""

    # What a refresh does
    differential_max_change_ratio: float = field(default=0.15, metadata={"range": (0.0, 1.0)})
    """Changed rows / source rows above which AUTO recomputes, from 1,000 changed rows on, until the table's history
    allows a prediction; with 0 it never recomputes because of the cost, with 1 always."""
    merge_strategy: MergeStrategy = "auto"
    """How a delta is applied: `merge` always uses Spark's MERGE; `auto` marks old rows as deleted and appends new ones
    if the table and its storage allow it, and uses MERGE otherwise; `delete_insert` is like `auto`, but updates no row:
    it deletes all affected rows and inserts their new versions, in the same commit."""
    min_schedule_seconds: float = field(default=1.0, metadata={"range": (0.1, 86_400.0)})
    """The shortest duration that a schedule may have."""
    max_consecutive_errors: int = field(default=3, metadata={"range": (1, 100)})
    """Failed refreshes in a row after which a stream table goes to ERROR."""
    refresh_timeout_seconds: float = field(default=0.0, metadata={"range": (0.0, 1_000_000.0)})
    """How long the refresh of one stream table may take, with serving it; then it is stopped and counts as failed. 0
    means no limit. Capture is not included: it is shared by all that read a database."""
    parallel_refresh_mode: ParallelRefresh = "on"
    """Whether stream tables that do not read each other are refreshed side by side."""
    max_concurrent_refreshes: int = field(default=4, metadata={"range": (1, 32)})
    """How many stream tables are refreshed side by side at most; a small machine refreshes as many as it has cores."""
    block_source_ddl: bool = False
    """Refuse DDL that changes columns a stream table reads, instead of reinitialising the stream table."""
    enable_change_data_feed: bool = True
    """Switch on the change data feed of a source that lacks it."""
    allow_circular: bool = False
    """Allow stream tables to read each other in a cycle; without it, a query that closes one is refused."""
    max_recursion: int = field(default=1_000, metadata={"range": (1, 1_000_000)})
    """Rounds after which a WITH RECURSIVE or a cycle of stream tables that has not ended fails the refresh."""
    max_recursion_rows: int = field(default=10_000_000, metadata={"range": (1, 10_000_000_000)})
    """Rows found after which a WITH RECURSIVE or a cycle of stream tables that has not ended fails the refresh."""
    verify_relative_tolerance: float = field(default=1e-9, metadata={"range": (0.0, 1.0)})
    """How far two doubles may differ, relative to the larger, and still count as equal in `verify`."""
    verify_timeout_seconds: int = field(default=3_600, metadata={"range": (0, 1_000_000)})
    """How long PostgreSQL may take to answer a query for `verify`; 0 means no limit."""

    # How changes of PostgreSQL databases are captured
    change_buffer_schema: str = "millstream_changes"
    """The schema that capture creates in an attached database for its objects; databases that are already attached keep
    theirs."""
    wal_transition_timeout: int = field(default=300, metadata={"range": (10, 3600)})
    """Seconds within which the WAL must catch up with the triggers when capture switches to it; otherwise the triggers
    stay."""
    slot_lag_alert_bytes: int = field(default=100 << 20, metadata={"range": (0, 1 << 60)})
    """How many bytes of WAL a slot may lag or retain before `check_cdc_health` and the event `slot_lag_warning` report
    it."""
    buffer_alert_rows: int = field(default=1_000_000, metadata={"range": (1, 1 << 40)})
    """How many changes may wait in a table's buffer before the event `buffer_growth_warning` reports it."""
    source_watch_seconds: int = field(default=10, metadata={"range": (1, 3600)})
    """How often `millstream run` looks at each attached database and at the lake's own sources while no stream table
    that reads them is due; less often while a database cannot be reached."""
    trusted_owners: str = ""
    """Roles of attached databases, separated by commas, whose functions may run with the rights of the reading role:
    PostgreSQL runs functions in a table's indexes, statistics and partition key to plan a query."""

    # How results are served into PostgreSQL databases
    serving_schema: str = "millstream"
    """The schema that serving creates in a database for its ledger."""
    user_triggers: UserTriggers = "auto"
    """Whether users' triggers on served tables fire, unless a table has its own option: `auto` fires them, `off` does
    not, `on` is an old name of `auto`."""

    # Who is alerted
    alert_webhook_url: str | None = None
    """Where events are sent by HTTP POST, as a JSON array; or `env:NAME`, an environment variable that holds the
    URL."""
    alert_command: str | None = None
    """A program and its arguments that is run for events, and reads them from its standard input, one JSON object per
    line. No shell is involved."""
    alert_notify: bool = True
    """Whether events are sent by NOTIFY, on the channel `millstream_alert` of every attached database."""
    alert_events: str = ""
    """The events that are sent, separated by commas; empty for all of them. The catalog keeps all of them."""

    # How Delta tables are accessed
    direct_way: DirectWay = "auto"
    """`never` sends every read and commit through Spark, e.g. where two writers share an S3 bucket."""
    direct_max_rows: int = field(default=50_000, metadata={"range": (0, 10_000_000)})
    """The largest number of changed rows that is read and committed without Spark."""

    # How storage is kept small
    retention_hours: float = field(default=24.0, metadata={"range": (0.0, 87_600.0)})
    """How long maintenance keeps files that no refresh, served table or `verify` needs any more: a query of another
    process may still read them. With 0, such a query may fail."""
    history_retention_days: float = field(default=30.0, metadata={"range": (0.0, 36_500.0)})
    """How long maintenance keeps the rows of the refresh history; the newest row of each stream table always stays."""

    # Where things are
    catalog_url: str | None = None
    """A SQLAlchemy URL of a shared catalog, or `env:NAME`, an environment variable that holds it; by default a SQLite
    file in the lake."""
    allow_network_file_system: bool = False
    """Whether `millstream run` accepts a SQLite catalog on a network file system, whose locks may not work."""
    spark_master: str | None = None
    """A cluster's master; by default Spark runs inside this process."""
    spark_remote: str | None = None
    """A Spark Connect server, `sc://host:port`."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Further settings of the Spark session; they override millstream's own."""
    jars: str | None = None
    """A directory that holds Delta's jars, for machines without a network."""
    time_zone: str = "UTC"
    """The session time zone of queries, and of cron schedules; stored with each stream table when it is created."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for item in dataclasses.fields(self):
            _check(item.name, getattr(self, item.name), hints[item.name], item.metadata.get("range"))
        for name in ("change_buffer_schema", "serving_schema"):
            value = getattr(self, name)
            if not _SCHEMA.fullmatch(value) or value.startswith("pg_"):
                wanted = "a name of lower-case letters, digits and underscores that does not start with pg_"
                raise _invalid(name, value, wanted)
        try:
            parse_names(self.alert_events.split(","))
        except MillstreamError as e:
            raise MillstreamError(Code.SETTING_INVALID, f"alert_events: {e.message}", hint=e.hint) from e

    @property
    def alerted_events(self) -> frozenset[EventName] | None:
        """The events of `alert_events`; None for all of them."""
        return parse_names(self.alert_events.split(",")) or None

    @property
    def trusted_roles(self) -> tuple[str, ...]:
        """The roles of `trusted_owners`."""
        return tuple(name for part in self.trusted_owners.split(",") if (name := part.strip()))

    @property
    def concurrent_refreshes(self) -> int:
        """How many stream tables are refreshed side by side on this machine."""
        if self.parallel_refresh_mode == "off":
            return 1
        return min(self.max_concurrent_refreshes, max(2, os.cpu_count() or 1))

    @classmethod
    def load(cls, path: str | Path) -> Settings:
        """Read the `[millstream]` table of a TOML file; `[spark]` becomes `spark_conf`."""
        try:
            document = tomllib.loads(Path(path).read_text())
        except OSError as e:
            raise MillstreamError(Code.SETTING_INVALID, f"cannot read {path}: {e.strerror}") from e
        except tomllib.TOMLDecodeError as e:
            raise MillstreamError(Code.SETTING_INVALID, f"{path} is not valid TOML: {e}") from e
        _refuse_unknown(document, {"millstream", "spark"}, f"section in {path}")
        values = dict(document.get("millstream", {}))
        if "spark" in document:
            values["spark_conf"] = {k: _spark_text(v) for k, v in _flat(document["spark"])}
        return cls.of(values)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from plain values; an unknown name is an error."""
        _refuse_unknown(values, {f.name for f in dataclasses.fields(cls)}, "setting")
        return cls(**values)


def _check(name: str, value: Any, hint: Any, bounds: tuple[float, float] | None) -> None:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise _invalid(name, value, "one of " + ", ".join(map(str, get_args(hint))))
        return
    if hint is bool and not isinstance(value, bool):
        raise _invalid(name, value, "true or false")
    if hint is str and not isinstance(value, str):
        raise _invalid(name, value, "a string")
    if hint in (int, float):
        if isinstance(value, bool) or not isinstance(value, int if hint is int else (int, float)):
            raise _invalid(name, value, "a whole number" if hint is int else "a number")
        if bounds and not bounds[0] <= value <= bounds[1]:
            raise _invalid(name, value, f"between {bounds[0]} and {bounds[1]}")


def _invalid(name: str, value: object, wanted: str) -> MillstreamError:
    return MillstreamError(Code.SETTING_INVALID, f"{name} = {value!r}", hint=f"it must be {wanted}")


def _refuse_unknown(values: Mapping[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(values) - known)
    if unknown:
        raise MillstreamError(
            Code.SETTING_INVALID,
            f"unknown {what}: {', '.join(unknown)}",
            hint="known names: " + ", ".join(sorted(known)),
        )


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """TOML reads `spark.executor.memory` as nested tables; Spark needs the dotted key."""
    items: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            items += _flat(value, f"{prefix}{key}.")
        else:
            items.append((prefix + key, value))
    return items


def _spark_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
