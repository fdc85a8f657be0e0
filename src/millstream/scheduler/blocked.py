"""Which stream tables are not refreshed automatically because of another one, and because of which. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.results import Status
from millstream.scheduler.dag import Dag

BLOCKING = (Status.ERROR, Status.SUSPENDED)


def blocked_by(dag: Dag, statuses: Mapping[str, Status]) -> dict[str, str]:
    """By stream table: the one that it waits for, until a person resumes it. The farthest upstream comes first.

    >>> dag = Dag.build({"a": ["t"], "b": ["a"], "c": ["b"]})
    >>> blocked_by(dag, {"a": Status.ERROR, "b": Status.ACTIVE, "c": Status.ACTIVE})
    {'b': 'a', 'c': 'a'}
    """
    blocking = {name for name, status in statuses.items() if status in BLOCKING}
    found: dict[str, str] = {}
    for name in dag.downstream(blocking):
        if name in statuses and name not in blocking:
            found[name] = next(source for source in dag.upstream([name]) if source in blocking)
    return found
