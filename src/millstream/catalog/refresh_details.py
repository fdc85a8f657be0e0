"""What a refresh that computed something has cost, for the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millstream.catalog.json_keys import refuse_unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshDetails:
    """The figures of one refresh.

    Args:
        changed_rows: of all inputs, since the refresh before.
        source_rows: of all inputs, at the new frontier.
        rows_read: of inputs and stored tables.
        jobs: that Spark ran; None if they could not be counted.
        milliseconds: by phase.
    """

    changed_rows: int
    source_rows: int
    rows_read: int
    jobs: int | None
    milliseconds: Mapping[str, float]

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self | None:
        """The figures of their JSON; None for a refresh that has none."""
        if not data:
            return None
        refuse_unknown("a refresh", data, ("changed_rows", "source_rows", "rows_read", "jobs", "ms"))
        return cls(
            changed_rows=data["changed_rows"],
            source_rows=data["source_rows"],
            rows_read=data["rows_read"],
            jobs=data["jobs"],
            milliseconds=dict(data["ms"]),
        )

    def dump(self) -> dict[str, Any]:
        """The JSON that `load` takes."""
        return {
            "changed_rows": self.changed_rows,
            "source_rows": self.source_rows,
            "rows_read": self.rows_read,
            "jobs": self.jobs,
            "ms": dict(self.milliseconds),
        }
