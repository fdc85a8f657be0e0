"""Which tables cannot be refreshed now, and which table each of them waits for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from millstream.results import Status
from millstream.scheduler.dag import Dag
from millstream.scheduler.lake_view import LakeView, TableView


class WaitReason(StrEnum):
    """Why a table and its dependents are not refreshed; the first of several reasons is reported."""

    SUSPENDED = "SUSPENDED"
    ERROR = "ERROR"
    RETRY = "RETRY"
    """A refresh failed, and the time of its retry has not come."""
    RUNNING = "RUNNING"


STOPPED = (Status.ERROR, Status.SUSPENDED)
"""A table in one of these states is not refreshed automatically, until a person resumes it."""
_ORDER = tuple(WaitReason)


@dataclass(frozen=True, slots=True)
class Wait:
    """The table that is waited for, and what is the matter with it."""

    table: str
    reason: WaitReason


def find_waits(view: LakeView) -> dict[str, Wait]:
    """The tables that cannot be refreshed now: by themselves, or because of something they read, however indirectly.

    A dependent of a table on cron waits as well. It would stay at the frontier of that table, so it loses nothing. The
    members of a cycle wait for each other.
    """
    found: dict[str, Wait] = {}
    own = {n: Wait(n, why) for n, t in view.tables.items() if (why := _own_reason(view, t)) is not None}
    for name in view.dag.nodes:
        if name not in view.tables:
            continue
        inherited = [found[source] for source in view.dag.outside_sources.get(name, ()) if source in found]
        inherited += [own[peer] for peer in view.dag.peers.get(name, ()) if peer in own]
        if name in own:
            found[name] = own[name]
        elif inherited:
            found[name] = min(inherited, key=lambda wait: (_ORDER.index(wait.reason), wait.table))
    return found


def waits_until_resumed(dag: Dag, statuses: Mapping[str, Status]) -> dict[str, str]:
    """By stream table: the suspended or failed one that it waits for, of several the one that comes first in the graph.

    >>> dag = Dag.build({"a": ["t"], "b": ["a"], "c": ["b"]})
    >>> waits_until_resumed(dag, {"a": Status.ERROR, "b": Status.ACTIVE, "c": Status.ACTIVE})
    {'b': 'a', 'c': 'a'}
    """
    stopped = {name for name, status in statuses.items() if status in STOPPED}
    found: dict[str, str] = {}
    for name in dag.downstream(stopped):
        if name in statuses and name not in stopped:
            found[name] = next(source for source in dag.upstream([name]) if source in stopped)
    return found


def _own_reason(view: LakeView, table: TableView) -> WaitReason | None:
    if table.status is Status.SUSPENDED:
        return WaitReason.SUSPENDED
    if table.status is Status.ERROR:
        return WaitReason.ERROR
    if table.is_running:
        return WaitReason.RUNNING
    return WaitReason.RETRY if table.backoff.wait_seconds(view.now) else None
