"""When a database was put back to an earlier state: distinguished from a crash by what was durable before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import pytest

from millstream.capture.rollback_detection import went_back
from millstream.postgres.identity import Identity
from millstream.sources.postgres.server.pg_snapshot import PgSnapshot
from millstream.sources.postgres.server.snapshot_transaction import DatabaseState


def here(snapshot: str, flushed: int = 100) -> DatabaseState:
    return DatabaseState(snapshot, Identity(1, 1, "shop", 5), flushed, "now")


@pytest.mark.parametrize(
    ("now", "position", "expected"),
    [
        ("20:20:", {"snapshot": "20:20:"}, False),
        ("25:30:25", {"snapshot": "20:20:"}, False),
        ("15:30:15", {"snapshot": "15:20:15"}, False),
        ("19:19:", {"snapshot": "20:20:"}, True),
        ("15:30:15", {"snapshot": "20:20:"}, True),  # what was read is running: its id was used again
        ("20:20:", {"snapshot": "20:20:", "lsn": "0/64"}, False),
        ("30:30:", {"snapshot": "20:20:", "lsn": "0/65"}, True),
    ],
)
def test_transactions_and_wal_that_went_back(now: str, position: dict[str, str], expected: bool) -> None:
    assert went_back(here(now), [position], None, None) is expected
    assert went_back(here(now), [{"snapshot": "1:1:"}, position], "1:1:", PgSnapshot.parse("1:1:")) is expected


@pytest.mark.parametrize(
    ("recorded", "found", "expected"),
    [
        (None, None, False),
        (None, "10:10:", False),
        ("20:20:", None, False),
        ("20:20:", "20:20:", False),
        ("20:20:", "25:25:", False),
        ("20:20:", "10:10:", True),
        ("20:20:", "10:21:10", True),
    ],
)
def test_marks(recorded: str | None, found: str | None, expected: bool) -> None:
    mark = PgSnapshot.parse(found) if found is not None else None
    assert went_back(here("90:90:"), [{"snapshot": "20:20:"}], recorded, mark) is expected


@dataclass(frozen=True)
class State:
    """A server, the catalog that follows it, and a copy of the server's files.

    Args:
        committed: the transactions, each unlike any other; the place of one is its id.
        durable: how many of them a crash leaves.
        mark, durable_mark: the number of transactions that the mark in the database sees.
        reading: what a tick has seen, and perhaps marked, but not recorded.
        recorded: the transactions that count as read.
        copy: its transactions, and its mark.
    """

    committed: tuple[str, ...] = ()
    durable: int = 0
    mark: int = 0
    durable_mark: int = 0
    reading: tuple[str, ...] | None = None
    is_marked: bool = False
    recorded: tuple[str, ...] = ()
    recorded_mark: int = 0
    copy: tuple[tuple[str, ...], int] | None = None
    is_put_back: bool = False


def write(state: State, what: str, *, is_durable: bool = False) -> State:
    written = replace(state, committed=(*state.committed, what))
    return replace(written, durable=len(written.committed)) if is_durable else written


def look(state: State, _: str) -> State | None:
    """A tick begins; None if it notices that the database is an older one."""
    if is_taken_for_older(state):
        return None
    return replace(state, reading=state.committed, is_marked=False)


def mark(state: State, what: str) -> State:
    if state.reading is None:
        return state
    seen = len(state.reading)
    return replace(write(state, what, is_durable=True), mark=seen, durable_mark=seen, is_marked=True)


def record(state: State, _: str) -> State:
    if state.reading is None or not state.is_marked:
        return state
    return replace(state, recorded=state.reading, recorded_mark=len(state.reading), reading=None)


def crash(state: State, _: str) -> State:
    kept = state.committed[: state.durable]
    return replace(state, committed=kept, mark=state.durable_mark, reading=None)


def copy(state: State, _: str) -> State:
    return replace(state, copy=(state.committed[: state.durable], state.durable_mark))


def put_back(state: State, _: str) -> State:
    if state.copy is None:
        return state
    files, its_mark = state.copy
    now = replace(state, committed=files, durable=len(files), mark=its_mark, durable_mark=its_mark)
    return replace(now, reading=None, is_put_back=True)


def is_taken_for_older(state: State) -> bool:
    now, then = len(state.committed), len(state.recorded)
    marks = f"{state.recorded_mark}:{state.recorded_mark}:", PgSnapshot(state.mark, state.mark, frozenset())
    return went_back(here(f"{now}:{now}:"), [{"snapshot": f"{then}:{then}:"}], *marks)


def test_all_that_can_happen_in_any_order() -> None:
    """Only files that were put back count as older, and always if something is missing that was read."""
    steps, found = (write, look, mark, record, crash, copy, put_back), set[tuple[bool, bool]]()
    states = {State()}
    for turn in range(8):
        after = {now for state, step in product(states, steps) if (now := step(state, f"{turn}")) is not None}
        for state in after:
            is_behind = state.committed[: len(state.recorded)] != state.recorded
            answer = is_taken_for_older(state)
            assert answer or not is_behind, state
            assert state.is_put_back or not answer, state
            found.add((is_behind, answer))
        states = after
    assert found >= {(False, False), (True, True)}
