"""millstream: exact, incrementally maintained SQL queries over Delta and PostgreSQL tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Code, MillstreamError, Position
from millstream.events import Event, EventName
from millstream.results import (
    Action,
    CdcHealth,
    DaemonStatus,
    Explanation,
    MaintenanceKind,
    MaintenanceResult,
    RefreshMode,
    RefreshOutcome,
    RefreshRecord,
    RefreshResult,
    RefreshStats,
    SlotHealth,
    SourceStatus,
    Status,
    StreamTableStatus,
    VerifyResult,
    WaitResult,
)

if TYPE_CHECKING:
    from millstream.service import Millstream, connect

__version__ = "0.1.0"

__all__ = [
    "Action",
    "CdcHealth",
    "Code",
    "DaemonStatus",
    "Event",
    "EventName",
    "Explanation",
    "MaintenanceKind",
    "MaintenanceResult",
    "Millstream",
    "MillstreamError",
    "Position",
    "RefreshMode",
    "RefreshOutcome",
    "RefreshRecord",
    "RefreshResult",
    "RefreshStats",
    "SlotHealth",
    "SourceStatus",
    "Status",
    "StreamTableStatus",
    "VerifyResult",
    "WaitResult",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> object:
    """Load the facade, and with it Spark, only when it is used: `millstream --help` must not wait for it."""
    if name in {"Millstream", "connect"}:
        from millstream import service

        return getattr(service, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
