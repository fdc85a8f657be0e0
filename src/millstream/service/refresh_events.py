"""The events of refreshes: what a pass has done, for those who watch the lake."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from millstream.catalog import Catalog
from millstream.errors import MillstreamError
from millstream.events import Event, EventName
from millstream.naming import TableName
from millstream.passes.pass_request import Outcome
from millstream.results import Action, InitiatedBy, Status


def record_refreshes(
    catalog: Catalog, outcomes: Mapping[str, Outcome], initiated_by: InitiatedBy, now: datetime
) -> None:
    """Record what a pass has done; a refresh that found nothing to do is no event."""
    events: list[Event] = []
    for name, outcome in outcomes.items():
        if (error := outcome.error or outcome.unserved) is not None:
            events += _failed(catalog, TableName.parse(name), error, initiated_by, now)
        elif outcome.result is not None and outcome.result.action is not Action.NO_DATA:
            events.append(_completed(TableName.parse(name), outcome, initiated_by, now))
    catalog.record_events(events)


def _completed(name: TableName, outcome: Outcome, initiated_by: InitiatedBy, now: datetime) -> Event:
    result = outcome.result
    assert result is not None
    return Event.of(
        EventName.REFRESH_COMPLETED,
        now,
        name,
        initiated_by=initiated_by,
        action=result.action,
        duration_ms=round(result.duration_ms, 1),
        rows_inserted=result.rows_inserted,
        rows_updated=result.rows_updated,
        rows_deleted=result.rows_deleted,
        reason=result.reason,
    )


def _failed(
    catalog: Catalog, name: TableName, error: MillstreamError, initiated_by: InitiatedBy, now: datetime
) -> list[Event]:
    """The failure, and that the table is not refreshed automatically any more, if this is so."""
    table = catalog.find(name)
    errors = table.consecutive_errors if table is not None else None
    facts = {"error_code": str(error.code), "error_message": error.message, "consecutive_errors": errors}
    found = [Event.of(EventName.REFRESH_FAILED, now, name, database=None, initiated_by=initiated_by, **facts)]
    if table is not None and table.status is Status.ERROR:
        found.append(Event.of(EventName.AUTO_SUSPENDED, now, name, database=None, **facts))
    return found
