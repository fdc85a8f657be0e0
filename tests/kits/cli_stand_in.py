"""The facade in memory: it records what was called, and gives prepared answers. And what a call on it gave."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.errors import Code, MillstreamError
from millstream.events import Event, EventName
from millstream.naming import TableName
from millstream.results import (
    Action,
    CdcHealth,
    DaemonStatus,
    Explanation,
    InitiatedBy,
    MaintenanceKind,
    MaintenanceResult,
    OperatorPlan,
    RefreshMode,
    RefreshOutcome,
    RefreshRecord,
    RefreshResult,
    RefreshStats,
    RefreshStatus,
    SlotHealth,
    SourceStatus,
    Status,
    StreamTableStatus,
    VerifyResult,
)

NOON = dt.datetime(2025, 3, 4, 12, 0, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Called:
    """What one call of the command line gave."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Called]


class Frame:
    """A DataFrame that has its rows already."""

    def __init__(self, columns: Sequence[str] = (), rows: Sequence[tuple[Any, ...]] = ()) -> None:
        self.columns = list(columns)
        self.rows = list(rows)

    def take(self, num: int) -> list[Any]:
        return self.rows[:num]

    def collect(self) -> list[Any]:
        return self.rows


class Graph:
    """orders -> totals -> best, and orders -> daily -> best."""

    nodes = ("orders", "daily", "totals", "best")
    edges = (("orders", "totals"), ("orders", "daily"), ("daily", "best"), ("totals", "best"))
    stream_tables = frozenset({"daily", "totals", "best"})
    cycles: tuple[frozenset[str], ...] = ()

    def mermaid(self) -> str:
        return "flowchart LR\n    n0 --> n1\n"

    def dot(self) -> str:
        return "digraph lake {\n}\n"


