"""A cancellation stops the work of its own thread: where it asks, and where another thread can interrupt it."""

from __future__ import annotations

import threading

import pytest

from millstream.cancellation import Cancellation, cancellable, check, current, explained, interrupting
from millstream.errors import Code, MillstreamError

WHY = MillstreamError(Code.REFRESH_CANCELLED, "somebody cancelled it")
OTHER = MillstreamError(Code.SERVE_FAILED, "canceling statement due to user request")


def test_outside_a_refresh_nothing_is_stopped() -> None:
    with interrupting(lambda: pytest.fail("called")):
        check()
    assert explained(OTHER) is OTHER


def test_work_stops_where_it_asks() -> None:
    cancellation = Cancellation()
    with cancellable(cancellation):
        check()
        assert explained(OTHER) is OTHER
        cancellation.request(WHY)
        cancellation.request(OTHER)
        with pytest.raises(MillstreamError) as caught:
            check()
        assert caught.value is WHY  # the first reason counts
        assert explained(OTHER) is WHY
    check()
    assert current() is None


def test_work_is_interrupted_until_it_has_ended() -> None:
    cancellation, calls = Cancellation(), threading.Semaphore(0)
    with cancellable(cancellation):
        with interrupting(calls.release):
            cancellation.interrupt()
            assert not calls.acquire(timeout=0.05)  # nobody has asked for it
            cancellation.request(WHY)
            assert calls.acquire(timeout=10)
            cancellation.interrupt()
            assert calls.acquire(timeout=10)
        cancellation.interrupt()
        assert not calls.acquire(timeout=0.05)


def test_other_threads_are_not_stopped() -> None:
    cancellation, found = Cancellation(), []
    with cancellable(cancellation):
        cancellation.request(WHY)
        thread = threading.Thread(target=lambda: found.append(current()))
        thread.start()
        thread.join()
    assert found == [None]
