"""When the sources of a lake are looked at, without any stream table being due. Pure.

Each database is looked at on its own, `source_watch_seconds` after its last look ended, and less often while looks
fail. A look that is still running is not joined by a second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

LONGEST_PAUSE = timedelta(seconds=60)
"""After failures, unless looks are meant to be rarer anyway."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The looks at one source so far.

    Args:
        ended_at: when the last one ended; None before the first.
        failures: how many have failed in a row.
    """

    ended_at: datetime | None = None
    failures: int = 0
    is_running: bool = False

    def begun(self) -> Looked:
        """With a look that is running."""
        return replace(self, is_running=True)

    def ended(self, at: datetime, *, has_failed: bool) -> Looked:
        """After a look."""
        return Looked(at, self.failures + 1 if has_failed else 0)


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """What is looked at now, and when the next look is due."""

    due: tuple[str, ...]
    wake_at: datetime


def plan_looks(names: Iterable[str], looked: Mapping[str, Looked], every: timedelta, now: datetime) -> WatchPlan:
    """Decide what to look at.

    >>> from datetime import UTC
    >>> moment = datetime(2026, 3, 1, tzinfo=UTC)
    >>> plan_looks(["shop"], {"shop": Looked(moment)}, timedelta(seconds=10), moment).wake_at - moment
    datetime.timedelta(seconds=10)
    """
    due: list[str] = []
    wake_at = now + every
    for name in names:
        known = looked.get(name, Looked())
        if known.is_running:
            continue
        at = _due_at(known, every, now)
        if at <= now:
            due.append(name)
        else:
            wake_at = min(wake_at, at)
    return WatchPlan(tuple(due), wake_at)


def _due_at(looked: Looked, every: timedelta, now: datetime) -> datetime:
    if looked.ended_at is None or looked.ended_at > now:  # the clock was set back
        return now
    doubled = every * (1 << min(looked.failures, 16))
    return looked.ended_at + min(doubled, max(every, LONGEST_PAUSE))
