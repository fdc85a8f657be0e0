"""What capture records comes back from the catalog's JSON as it was, and the JSON has the keys it always had."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from millstream.catalog.capture_state import (
    BufferState,
    CaptureState,
    DatabaseState,
    Quarantine,
    RecordedError,
    SeenView,
    SlotNames,
    WalLoss,
    WalState,
)
from millstream.errors import Code, MillstreamError

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
REFUSED = {"code": "PRIVILEGE_MISSING", "message": "no", "hint": None}

# As versions before these classes wrote it.
DATABASE: dict[str, Any] = {
    "buffer_schema": "millstream_changes",
    "role": "capturer",
    "numeric": [["public", "t", "price", "decimal(30,4)"]],
    "views": {"shop.public.v": {"mark": "m", "reading": REFUSED, "naming": None}},
    "wal": {"slot": "s", "publication": "p", "published": {"c1": "f"}},
    "transition": {"slot": "s", "publication": "p", "published": {}, "complete": None},
    "installed": "5:9:7",
    "left": {"slot": "old", "publication": "older"},
    "hindered": "wal_level",
    "leftovers": True,
    "lost": {"at": AT.isoformat(), "times": 2},
    "mark": "5:9:7",
    "started": "2026-01-01",
    "guarded": True,
    "refused_writes": {"public.t": "ALTER TABLE ..."},
}
DATABASE_STATE = DatabaseState(
    buffer_schema="millstream_changes",
    role="capturer",
    numeric=(("public", "t", "price", "decimal(30,4)"),),
    views={"shop.public.v": SeenView(mark="m", reading=RecordedError("PRIVILEGE_MISSING", "no"))},
    wal=WalState("s", "p", {"c1": "f"}),
    transition={"slot": "s", "publication": "p", "published": {}, "complete": None},
    triggers_installed="5:9:7",
    unread_slot=SlotNames("old", "older"),
    hindered="wal_level",
    has_orphans=True,
    lost=WalLoss(AT, 2),
    mark="5:9:7",
    server_started="2026-01-01",
    is_guarded=True,
    refused_writes={"public.t": "ALTER TABLE ..."},
)
BUFFER: dict[str, Any] = {
    "schema": "millstream_changes",
    "columns": ["id", "v"],
    "by_row": True,
    "leaves": [1, 2],
    "is_always": False,
    "state": "t1",
}
CAPTURE: dict[str, Any] = {
    "stale": "has lost its column v",
    "missing": "was dropped",
    "resync": "its rows were rewritten",
    "behind": {"code": "LOCK_TIMEOUT", "message": "busy", "hint": "wait", "until": AT.isoformat()},
    "position": {"lsn": "0/16B", "snapshot": "5:9:7"},
    "reached_at": AT.isoformat(),
    "buffer": {**BUFFER, "made_for": "s2"},
    "whole": True,
    "not_null": ["id"],
}
CAPTURE_STATE = CaptureState(
    stale="has lost its column v",
    missing="was dropped",
    resync="its rows were rewritten",
    quarantine=Quarantine(RecordedError("LOCK_TIMEOUT", "busy", "wait"), AT),
    position={"lsn": "0/16B", "snapshot": "5:9:7"},
    reached_at=AT,
    buffer=BufferState(
        schema="millstream_changes",
        columns=("id", "v"),
        by_row=True,
        leaves=(1, 2),
        is_always=False,
        state="t1",
        made_for="s2",
    ),
    is_whole=True,
    not_null=("id",),
)


def test_all_that_older_versions_wrote_is_loaded() -> None:
    assert DatabaseState.load(DATABASE) == DATABASE_STATE
    assert CaptureState.load(CAPTURE) == CAPTURE_STATE


def test_what_is_dumped_is_what_older_versions_wrote() -> None:
    assert json.loads(json.dumps(DATABASE_STATE.dump())) == DATABASE
    assert json.loads(json.dumps(CAPTURE_STATE.dump())) == CAPTURE


@pytest.mark.parametrize("key", sorted(DATABASE))
def test_a_database_without_one_thing(key: str) -> None:
    stored = {k: v for k, v in DATABASE.items() if k != key}
    assert DatabaseState.load(stored).dump() == stored


@pytest.mark.parametrize("key", sorted(CAPTURE))
def test_a_capture_without_one_thing(key: str) -> None:
    stored = {k: v for k, v in CAPTURE.items() if k != key}
    assert CaptureState.load(stored).dump() == stored


def test_defaults_are_not_written() -> None:
    assert DatabaseState().dump() == CaptureState().dump() == {}
    assert CaptureState.load({"position": None, "reached_at": None, "not_null": []}) == CaptureState()
    assert DatabaseState.load({"guarded": False, "numeric": [], "refused_writes": {}}) == DatabaseState()


def test_a_buffer_made_for_the_recorded_columns_does_not_say_so() -> None:
    assert BufferState.load(BUFFER).dump() == BUFFER


@pytest.mark.parametrize("load", [DatabaseState.load, CaptureState.load])
def test_an_unknown_key_is_refused(load: Any) -> None:
    with pytest.raises(MillstreamError) as caught:
        load({"of_later": 1})
    assert caught.value.code is Code.CATALOG_FAILED


def test_an_error_is_raised_again_as_it_was() -> None:
    error = MillstreamError(Code.LOCK_TIMEOUT, "busy", hint="wait")
    again = RecordedError.load(RecordedError.of(error).dump()).error
    assert (again.code, again.message, again.hint) == (Code.LOCK_TIMEOUT, "busy", "wait")
