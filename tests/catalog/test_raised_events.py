"""Events that are recorded with the change they follow from: once per occurrence, not with each failure."""

from __future__ import annotations

import pytest

from kits.catalog import T0, new_table, outcome, start
from millstream.catalog import Catalog, StreamTable
from millstream.errors import Code, MillstreamError
from millstream.events import EventName
from millstream.naming import TableName
from millstream.results import InitiatedBy, Status

TOTALS = TableName.parse("totals")
BROKEN = MillstreamError(Code.REFRESH_FAILED, "division by zero")


@pytest.fixture
def table(catalog: Catalog) -> StreamTable:
    return catalog.create_stream_table(new_table())


def raised(catalog: Catalog) -> list[EventName]:
    return [e.event for e in catalog.events(limit=100)]


def fail(catalog: Catalog, table: StreamTable) -> None:
    catalog.fail_refresh(catalog.begin_refresh(start(table)), BROKEN, max_consecutive_errors=2)


def test_a_table_is_suspended_once(catalog: Catalog, table: StreamTable) -> None:
    fail(catalog, table)
    assert raised(catalog) == []
    for _ in range(3):  # refreshes that users request go on failing
        fail(catalog, table)
    [event] = catalog.events(limit=100)
    assert (event.event, event.stream_table) == (EventName.AUTO_SUSPENDED, "totals")
    assert event.fields == {
        "consecutive_errors": 2, "error_code": "REFRESH_FAILED", "error_message": "division by zero"
    }  # fmt: skip
    catalog.complete_refresh(catalog.begin_refresh(start(table)), outcome(table, 4))
    assert catalog.get(TOTALS).status is Status.ACTIVE
    fail(catalog, table)
    fail(catalog, table)
    assert raised(catalog) == [EventName.AUTO_SUSPENDED] * 2


def test_a_refresh_that_fails_before_it_begins(catalog: Catalog, table: StreamTable) -> None:
    for _ in range(3):
        catalog.record_failure(
            table.id, BROKEN, initiated_by=InitiatedBy.SCHEDULER, started_at=T0, max_consecutive_errors=1
        )
        catalog.set_error(table.id, "SOURCE_MISSING: orders is gone")
    assert raised(catalog) == [EventName.AUTO_SUSPENDED]


def test_an_error_that_no_retry_can_fix(catalog: Catalog, table: StreamTable) -> None:
    catalog.set_error(table.id, "SOURCE_MISSING: orders: it is gone")
    [event] = catalog.events(limit=100)
    assert (event.fields["error_code"], event.fields["error_message"]) == ("SOURCE_MISSING", "orders: it is gone")


def test_a_suspended_table_stays_so(catalog: Catalog, table: StreamTable) -> None:
    catalog.alter_stream_table(TOTALS, status=Status.SUSPENDED)
    for _ in range(3):
        catalog.record_failure(
            table.id, BROKEN, initiated_by=InitiatedBy.MANUAL, started_at=T0, max_consecutive_errors=1
        )
    assert raised(catalog) == []


def test_a_table_is_marked_once(catalog: Catalog, table: StreamTable) -> None:
    for reason in ("SOURCE_CHANGED: orders was replaced", "SOURCE_CHANGED: and again"):
        catalog.mark_needs_reinit(table.id, reason)
    [event] = catalog.events(limit=100)
    assert (event.event, event.stream_table) == (EventName.REINITIALIZE_NEEDED, "totals")
    assert event.fields == {"source_table": None, "reason": "SOURCE_CHANGED: orders was replaced"}
