"""The health of capture, queried from the attached databases without Spark.

If a database does not answer, its rows report that; the others are reported as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase
from millstream.errors import MillstreamError
from millstream.postgres.connection import Connection
from millstream.postgres.driver import psycopg
from millstream.postgres.pool import ConnectionPool
from millstream.results import CdcHealth, SlotHealth
from millstream.sources.postgres.server.health import check_cdc_health, slot_health, unknown_health, unknown_slot
from millstream.sources.postgres.wal.slot import Slot, slot_of

Row = TypeVar("Row")
_Question = Callable[[Connection, Slot, AttachedDatabase, Sequence[tuple[int, str]]], list[Row]]
_Unanswered = Callable[[Slot, AttachedDatabase, Sequence[tuple[int, str]]], list[Row]]


def slots_of(catalog: Catalog, connections: ConnectionPool) -> list[SlotHealth]:
    """One row per replication slot, with the tables whose changes are read from it."""
    if not catalog.databases():
        return []

    return _asked(
        catalog,
        connections,
        lambda connection, slot, item, sources: slot_health(connection, slot, item.mode, sources),
        lambda slot, item, sources: unknown_slot(slot, item.mode, sources),
    )


def captures_of(catalog: Catalog, connections: ConnectionPool, lag_threshold_bytes: int) -> list[CdcHealth]:
    """One row per captured table, with its problems."""
    if not catalog.databases():
        return []

    return _asked(
        catalog,
        connections,
        lambda connection, slot, item, sources: check_cdc_health(
            connection, item.name, slot, item.mode, sources, lag_threshold_bytes, item.state.buffer_schema
        ),
        lambda slot, item, sources: unknown_health(item.name, slot, item.mode, sources),
    )


def _asked(
    catalog: Catalog, connections: ConnectionPool, question: _Question[Row], unanswered: _Unanswered[Row]
) -> list[Row]:

    def ask(database: AttachedDatabase) -> list[Row]:
        sources = [(c.oid, f"{c.schema}.{c.table}") for c in catalog.captures(database.name)]
        slot = slot_of(catalog.lake_id(), database.name)
        try:
            with connections.visiting(database) as connection:
                return question(connection, slot, database, sources)
        except (MillstreamError, psycopg.OperationalError):
            return unanswered(slot, database, sources)

    return [row for database in catalog.databases() for row in ask(database)]
