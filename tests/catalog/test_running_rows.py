"""RUNNING rows of processes that are gone."""

from __future__ import annotations

import sqlalchemy as sa

from kits.catalog import Clock, new_table, start
from millstream.catalog import Catalog
from millstream.results import RefreshStatus


def test_only_rows_without_an_intent_are_resolved(catalog: Catalog, clock: Clock) -> None:
    gone, open_one = (catalog.create_stream_table(new_table(name)) for name in ("gone", "open"))
    catalog.begin_refresh(start(gone))
    intent = catalog.begin_refresh(start(open_one))
    with catalog._database.write() as connection:
        connection.execute(sa.text("DELETE FROM ms_intents WHERE stream_table_id = :id"), {"id": gone.id})
    now = clock.pass_seconds(2)
    assert catalog.resolve_running(now) == 1
    running, failed = catalog.history()
    assert (running.refresh_id, running.status) == (intent.refresh_id, RefreshStatus.RUNNING)
    assert (failed.status, failed.error_code, failed.end_time) == (RefreshStatus.FAILED, "REFRESH_FAILED", now)
    assert failed.error_message == "the process ended during the refresh"
    assert failed.duration_ms == 2000.0
    assert catalog.get(gone.name).consecutive_errors == 0
    assert catalog.resolve_running(now) == 0
