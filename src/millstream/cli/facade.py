"""The part of the service facade that the commands call, as a protocol, and the one place that opens a lake."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import threading
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path

    from millstream.events import Event
    from millstream.results import (
        CdcHealth,
        DaemonStatus,
        Explanation,
        MaintenanceResult,
        RefreshOutcome,
        RefreshRecord,
        RefreshResult,
        RefreshStats,
        SlotHealth,
        SourceStatus,
        StreamTableStatus,
        VerifyResult,
        WaitResult,
    )
    from millstream.service.daemon.loop import Activity

ProgressHook = Callable[[str], None]


class Frame(Protocol):
    """The part of a Spark DataFrame that printing needs."""

    @property
    def columns(self) -> list[str]: ...

    def take(self, num: int) -> list[Any]: ...

    def collect(self) -> list[Any]: ...


class Graph(Protocol):
    """The dependency graph: names in dependency order, and pairs (table, dependent)."""

    @property
    def nodes(self) -> Sequence[str]: ...

    @property
    def edges(self) -> Sequence[tuple[str, str]]: ...

    @property
    def stream_tables(self) -> Collection[str]: ...

    @property
    def cycles(self) -> Sequence[Collection[str]]: ...

    def mermaid(self) -> str: ...

    def dot(self) -> str: ...


class Facade(Protocol):
    """An open lake, as `millstream.connect` returns it."""

    def sql(self, text: str) -> Frame: ...

    def create_stream_table(
        self,
        name: str,
        query: str,
        schedule: str | None = "1m",
        refresh_mode: str = "AUTO",
        initialize: bool = True,
        dialect: str | None = None,
        *,
        serve_to: str | None = None,
        user_triggers: str | None = None,
        owner: str | None = None,
        grants: Sequence[str] = (),
    ) -> object: ...

    def serve_stream_table(
        self,
        name: str,
        to: str,
        *,
        user_triggers: str | None = None,
        owner: str | None = None,
        grants: Sequence[str] = (),
    ) -> object: ...

    def stop_serving(self, name: str, *, cascade: bool = False, keep_table: bool = False) -> object: ...

    def alter_stream_table(
        self,
        name: str,
        *,
        query: str | None = None,
        schedule: str | None = None,
        refresh_mode: str | None = None,
        status: str | None = None,
        dialect: str | None = None,
    ) -> object: ...

    def drop_stream_table(self, name: str, *, cascade: bool = False) -> object: ...

    def refresh_stream_table(self, name: str, *, mode: str | None = None) -> RefreshResult: ...

    def refresh_stream_tables(
        self, names: Sequence[str] | None = None, *, mode: str | None = None
    ) -> Sequence[RefreshOutcome]: ...

    def wait_for(
        self,
        name: str,
        after: str | int | Mapping[str, str | int] | None = None,
        *,
        timeout: float | None = None,
    ) -> WaitResult: ...

    def cancel(self, name: str) -> bool: ...

    def run(
        self,
        stop: threading.Event | None = None,
        *,
        on_activity: Callable[[Activity], None] = ...,
        on_standby: Callable[[], None] = ...,
        reload: threading.Event | None = None,
    ) -> object: ...

    def pause(self) -> object: ...

    def resume(self) -> object: ...

    def daemon_status(self) -> DaemonStatus: ...

    def maintain(self, *, seconds: float | None = None, dry_run: bool = False) -> Sequence[MaintenanceResult]: ...

    def status(self) -> Sequence[StreamTableStatus]: ...

    def refresh_stats(self) -> Sequence[RefreshStats]: ...

    def refresh_history(self, name: str | None = None, limit: int = 20) -> Sequence[RefreshRecord]: ...

    def events(
        self,
        *,
        after_id: int | None = None,
        since: datetime | None = None,
        names: Sequence[str] = (),
        limit: int | None = 100,
    ) -> Sequence[Event]: ...

    def explain(self, name: str) -> Explanation: ...

    def validate(self, query: str, dialect: str | None = None) -> Explanation: ...

    def verify(self, name: str, *, against: str | None = None) -> VerifyResult: ...

    def dag(self) -> Graph: ...

    def attach(self, name: str, url: str, *, cdc: str = "auto", numeric: Mapping[str, str] | None = None) -> object: ...

    def detach(self, name: str, *, cascade: bool = False, forget: bool = False) -> object: ...

    def detach_script(self, name: str) -> str: ...

    def sources(self) -> Sequence[SourceStatus]: ...

    def check_cdc_health(self) -> Sequence[CdcHealth]: ...

    def slot_health(self) -> Sequence[SlotHealth]: ...


def connect(
    lake: Path, config: Path | None, progress: ProgressHook, *, report: ProgressHook, alone: bool = False
) -> AbstractContextManager[Facade]:
    """Open a lake, by its running process if there is one that can be used.

    The service, and with it pyspark, is imported only where there is none: `--help` must not wait for it, and a refresh
    by a running process takes no longer than the start of Python.

    Args:
        report: called with the reason why this process works alone.
        alone: whether it should, although another one is running.
    """
    from millstream import __version__
    from millstream.remote.client import AloneError, dial

    try:
        if not alone:
            return cast("AbstractContextManager[Facade]", dial(lake, config, __version__, progress))
    except AloneError as reason:
        report(f"works alone: {reason}")
    opened = importlib.import_module("millstream").connect(lake, config=config, progress=progress)
    return cast("AbstractContextManager[Facade]", opened)
