"""Events in the catalog: kept in order, chosen, and pruned."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from kits.catalog import T0, Clock
from millstream.catalog import Catalog
from millstream.events import Event, EventName
from millstream.naming import TableName

TOTALS = TableName.parse("reports.totals")


def failed(time: datetime = T0, message: str = "it failed") -> Event:
    return Event.of(EventName.REFRESH_FAILED, time, TOTALS, error_code="REFRESH_FAILED", error_message=message)


def stale(time: datetime = T0) -> Event:
    return Event.of(EventName.STALE, time, TOTALS, staleness_secs=130.5, schedule="1m", data_timestamp=T0)


def test_what_is_recorded_is_read(catalog: Catalog) -> None:
    given = [failed(), stale(), Event.of(EventName.TABLE_QUARANTINED, T0, database="shop", source_table="public.t")]
    recorded = catalog.record_events(given)
    assert [e.event_id for e in recorded] == [1, 2, 3]
    assert catalog.events() == recorded
    assert [e.dump() | {"event_id": None} for e in recorded] == [e.dump() for e in given]
    assert catalog.record_events([]) == ()


def test_which_events(catalog: Catalog) -> None:
    for minute in range(6):
        catalog.record_events([(failed if minute % 2 else stale)(T0 + timedelta(minutes=minute))])
    assert [e.event_id for e in catalog.events(limit=2)] == [5, 6], "the last ones, in order"
    assert [e.event_id for e in catalog.events(after_id=2, limit=2)] == [3, 4], "the next ones"
    assert [e.event_id for e in catalog.events(since=T0 + timedelta(minutes=4))] == [5, 6]
    assert [e.event_id for e in catalog.events(names={EventName.STALE})] == [1, 3, 5]
    assert [e.event_id for e in catalog.events(0, T0 + timedelta(minutes=1), {EventName.STALE}, 1)] == [3]
    assert catalog.events(after_id=6) == ()


def test_ids_are_not_used_again(catalog: Catalog, clock: Clock) -> None:
    (first,) = catalog.record_events([stale()])
    assert catalog.prune_events(T0) == 0
    assert catalog.prune_events(T0 + timedelta(seconds=1)) == 1
    (second,) = catalog.record_events([stale()])
    assert first.event_id is not None
    assert catalog.events(after_id=first.event_id) == (second,), "who follows sees it"


def test_any_message_can_be_stored(catalog: Catalog) -> None:
    catalog.record_events([failed(message="\0 \ud800 " + "x" * 100_000)])
    (event,) = catalog.events()
    assert event.fields["error_message"].startswith("\N{REPLACEMENT CHARACTER} ? xxx")
    assert len(event.fields["error_message"]) < 9_000


def test_a_follower_misses_nothing(catalog: Catalog) -> None:
    """Ids become visible in their order, also if several transactions record events."""
    writers = [
        threading.Thread(target=lambda: [catalog.record_events([stale()] * 3) for _ in range(15)]) for _ in range(3)
    ]
    for writer in writers:
        writer.start()
    seen: list[int] = []
    while any(w.is_alive() for w in writers) or catalog.events(after_id=seen[-1] if seen else 0):
        seen += [e.event_id or 0 for e in catalog.events(after_id=seen[-1] if seen else 0, limit=7)]
    assert sorted(seen) == seen
    assert len(seen) == 135
