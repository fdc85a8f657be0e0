"""Who leads a lake: the process that refreshes it by itself, and the epoch of its leadership."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from millstream.catalog.json_keys import refuse_unknown
from millstream.errors import Code, MillstreamError


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """A process that leads a lake.

    Args:
        id: a fresh id per process: a process id is used again.
        version: its version of millstream.
        since: when it became the leader.
    """

    id: str
    host: str
    pid: int
    version: str
    since: datetime

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """A leader from its JSON."""
        refuse_unknown("the leader", data, ("id", "host", "pid", "version", "since"))
        since = datetime.fromisoformat(data["since"])
        return cls(id=data["id"], host=data["host"], pid=data["pid"], version=data["version"], since=since)

    def dump(self) -> dict[str, Any]:
        """The JSON that `load` reads."""
        since = self.since.astimezone(UTC).isoformat()
        return {"id": self.id, "host": self.host, "pid": self.pid, "version": self.version, "since": since}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The leadership of a lake as the catalog records it.

    Args:
        epoch: grows with each change of leader; a write under an earlier epoch is refused.
        leader: the process that leads, or was killed while it did; None if the last one released its leadership.
        woke_at: when the leader last looked for work.
        is_paused: whether automatic refreshes of all stream tables are paused.
    """

    epoch: int
    leader: Leader | None
    woke_at: datetime | None
    is_paused: bool

    def check(self, epoch: int) -> None:
        """Refuse to work under a leadership that has ended.

        Raises:
            MillstreamError: LEADERSHIP_LOST.
        """
        if self.epoch != epoch:
            raise lost(epoch, self.epoch)


def lost(epoch: int, current: int) -> MillstreamError:
    """The error of a leader that was replaced."""
    return MillstreamError(
        Code.LEADERSHIP_LOST,
        f"this process led the lake in epoch {epoch}; it is epoch {current} now",
        hint="another process leads the lake: `millstream status` shows it",
    )
