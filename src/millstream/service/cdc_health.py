"""How capture is doing, asked of the attached databases; none of it needs Spark.

A database that cannot be asked says so in its rows, and does not hide the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase
from millstream.errors import MillstreamError
from millstream.results import CdcHealth, SlotHealth
from millstream.service.attaching import BUFFER_SCHEMA

if TYPE_CHECKING:
    from millstream.sources.postgres.connection import Connection
    from millstream.sources.postgres.slot import Slot

Row = TypeVar("Row")
_Question = Callable[["Connection", "Slot", AttachedDatabase, Sequence[tuple[int, str]]], list[Row]]
_Unanswered = Callable[["Slot", AttachedDatabase, Sequence[tuple[int, str]]], list[Row]]


def slots_of(catalog: Catalog) -> list[SlotHealth]:
    """A row per slot, with the tables that are read from it."""
    if not catalog.databases():
        return []
    from millstream.sources.postgres.health import slot_health, unknown_slot

    return _asked(
        catalog,
        lambda connection, slot, item, sources: slot_health(connection, slot, item.mode, sources),
        lambda slot, item, sources: unknown_slot(slot, item.mode, sources),
    )


def captures_of(catalog: Catalog, lag_threshold_bytes: int) -> list[CdcHealth]:
    """A row per captured table, with what is wrong."""
    if not catalog.databases():
        return []
    from millstream.sources.postgres.health import check_cdc_health, unknown_health

    return _asked(
        catalog,
        lambda connection, slot, item, sources: check_cdc_health(
            connection, item.name, slot, item.mode, sources, lag_threshold_bytes, str(item.details[BUFFER_SCHEMA])
        ),
        lambda slot, item, sources: unknown_health(item.name, slot, item.mode, sources),
    )


def _asked(catalog: Catalog, question: _Question[Row], unanswered: _Unanswered[Row]) -> list[Row]:
    from psycopg import OperationalError

    from millstream.sources.postgres.address import Address
    from millstream.sources.postgres.connection import connect
    from millstream.sources.postgres.slot import slot_of

    def ask(database: AttachedDatabase) -> list[Row]:
        sources = [(c.oid, f"{c.schema}.{c.table}") for c in catalog.captures(database.name)]
        slot = slot_of(catalog.lake_id(), database.name)
        try:
            with connect(Address(database.address)) as connection:
                return question(connection, slot, database, sources)
        except (MillstreamError, OperationalError):
            return unanswered(slot, database, sources)

    return [row for database in catalog.databases() for row in ask(database)]
