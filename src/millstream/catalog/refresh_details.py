"""The cost of a refresh that computed something, for the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millstream.catalog.json_keys import refuse_unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshDetails:
    """The figures of one refresh.

    Args:
        changed_rows: the changed rows of all inputs since the previous refresh.
        source_rows: the rows of all inputs at the new frontier.
        rows_read: the rows read from inputs and stored tables.
        jobs: the number of Spark jobs; None if they could not be counted.
        milliseconds: the duration of each phase.
    """

    changed_rows: int
    source_rows: int
    rows_read: int
    jobs: int | None
    milliseconds: Mapping[str, float]

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self | None:
        """The figures from their JSON; None for a refresh that has none."""
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
        """The JSON that `load` reads."""
        return {
            "changed_rows": self.changed_rows,
            "source_rows": self.source_rows,
            "rows_read": self.rows_read,
            "jobs": self.jobs,
            "ms": dict(self.milliseconds),
        }
