"""When refreshes are expected to end, if they start in a given order. Pure; all times are seconds from now."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from millstream.scheduler.lake_view import LakeView, TableView


def finish_estimates(view: LakeView, queue: Iterable[str]) -> dict[str, float]:
    """When running refreshes and then those of the queue are expected to end, with the lake's slots.

    Args:
        queue: tables in the order in which they get slots, each after those of the queue that it reads.
    """
    running = sorted(
        (t for t in view.tables.values() if t.running_since is not None), key=lambda t: (t.running_since, t.name)
    )
    read: dict[str, list[str]] = {}
    for source, name in view.dag.edges:
        read.setdefault(name, []).append(source)
    slots = [0.0] * view.slots
    ends: dict[str, float] = {}
    for table in running:
        ends[table.name] = slots[0] + _left(view, table)
        heapq.heapreplace(slots, ends[table.name])
    for name in queue:
        inputs = max((ends.get(source, 0.0) for source in read.get(name, ())), default=0.0)
        ends[name] = max(slots[0], inputs) + view.tables[name].expected_seconds
        heapq.heapreplace(slots, ends[name])
    return ends


def _left(view: LakeView, table: TableView) -> float:
    """How long a running refresh still takes; a clock that was set back does not make it longer than expected."""
    if table.running_since is None:
        return 0.0
    ran = max(0.0, -view.seconds_until(table.running_since))
    return max(0.0, table.expected_seconds - ran)
