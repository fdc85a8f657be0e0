"""The stream tables that wait for a suspended or failed one, as users see them."""

from __future__ import annotations

from dataclasses import replace

from millstream.catalog import Catalog
from millstream.reasons import Reason
from millstream.results import StreamTableStatus
from millstream.scheduler.waits import STOPPED, waits_until_resumed
from millstream.service.replacing import dag_of


def with_waits(catalog: Catalog) -> list[StreamTableStatus]:
    """One line per stream table, with the table that it waits for."""
    rows = list(catalog.statuses())
    statuses = {row.name: row.status for row in rows}
    if not any(status in STOPPED for status in statuses.values()):  # the graph costs more to read than the rest
        return rows
    waits = waits_until_resumed(dag_of(catalog), statuses)
    return [replace(row, waits_for=waits.get(row.name)) for row in rows]


def waits_of(catalog: Catalog, name: str) -> tuple[str, ...]:
    """The reason why a stream table is not refreshed automatically, if it waits for another one."""
    found = next((row for row in with_waits(catalog) if row.name == name), None)
    return (f"{Reason.WAITS}: for {found.waits_for}",) if found is not None and found.waits_for else ()
