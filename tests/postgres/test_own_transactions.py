"""Transactions of ours: known for the run of the server that they were in, and no longer."""

from __future__ import annotations

from millstream.postgres.own_transactions import OwnTransactions

FIRST, AGAIN, OTHER = (1, "100.5"), (1, "200.5"), (2, "100.5")


def test_all_of_them_or_none() -> None:
    own = OwnTransactions()
    assert not own.include(FIRST, [])
    own.add(FIRST, 10)
    own.add(FIRST, 12)
    assert own.include(FIRST, [10, 12])
    assert not own.include(FIRST, [10, 11, 12])
    assert not own.include(OTHER, [10])


def test_a_server_that_was_started_again_may_have_given_the_id_to_another() -> None:
    own = OwnTransactions()
    own.add(FIRST, 10)
    own.add(OTHER, 10)
    assert not own.include(AGAIN, [10])
    own.add(AGAIN, 20)
    assert not own.include(FIRST, [10])
    assert own.include(AGAIN, [20])
    assert own.include(OTHER, [10])


def test_only_the_last_ones_are_remembered() -> None:
    own = OwnTransactions()
    for xid in range(1_500):
        own.add(FIRST, xid)
    assert own.include(FIRST, range(500, 1_500))
    assert not own.include(FIRST, range(499, 1_500))
