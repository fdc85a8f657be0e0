"""What a tick decides, without a database: every decision about a table, and what a database as a whole needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millstream.capture.drift import Action, Decision, NamedSighting, Sighting, after_tick, decide, needs_closer_look
from millstream.capture.quarantine import quarantined
from millstream.capture.tick_plan import (
    DatabaseStep,
    Outset,
    TickPlan,
    TickRequest,
    is_idle,
    plan_outset,
    plan_tick,
)
from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode
from millstream.catalog.capture_state import BufferState, CaptureState, DatabaseState, SeenView, WalState
from millstream.catalog.numeric_ranges import NumericRanges, RangedColumn
from millstream.errors import Code, MillstreamError
from millstream.postgres.identity import Identity
from millstream.sources.postgres.server.relations import PgColumn, Relation, RelationKind
from millstream.sources.postgres.server.table_fingerprints import TableFingerprint
from millstream.sources.postgres.values.types import MirrorColumn

NOW = datetime(2026, 1, 2, tzinfo=UTC)
HERE = {"snapshot": "9:9:"}
DATABASE = AttachedDatabase(
    name="shop",
    address="env:SHOP",
    cdc="auto",
    system=1,
    timeline=1,
    database="shop",
    database_oid=5,
    position=HERE,
    reached_at=NOW,
    state=DatabaseState(buffer_schema="changes"),
)
BUFFER = BufferState(schema="changes", columns=("id", "v"), by_row=False, leaves=(7,), is_always=True, state="triggers")
CAPTURE = Capture(
    id="c",
    database="shop",
    schema="public",
    table="t",
    oid=7,
    columns=(("id", "integer", "int"), ("v", "text", "string")),
    key=("id",),
    shape="shape",
    filenodes="files",
    path="/lake/mirrors/c",
    version=3,
    state=CaptureState(buffer=BUFFER),
)
FINGERPRINT = TableFingerprint(7, "public", "t", "shape", "files", ("id",), ("id",))
ERROR = MillstreamError(Code.LOCK_TIMEOUT, "busy")


def column(number: int, name: str, type_: str, base_oid: int = 23) -> PgColumn:
    return PgColumn(number, name, type_, type_, base_oid, "b", None, None, False, "", None)


def relation(*columns: PgColumn, oid: int = 7) -> Relation:
    columns = columns or (column(1, "id", "integer"), column(2, "v", "text", 25))
    return Relation(oid, "public", "t", RelationKind.TABLE, "owner", columns, ("id",), "d", (), False)


def stated(**changes: object) -> Capture:
    return replace(CAPTURE, state=replace(CAPTURE.state, **changes))  # type: ignore[arg-type]


def seen(
    fingerprint: TableFingerprint | None = FINGERPRINT,
    triggers: str | None = "triggers",
    named: NamedSighting | None = None,
) -> Sighting:
    return Sighting(fingerprint, triggers, named)


def named(now: Relation, shape: str = "shape", triggers: str | None = "triggers") -> Sighting:
    """Somebody has altered the table: the poll looks at what has its name."""
    fingerprint = replace(FINGERPRINT, oid=now.oid, shape=shape)
    first = replace(FINGERPRINT, shape=shape) if now.oid == CAPTURE.oid else None
    return Sighting(first, triggers, NamedSighting(now, fingerprint, triggers))


ID = column(1, "id", "integer")
DECISIONS: dict[str, tuple[Capture, Sighting, Action]] = {
    "nothing has happened": (CAPTURE, seen(), Action.FOLLOW),
    "its triggers were changed": (CAPTURE, seen(triggers="others"), Action.REINSTALL),
    "its triggers are gone": (CAPTURE, seen(triggers=None), Action.REINSTALL),
    "the WAL gives its changes": (stated(buffer=None), seen(triggers=None), Action.FOLLOW),
    "it is to be compared": (stated(resync="why"), seen(), Action.RESYNC),
    "it was rewritten": (CAPTURE, seen(replace(FINGERPRINT, storage="others")), Action.RESYNC),
    "it was dropped": (CAPTURE, seen(None, None, NamedSighting()), Action.DROP),
    "it was renamed": (CAPTURE, seen(replace(FINGERPRINT, name="u"), named=NamedSighting()), Action.DROP),
    "it is still missing": (stated(missing="gone"), seen(None, None, NamedSighting()), Action.DROP),
    "it is back": (stated(missing="gone", buffer=None), named(relation(oid=8), triggers=None), Action.REINSTALL),
    "another one has its name": (CAPTURE, named(relation(oid=8), triggers=None), Action.REINSTALL),
    "a column was dropped": (CAPTURE, named(relation(ID), "other"), Action.REBIND),
    "a column has other values": (CAPTURE, named(relation(ID, column(2, "v", "bigint", 20)), "other"), Action.REBIND),
    "it has other columns": (stated(stale="since then"), named(relation()), Action.REBIND),
    "a type of the same values": (
        CAPTURE,
        named(relation(ID, column(2, "v", "character varying(9)", 1043)), "other"),
        Action.REINSTALL,
    ),
    "altered, and its triggers too": (CAPTURE, named(relation(), "other", "others"), Action.REINSTALL),
    "a column of a user's type": (
        CAPTURE,
        named(relation(ID, column(2, "v", "text", 20_000)), "other"),
        Action.REINSTALL,
    ),
    "that its buffer was made for": (
        stated(buffer=replace(BUFFER, made_for="other")),
        named(relation(ID, column(2, "v", "text", 20_000)), "other"),
        Action.RESYNC,
    ),
    "its columns were altered and are the same": (CAPTURE, named(relation(), "other"), Action.RESYNC),
    "nothing records its changes": (stated(is_whole=True, buffer=None), seen(triggers=None), Action.FOLLOW),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_each_decision(case: str) -> None:
    capture, sighting, action = DECISIONS[case]
    decision = decide(capture, sighting, {})
    assert decision.action is action
    assert bool(decision.reason) == (action is not Action.FOLLOW)


@pytest.mark.parametrize("case", DECISIONS)
def test_the_poll_looks_more_closely_where_fingerprints_do_not_decide(case: str) -> None:
    capture, sighting, _ = DECISIONS[case]
    assert needs_closer_look(capture, sighting.fingerprint, {}) is (sighting.named is not None)


def test_each_action_but_quarantine_is_decided() -> None:
    assert {action for _, _, action in DECISIONS.values()} == set(Action) - {Action.QUARANTINE}


def test_a_range_that_was_declared_since_is_other_values() -> None:
    priced = replace(CAPTURE, columns=(("id", "integer", "int"), ("v", "numeric", "decimal(38,18)")))
    now, declared = named(relation(ID, column(2, "v", "numeric", 1700))), {"v": "decimal(30,4)"}
    assert not needs_closer_look(priced, FINGERPRINT, {})
    assert needs_closer_look(priced, FINGERPRINT, declared)
    assert decide(priced, now, declared).action is Action.REBIND


def plan(
    capture: Capture,
    sighting: Sighting,
    reasons: Mapping[str, str] | None = None,
    quarantine: Mapping[str, MillstreamError] | None = None,
    locked: Collection[str] = (),
) -> TickPlan:
    return plan_tick({"c": capture}, {"c": sighting}, NumericRanges({}), reasons or {}, quarantine or {}, locked)


class TestPlan:
    @pytest.mark.parametrize("case", [c for c, (_, _, a) in DECISIONS.items() if a is Action.FOLLOW])
    def test_follow(self, case: str) -> None:
        capture, sighting, _ = DECISIONS[case]
        found = plan(capture, sighting)
        assert found.is_executable
        assert found.follow == (() if capture.is_whole else ("c",))
        assert (found.resync, found.reinstall, found.drop, found.quarantine) == ({}, {}, set(), {})

    @pytest.mark.parametrize("case", [c for c, (_, _, a) in DECISIONS.items() if a is Action.RESYNC])
    def test_resync_needs_the_table_locked(self, case: str) -> None:
        capture, sighting, _ = DECISIONS[case]
        first = plan(capture, sighting)
        assert (first.is_executable, first.unlocked, first.follow) == (False, {"c"}, ())
        then = plan(capture, sighting, first.reasons, locked=["c"])
        assert (then.is_executable, then.resync, then.follow) == (True, first.reasons, ())

    @pytest.mark.parametrize("case", [c for c, (_, _, a) in DECISIONS.items() if a is Action.REINSTALL])
    def test_reinstall_comes_before_anything_is_read(self, case: str) -> None:
        capture, sighting, _ = DECISIONS[case]
        found = plan(capture, sighting, locked=["c"])
        assert not found.is_executable
        assert (list(found.reinstall), list(found.reasons)) == (["c"], ["c"])

    @pytest.mark.parametrize("case", [c for c, (_, _, a) in DECISIONS.items() if a in (Action.REBIND, Action.DROP)])
    def test_drop_needs_no_lock(self, case: str) -> None:
        capture, sighting, _ = DECISIONS[case]
        for reasons in ({}, {"c": "it was to be compared"}):
            found = plan(capture, sighting, reasons)
            assert (found.is_executable, found.drop, found.resync, found.follow) == (True, {"c"}, {}, ())

    @pytest.mark.parametrize("case", DECISIONS)
    def test_quarantined_tables_are_not_tried(self, case: str) -> None:
        capture, sighting, action = DECISIONS[case]
        found = plan(capture, sighting, quarantine={"c": ERROR})
        assert found.is_executable
        assert (found.follow, found.resync, found.reinstall) == ((), {}, {})
        is_gone = action in (Action.REBIND, Action.DROP)
        assert found.drop == ({"c"} if is_gone else set())
        assert found.quarantine == ({} if is_gone else {"c": ERROR}), "one that is gone is not waited for"

    def test_a_known_reason_has_a_followed_table_compared(self) -> None:
        found = plan(CAPTURE, seen(), {"c": "more columns"}, locked=["c"])
        assert (found.follow, found.resync) == ((), {"c": "more columns"})

    def test_what_nothing_captures_is_compared_when_it_is_read(self) -> None:
        whole, rewritten = stated(is_whole=True, buffer=None), seen(replace(FINGERPRINT, storage="others"), None)
        assert plan(whole, rewritten).reasons == {}
        assert plan(whole, rewritten, {"c": "it is read"}, locked=["c"]).resync == {"c": "it is read"}

    def test_a_mirror_that_is_not_kept_is_not_followed(self) -> None:
        other = replace(CAPTURE, id="d", table="u", oid=9, state=replace(CAPTURE.state, missing="gone"))
        captures = {"c": CAPTURE, "d": other}
        sightings = {"c": seen(), "d": seen(None, None, NamedSighting())}
        found = plan_tick(captures, sightings, NumericRanges({}), {}, {}, ())
        assert (found.follow, found.drop) == (("c",), {"d"})

    def test_ranges_are_those_of_the_table(self) -> None:
        ranges = NumericRanges({RangedColumn("public", "other", "v"): "decimal(3,1)"})
        assert plan_tick({"c": CAPTURE}, {"c": seen()}, ranges, {}, {}, ()).follow == ("c",)


def outset(
    captures: Collection[Capture], request: TickRequest, database: AttachedDatabase = DATABASE, timeline: int = 1
) -> Outset:
    identity = replace(Identity.recorded(database), timeline=timeline)
    return plan_outset(database, {c.id: c for c in captures}, identity, request, {}, NOW)


class TestOutset:
    def test_another_database_starts_over(self) -> None:
        assert outset([CAPTURE], TickRequest(), timeline=2).step is DatabaseStep.START_OVER

    @pytest.mark.parametrize("mode", [CaptureMode.TRIGGER, CaptureMode.TRANSITIONING])
    def test_triggers(self, mode: CaptureMode) -> None:
        assert outset([CAPTURE], TickRequest(), replace(DATABASE, mode=mode)).step is DatabaseStep.SWITCH_FORWARD

    def test_the_wal_does_not_give_all(self) -> None:
        state = replace(DATABASE.state, wal=WalState("s", "p", {"c": "f"}))
        database = replace(DATABASE, mode=CaptureMode.WAL, state=state)
        others = [
            replace(CAPTURE, id="d"),
            replace(stated(is_whole=True), id="e"),
            replace(CAPTURE, id="f", version=None),
        ]
        found = outset([CAPTURE, *others], TickRequest(), database)
        assert (found.step, found.unpublished) == (DatabaseStep.PUBLISH, ("d",))

    def test_reasons_that_are_recorded(self) -> None:
        wider = {"w": [MirrorColumn("more", "text", "string")]}
        captures = [
            CAPTURE,
            replace(stated(resync="why"), id="r"),
            replace(stated(is_whole=True), id="e", table="whole"),
            replace(CAPTURE, id="w", table="wide"),
        ]
        found = outset(captures, TickRequest(wanted={"shop.public.whole"}, wider=wider))
        assert set(found.reasons) == {"r", "e", "w"}
        assert set(outset(captures, TickRequest()).reasons) == {"r"}

    def test_a_widened_mirror_is_not_widened_again(self) -> None:
        wider = {"c": [MirrorColumn("v", "text", "string")]}
        assert outset([CAPTURE], TickRequest(wider=wider)).reasons == {}

    def test_mirrors_that_have_moved(self) -> None:
        identity, captures = Identity.recorded(DATABASE), {"c": CAPTURE}
        found = plan_outset(DATABASE, captures, identity, TickRequest(is_first=True), {"c": "at another version"}, NOW)
        assert found.reasons == {"c": "at another version"}

    @pytest.mark.parametrize(
        ("request_", "took", "is_tried"),
        [
            (TickRequest(), timedelta(hours=1), False),
            (TickRequest(), timedelta(0), True),
            (TickRequest(wanted={"shop.public.t"}), timedelta(hours=1), True),
            (TickRequest(wider={"c": []}), timedelta(hours=1), True),
        ],
        ids=["rests", "has rested", "wanted", "widened"],
    )
    def test_quarantined_tables(self, request_: TickRequest, took: timedelta, is_tried: bool) -> None:
        found = outset([quarantined(CAPTURE, ERROR, NOW, took)], request_)
        assert ("c" in found.quarantined) is not is_tried
        assert ("c" in found.reasons) is is_tried


class TestIdle:
    def idle(
        self,
        request: TickRequest | None = None,
        database: AttachedDatabase = DATABASE,
        capture: Capture = CAPTURE,
        snapshot: str = "9:9:",
        views: Collection[str] = (),
    ) -> bool:
        here = (Identity.recorded(DATABASE), snapshot)
        return is_idle(database, {"c": capture}, here, request or TickRequest(), {}, views)

    def test_nothing_was_written(self) -> None:
        assert self.idle()

    def test_something_was_written(self) -> None:
        assert not self.idle(snapshot="10:10:")

    def test_nothing_was_read_yet(self) -> None:
        assert not self.idle(database=replace(DATABASE, position=None))

    def test_it_is_another_database(self) -> None:
        assert not self.idle(database=replace(DATABASE, timeline=2))

    def test_somebody_needs_the_snapshot(self) -> None:
        assert not self.idle(TickRequest(needs_snapshot=True))

    def test_it_is_moving_to_the_wal(self) -> None:
        assert not self.idle(database=replace(DATABASE, mode=CaptureMode.TRANSITIONING))

    def test_it_is_to_go_back_to_triggers(self) -> None:
        assert self.idle(database=replace(DATABASE, mode=CaptureMode.WAL))
        assert not self.idle(database=replace(DATABASE, mode=CaptureMode.WAL, cdc="trigger"))

    def test_a_view_was_not_seen(self) -> None:
        assert not self.idle(views={"shop.public.v"})
        state = replace(DATABASE.state, views={"shop.public.v": SeenView(mark="m")})
        assert self.idle(database=replace(DATABASE, state=state), views={"shop.public.v"})

    def test_a_mirror_is_elsewhere(self) -> None:
        assert not self.idle(capture=stated(position={"snapshot": "8:8:"}))

    def test_a_table_is_to_be_compared(self) -> None:
        assert not self.idle(capture=stated(resync="why"))

    def test_quarantined_tables_wait_for_something_to_be_written(self) -> None:
        capture = quarantined(CAPTURE, ERROR, NOW, timedelta(0))
        assert self.idle(capture=capture)
        assert not self.idle(TickRequest(wanted={"shop.public.t"}), capture=capture)


class TestAfterTick:
    """What is recorded of a capture once a tick has ended."""

    NEW = replace(FINGERPRINT, shape="other", storage="others", key=(), not_null=())

    @pytest.mark.parametrize("is_landed", [True, False])
    def test_followed(self, is_landed: bool) -> None:
        before = stated(position={"snapshot": "8:8:"}, reached_at=NOW)
        after = after_tick(
            before, Decision(Action.FOLLOW, fingerprint=self.NEW), DATABASE, is_landed=is_landed, pending=None
        )
        assert (after.shape, after.filenodes, after.key) == ("other", "others", ())
        assert after.state == CaptureState(buffer=BUFFER)

    def test_compared(self) -> None:
        before = replace(quarantined(CAPTURE, ERROR, NOW, timedelta(0)))
        after = after_tick(before, Decision(Action.RESYNC, "why", FINGERPRINT), DATABASE, is_landed=True, pending=None)
        assert after.state == CaptureState(buffer=BUFFER, not_null=("id",))

    def test_to_be_compared_later(self) -> None:
        after = after_tick(
            CAPTURE, Decision(Action.FOLLOW, fingerprint=FINGERPRINT), DATABASE, is_landed=False, pending="a piece"
        )
        assert after == stated(resync="a piece", position=HERE, reached_at=NOW)

    @pytest.mark.parametrize("was", [None, {"snapshot": "8:8:"}])
    def test_quarantined_where_it_is(self, was: dict[str, str] | None) -> None:
        after = after_tick(stated(position=was), Decision(Action.QUARANTINE), DATABASE, is_landed=False, pending=None)
        assert after.state.position == (was or HERE)
        assert (after.shape, after.filenodes) == ("shape", "files")

    @pytest.mark.parametrize(("action", "field"), [(Action.REBIND, "stale"), (Action.DROP, "missing")])
    def test_no_longer_brought_forward(self, action: Action, field: str) -> None:
        before = quarantined(CAPTURE, ERROR, NOW, timedelta(0))
        after = after_tick(before, Decision(action, "why"), DATABASE, is_landed=False, pending=None)
        assert (getattr(after.state, field), after.state.buffer, after.state.quarantine) == ("why", None, None)
        assert not after.is_kept
