"""Settings that are read again while a lake is open: some take effect at once, others need a restart. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

from millstream.settings import Settings

RELOADABLE = frozenset(
    {
        "enabled",
        "scheduler_interval_ms",
        "min_schedule_seconds",
        "max_consecutive_errors",
        "refresh_timeout_seconds",
        "parallel_refresh_mode",
        "max_concurrent_refreshes",
        "alert_webhook_url",
        "alert_command",
        "alert_notify",
        "alert_events",
    }
)
"""The settings that can change while a lake is open; the parts of an open lake keep their own copy of the others."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The settings in effect after they were read again.

    Attributes:
        changed: the names of those that have taken effect.
        needs_restart: the names of those that have other values in the file, and take effect with a restart.
    """

    settings: Settings
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reloaded(before: Settings, read: Settings) -> Reloaded:
    """What follows from settings that were read again.

    >>> result = reloaded(Settings(), Settings(enabled=False, time_zone="CET"))
    >>> result.changed, result.needs_restart, result.settings.time_zone
    (('enabled',), ('time_zone',), 'UTC')
    """
    names = [f.name for f in dataclasses.fields(Settings) if getattr(before, f.name) != getattr(read, f.name)]
    changed = {name: getattr(read, name) for name in names if name in RELOADABLE}
    others = tuple(name for name in names if name not in RELOADABLE)
    return Reloaded(replace(before, **changed), tuple(changed), others)
