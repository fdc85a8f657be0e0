"""The events of refreshes: what a pass has done, for those who watch the lake."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from millstream.catalog import Catalog
from millstream.errors import MillstreamError
from millstream.events import Event, EventName
from millstream.naming import TableName
from millstream.passes.pass_request import Outcome
from millstream.results import Action, InitiatedBy


def record_refreshes(
    catalog: Catalog, outcomes: Mapping[str, Outcome], initiated_by: InitiatedBy, now: datetime
) -> None:
    """Record what a pass has done; a refresh that found nothing to do is no event."""
    events: list[Event] = []
    for name, outcome in outcomes.items():
        if (error := outcome.error or outcome.unserved) is not None:
            events.append(_failed(catalog, TableName.parse(name), error, initiated_by, now))
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
) -> Event:
    table = catalog.find(name)
    return Event.of(
        EventName.REFRESH_FAILED,
        now,
        name,
        initiated_by=initiated_by,
        error_code=str(error.code),
        error_message=error.message,
        consecutive_errors=table.consecutive_errors if table is not None else None,
    )
