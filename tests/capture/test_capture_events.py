"""What happens to captured tables is an event: once, when it happens, and never at a later look."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from kits.capture import Kit
from kits.quarantine import restless
from kits.tick_tables import Owner, both, kit, owner
from millstream import Code, MillstreamError
from millstream.events import Event, EventName
from millstream.reasons import Reason

__all__ = ["both", "kit", "owner", "restless"]
pytestmark = pytest.mark.postgres


def raised(kit: Kit) -> list[tuple[EventName, dict[str, Any]]]:
    """What was raised so far, as names and the fields that have a value."""
    return [(e.event, {k: v for k, v in e.fields.items() if v is not None}) for e in events(kit)]


def events(kit: Kit) -> tuple[Event, ...]:
    return kit.catalog.events(limit=100)


def ticks(kit: Kit, owner: psycopg.Connection[Any], *tables: str) -> None:
    """Tick a few times, each time with something written elsewhere."""
    for _ in range(3):
        owner.execute("UPDATE bag SET v = v")
        try:
            kit.tick(*tables)
        except MillstreamError:
            assert tables


def test_nothing_is_raised_while_nothing_happens(both: Kit, owner: Owner) -> None:
    ticks(both, owner)
    assert raised(both) == []


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("ALTER TABLE t DROP v", "shop.public.t has lost its column v"),
        ("ALTER TABLE t ALTER n TYPE int", "shop.public.t has changed its column n from numeric(10,2) to integer"),
        ("DROP TABLE t", "public.t was dropped or renamed"),
    ],
)
def test_a_table_that_was_altered_or_dropped(both: Kit, owner: Owner, statement: str, says: str) -> None:
    both.read("c", "t", "v", "n")
    owner.execute(statement.encode())
    ticks(both, owner)
    fields = {"source_table": "public.t", "reason": f"{Reason.SOURCE_CHANGED}: {says}"}
    assert raised(both) == [(EventName.REINITIALIZE_NEEDED, fields)] * 2
    assert [(e.stream_table, e.database) for e in events(both)] == [("a", "shop"), ("c", "shop")]


def test_what_no_query_uses_is_no_event(both: Kit, owner: Owner) -> None:
    owner.execute("ALTER TABLE t DROP unused")
    owner.execute("ALTER TABLE t ADD more int")
    ticks(both, owner)
    assert raised(both) == []


def test_a_table_that_comes_back_and_goes_again(both: Kit, owner: Owner) -> None:
    for _ in range(2):
        owner.execute("ALTER TABLE t RENAME TO u")
        ticks(both, owner)
        owner.execute("ALTER TABLE u RENAME TO t")
        ticks(both, owner)
    assert [name for name, _ in raised(both)] == [EventName.REINITIALIZE_NEEDED] * 2


def test_a_quarantined_table(both: Kit, owner: Owner) -> None:
    owner.execute("REVOKE SELECT ON t FROM millstream")
    owner.execute("VACUUM FULL t")
    ticks(both, owner)
    ticks(both, owner, "t")
    [(name, fields)] = raised(both)
    assert name is EventName.TABLE_QUARANTINED
    assert fields["source_table"] == "public.t"
    assert fields["reason"].startswith(f"{Code.PRIVILEGE_MISSING}: ")
    owner.execute("GRANT SELECT ON t TO millstream")
    ticks(both, owner)
    both.assert_exact(owner, "t", "bag")
    owner.execute("REVOKE SELECT ON t FROM millstream")
    owner.execute("VACUUM FULL t")
    ticks(both, owner)
    assert [name for name, _ in raised(both)] == [EventName.TABLE_QUARANTINED] * 2


def test_a_database_that_was_replaced(both: Kit, owner: Owner) -> None:
    known = both.database
    both.catalog.put_database(replace(known, database_oid=known.database_oid + 1))
    ticks(both, owner)
    assert [(name, fields.get("reason", "").partition(":")[0]) for name, fields in raised(both)] == [
        (EventName.REINITIALIZE_NEEDED, Reason.DATABASE_REPLACED)
    ] * 2
    assert events(both)[-1].time - events(both)[0].time < timedelta(seconds=5)
