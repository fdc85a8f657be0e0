"""When stream tables are due, and after which time they are stale, by their schedules and those of their dependents."""

from __future__ import annotations

from datetime import datetime

from millstream.catalog import Catalog
from millstream.naming import TableName
from millstream.results import Status
from millstream.scheduler.schedule import Schedule
from millstream.service.replacing import dag_of
from millstream.service.schedules import schedule_of


def stale_after(catalog: Catalog) -> dict[TableName, float]:
    """After how many seconds each table is stale; only tables whose schedule is a duration."""
    effective = _effective_schedules(catalog)
    return {TableName.parse(name): float(s.seconds) for name, s in effective.items() if s and s.seconds is not None}


def next_due(catalog: Catalog, name: TableName, now: datetime) -> datetime | None:
    """When a table is due next; None if it is suspended, or refreshed only on request."""
    table = catalog.get(name)
    schedule = _effective_schedules(catalog)[str(table.name)]
    if schedule is None or table.status is Status.SUSPENDED:
        return None
    return schedule.next_due(table.data_timestamp, now)


def _effective_schedules(catalog: Catalog) -> dict[str, Schedule | None]:
    """The schedules by name; a CALCULATED one is the tightest of the table's dependents."""
    schedules = {str(t.name): schedule_of(t) for t in catalog.list()}
    return dict(dag_of(catalog).effective_schedules(schedules))