class StandIn:
    """Three stream tables; `errors` makes calls about a name fail, `frames` answers `sql`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.errors: dict[str, BaseException] = {}
        self.frames: dict[str, Frame] = {}
        self.phases: tuple[str, ...] = ()
        self.happened: list[Event] = []
        self.statuses = dict.fromkeys(("daily", "totals", "best"), Status.ACTIVE)
        self.supported = True
        self.equal = True
        self.progress: Callable[[str], None] = lambda phase: None

    def connect(
        self, lake: object = None, *, config: object = None, progress: Callable[[str], None] | None = None
    ) -> StandIn:
        self.calls.append(("connect", str(lake), None if config is None else str(config)))
        self.progress = progress or self.progress
        return self

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *error: object) -> None:
        self.calls.append(("close",))

    def _record(self, *call: Any) -> None:
        self.calls.append(call)
        for phase in self.phases:
            self.progress(phase)
        error = self.errors.get(call[1] if len(call) > 1 else "")
        if error is not None:
            raise error

    def sql(self, text: str) -> Frame:
        self._record("sql", text)
        return self.frames.get(text, Frame())

    def create_stream_table(self, name: str, query: str, **options: Any) -> None:
        self._record("create", name, query, options)
        self.statuses[name.lower()] = Status.ACTIVE

    def alter_stream_table(self, name: str, **changes: Any) -> None:
        self._record("alter", name, changes)

    def serve_stream_table(self, name: str, to: str, **options: Any) -> None:
        self._record("serve", name, to, options)

    def stop_serving(self, name: str, *, cascade: bool = False, keep_table: bool = False) -> None:
        self._record("stop serving", name, cascade, keep_table)

    def drop_stream_table(self, name: str, *, cascade: bool = False) -> None:
        self._record("drop", name, cascade)
        if name not in self.statuses:
            raise MillstreamError(Code.NOT_A_STREAM_TABLE, f"there is no stream table {name}")

    def refresh_stream_table(self, name: str, *, mode: str | None = None) -> RefreshResult:
        self._record("refresh", name, mode)
        return RefreshResult(Action.DIFFERENTIAL, 1234, 5, 0, 240.0, "3 of 1,000 rows changed", {"orders": 7})

    def refresh_stream_tables(
        self, names: Sequence[str] | None = None, *, mode: str | None = None
    ) -> list[RefreshOutcome]:
        """All at once, as far as the records of calls show: a table that fails does not keep the others from it."""
        outcomes: list[RefreshOutcome] = []
        for name in names if names is not None else [n for n in self.dag().nodes if n in self.statuses]:
            if self.statuses.get(name) is Status.SUSPENDED:
                continue
            try:
                outcomes.append(RefreshOutcome(name, self.refresh_stream_table(name, mode=mode)))
            except MillstreamError as error:
                outcomes.append(RefreshOutcome(name, error=error))
        return outcomes

    def run(self, stop: Any = None, *, on_activity: Any, on_standby: Any, reload: Any = None) -> None:
        self._record("run")
        on_standby()

    def daemon_status(self) -> DaemonStatus:
        return DaemonStatus("0.1.0", "4711@here", "0.1.0", NOON, NOON, is_paused=False)

    def cancel(self, name: str) -> bool:
        self._record("cancel", name)
        return name == "totals"

    def pause(self) -> None:
        self._record("pause")

    def resume(self) -> None:
        self._record("resume")

    def maintain(self, *, seconds: float | None = None, dry_run: bool = False) -> list[MaintenanceResult]:
        self._record("maintain", seconds, dry_run)
        return [
            MaintenanceResult(MaintenanceKind.VACUUM, "totals", 900, 3, 5 << 20, 8192, 120.0),
            MaintenanceResult(MaintenanceKind.COMPACT, "totals", 9, 9, 8192, 8192, 1.0, "the table is being refreshed"),
        ]

    def status(self) -> list[StreamTableStatus]:
        return [
            StreamTableStatus(name, status, RefreshMode.AUTO, True, 0, "1m", NOON, 125.0)
            for name, status in self.statuses.items()
        ]

    def refresh_stats(self) -> list[RefreshStats]:
        done = (Action.NO_DATA, RefreshStatus.COMPLETED, NOON, 3.0, False)
        return [
            RefreshStats("totals", "default", Status.ACTIVE, RefreshMode.FULL, True, 4, 3, 1, 9, 8, 7, 1500.0, *done)
        ]

    def refresh_history(self, name: str | None = None, limit: int = 20) -> list[RefreshRecord]:
        self._record("history", name, limit)
        failed = RefreshRecord(
            12,
            "totals",
            None,
            NOON,
            NOON,
            None,
            RefreshStatus.FAILED,
            InitiatedBy.MANUAL,
            0,
            0,
            0,
            None,
            None,
            "disk full",
        )
        return [failed][:limit]

    def events(
        self,
        *,
        after_id: int | None = None,
        since: dt.datetime | None = None,
        names: Sequence[str] = (),
        limit: int | None = 100,
    ) -> list[Event]:
        self._record("events", after_id, since, tuple(names), limit)
        if after_id is not None and not self.happened:
            raise KeyboardInterrupt
        if after_id is not None:
            return [self.happened.pop(0)]
        failed = Event.of(EventName.REFRESH_FAILED, NOON, TableName.parse("reports.totals"), error_message="disk full")
        return [dataclasses.replace(failed, event_id=7)][:limit]

    def explain(self, name: str) -> Explanation:
        self._record("explain", name)
        return self._explanation(name)

    def validate(self, query: str, dialect: str | None = None) -> Explanation:
        self._record("validate", query, dialect)
        return self._explanation(None)

    def _explanation(self, name: str | None) -> Explanation:
        return Explanation(
            name,
            RefreshMode.AUTO,
            self.supported,
            (
                OperatorPlan(0, "Aggregate(customer)", "algebraic"),
                OperatorPlan(1, "Scan(orders)", "change feed", "never."),
            ),
            (("delta_orders", "SELECT *\nFROM feed"),),
            ("orders has [no] key",),
            (("customer", "string"), ("total", "decimal(20,2)")),
            (("NO_DELTA", "The history is gone."),),
        )

    def verify(self, name: str, *, against: str | None = None) -> VerifyResult:
        self._record("verify", name, against)
        return VerifyResult(True, 0, 0) if self.equal else VerifyResult(False, 2, 1)

    def dag(self) -> Graph:
        return Graph()

    def attach(self, name: str, url: str, *, cdc: str = "auto", numeric: Mapping[str, str] | None = None) -> None:
        self._record("attach", name, url, cdc, numeric)

    def detach(self, name: str, *, cascade: bool = False, forget: bool = False) -> None:
        self._record("detach", name, cascade, forget)

    def detach_script(self, name: str) -> str:
        self._record("script", name)
        return "DROP SCHEMA IF EXISTS x CASCADE;\n"

    def sources(self) -> list[SourceStatus]:
        orders = ("shop.public.orders", ("id", "amount"), "7:9:8", 61.5, 1200, ("best", "totals"), "wal_level")
        return [
            SourceStatus("shop", "postgres", "env:SHOP", "auto", "TRIGGER", *orders),
            SourceStatus("store", "postgres", "service=store", "wal", "TRIGGER", None, (), None, None, None, ()),
        ]

    def check_cdc_health(self) -> list[CdcHealth]:
        return [
            CdcHealth("shop", 7, "public.orders", "WAL", "millstream_shop", 2048, "0/16B3748", None),
            CdcHealth("shop", 8, "public.items", "TRIGGER", None, None, None, "replica_sessions_not_captured"),
        ]

    def slot_health(self) -> list[SlotHealth]:
        since = dt.datetime(2025, 3, 4, 5, 6, tzinfo=dt.UTC)
        state = (False, 4096, "reserved", "0/16B3740", "0/16B3748", None, since, None)
        return [SlotHealth("millstream_shop", (7,), ("public.orders",), *state)]


SAMPLE = Frame(
    ["id", "name", "amount", "at", "raw", "parts"],
    [
        (1, "[bold]x", decimal.Decimal("49.90"), dt.date(2025, 3, 4), b"\x01\xff", {"a": [1, None]}),
        (1000, None, None, None, None, None),
    ],
)
