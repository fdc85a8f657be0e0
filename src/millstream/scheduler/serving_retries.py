"""A refreshed table that cannot be served: when serving is retried, and when its failures are too many. Pure.

The lake goes on without the database: the table itself is refreshed by its schedule, and so are its dependents. Only
the attempts to serve it wait, as retries of a refresh do, and a success in the lake does not reset their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from millstream.scheduler.backoff import NO_BACKOFF, Backoff, after_failure
from millstream.scheduler.failures import FailureClass


@dataclass(frozen=True, slots=True)
class Unserved:
    """The failures to serve a table since it was last served.

    Attributes:
        errors: how many of them count.
    """

    backoff: Backoff = NO_BACKOFF
    errors: int = 0

    def may_retry(self, now: datetime) -> bool:
        """Whether the next attempt may be made."""
        return not self.backoff.wait_seconds(now)


SERVED = Unserved()


def after_serving_failure(before: Unserved, failure_class: FailureClass, now: datetime, fraction: float) -> Unserved:
    """What follows from a failure to serve; `fraction` from 0 to 1 chooses the jitter."""
    failure = after_failure(before.backoff, failure_class, now, fraction)
    return Unserved(failure.backoff, before.errors + failure.counts)
