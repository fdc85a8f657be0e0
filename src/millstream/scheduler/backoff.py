"""How long a table waits after a failed refresh, and which failures count as errors. Pure: the caller draws the jitter.

The wait is 1 s after the first failure in a row and doubles up to 60 s, each time longer or shorter by up to 25 %, so
that tables that failed together are not retried together.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from millstream.scheduler.failures import FailureClass

FIRST_DELAY_SECONDS = 1.0
MAX_DELAY_SECONDS = 60.0
JITTER = 0.25
TRANSIENT_RETRIES = 5
"""Retries of a transient failure before it counts as one error."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The failures of a table since its last success, and when it may be tried again."""

    attempts: int = 0
    retry_at: datetime | None = None

    def wait_seconds(self, now: datetime) -> float:
        """How long the table still waits; a wait longer than any delay shows that the clock was set back, and is over.

        >>> from datetime import UTC
        >>> moment = datetime(2026, 3, 1, tzinfo=UTC)
        >>> Backoff(1, moment + timedelta(seconds=1)).wait_seconds(moment)
        1.0
        """
        if self.retry_at is None:
            return 0.0
        left = (self.retry_at - now).total_seconds()
        return left if 0 < left <= MAX_DELAY_SECONDS * (1 + JITTER) else 0.0


NO_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True)
class Failure:
    """What follows from a failed refresh: the new backoff, and whether it counts towards `max_consecutive_errors`."""

    backoff: Backoff
    counts: bool


def after_failure(previous: Backoff, failure_class: FailureClass, now: datetime, fraction: float) -> Failure:
    """What follows from a failed refresh.

    A transient failure counts when its fifth retry has failed, and then again after five more; one that somebody caused
    by stopping the refresh never does. Every other failure counts at once, and waits as well, so that a table that
    fails quickly is not refreshed continuously.

    Args:
        previous: the table's backoff before this failure.
        fraction: a random number from 0 to 1.
    """
    attempts = previous.attempts + 1
    retry_at = now + timedelta(seconds=delay_seconds(attempts, fraction))
    is_counted = failure_class is not FailureClass.TRANSIENT or attempts % (TRANSIENT_RETRIES + 1) == 0
    return Failure(Backoff(attempts, retry_at), is_counted and failure_class is not FailureClass.STOPPED)


def delay_seconds(attempts: int, fraction: float) -> float:
    """The wait after the given number of failures in a row; `fraction` from 0 to 1 chooses the jitter.

    >>> delay_seconds(4, 0.5)
    8.0
    """
    doublings = min(attempts - 1, 16)  # far beyond the maximum, and far below an overflow
    delay = min(FIRST_DELAY_SECONDS * 2.0**doublings, MAX_DELAY_SECONDS)
    return delay * (1 + JITTER * (2 * fraction - 1))
