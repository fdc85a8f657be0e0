"""What the plan does with facts: which bites, how large, in which order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.maintenance.owned_tables import OwnedKind, OwnedTable
from millstream.maintenance.plan import MAX_DELETED_FILES, MIN_COMMITS, Bite, TableFacts, planned
from millstream.results import MaintenanceKind

KIND = MaintenanceKind


def owned(name: str = "a", kind: OwnedKind = OwnedKind.STAGE) -> OwnedTable:
    return OwnedTable(kind, name, f"/lake/{name}", name, name, name, 7)


def facts(name: str = "a", kind: OwnedKind = OwnedKind.STAGE, **values: Any) -> TableFacts:
    return TableFacts(owned(name, kind), **values)


def kinds(*given: TableFacts) -> list[tuple[MaintenanceKind, str]]:
    return [(b.kind, b.table.name) for b in planned(given)]


def test_nothing_to_do() -> None:
    assert planned([facts(), facts("b", commits=MIN_COMMITS - 1)]) == []


def test_deleting_comes_before_rewriting_and_the_largest_gain_first() -> None:
    small = facts("small", unneeded_files=1, unneeded_bytes=10, rewritable_files=9, rewritable_bytes=90)
    large = facts("large", unneeded_files=1, unneeded_bytes=99, rewritable_files=9, rewritable_bytes=900)
    logs = facts("logs", log_files=3, log_bytes=5, commits=MIN_COMMITS)
    assert kinds(small, logs, large) == [
        (KIND.VACUUM, "large"),
        (KIND.VACUUM, "small"),
        (KIND.CHECKPOINT, "logs"),
        (KIND.LOG, "logs"),
        (KIND.COMPACT, "small"),
        (KIND.COMPACT, "large"),
    ]


def test_a_bite_is_bounded() -> None:
    [bite] = planned([facts(unneeded_files=4 * MAX_DELETED_FILES, unneeded_bytes=4_000)])
    assert (bite.files, bite.bytes) == (MAX_DELETED_FILES, 1_000)


def test_a_landing_is_not_rewritten() -> None:
    assert kinds(facts(kind=OwnedKind.LANDING, rewritable_files=9)) == []


def test_while_somebody_writes_no_data_is_deleted_or_rewritten() -> None:
    bites = planned([facts(writer="busy", unneeded_files=1, log_files=1, commits=MIN_COMMITS, rewritable_files=9)])
    assert {b.kind: b.skipped for b in bites} == {
        KIND.VACUUM: "busy",
        KIND.CHECKPOINT: None,
        KIND.LOG: None,
        KIND.COMPACT: "busy",
    }


def test_nothing_is_deleted_while_it_is_not_known_what_is_needed() -> None:
    bites = planned([facts(keeper="unreachable", unneeded_files=1, log_files=1, commits=99, rewritable_files=9)])
    assert bites[0] == Bite(KIND.VACUUM, owned(), 0, 0, "unreachable")
    assert [(b.kind, b.skipped) for b in bites[1:]] == [(KIND.COMPACT, None)]


counts = st.integers(0, 10_000)


@given(
    st.lists(
        st.builds(
            TableFacts,
            st.builds(owned, st.text("ab"), st.sampled_from(OwnedKind)),
            writer=st.none() | st.just("busy"),
            keeper=st.none() | st.just("unreachable"),
            rewritable_files=counts,
            rewritable_bytes=counts,
            commits=counts,
            unneeded_files=counts,
            unneeded_bytes=counts,
            log_files=counts,
            log_bytes=counts,
        )
    )
)
def test_every_bite_is_bounded_and_allowed(given: list[TableFacts]) -> None:
    for bite in planned(given):
        assert bite.bytes >= 0
        assert bite.files <= 10_000
        if bite.kind is KIND.VACUUM:
            assert bite.files <= MAX_DELETED_FILES
        if bite.skipped is None:
            matching = [f for f in given if f.table == bite.table]
            needs_nobody = bite.kind in (KIND.VACUUM, KIND.COMPACT)
            needs_versions = bite.kind in (KIND.VACUUM, KIND.LOG, KIND.CHECKPOINT)
            assert any(not (needs_nobody and f.writer) and not (needs_versions and f.keeper) for f in matching)
