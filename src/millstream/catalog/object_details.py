"""What the catalog records about a table or view of the lake, in addition to its name, location and text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millstream.catalog.json_keys import refuse_unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDetails:
    """The details of a table or view; each is None if it does not apply.

    Args:
        managed: for a table, whether Spark chose its location.
        landing: for a table that records no changes, where it is copied to for refreshes to read.
        create: for such a table, the statement that creates it, without its location.
        columns: the columns of a view.
        capture: for a mirror, the id of its capture.
        stale: for a mirror, why it is no longer brought forward, and its table must be captured again.
    """

    managed: bool | None = None
    landing: str | None = None
    create: str | None = None
    columns: tuple[str, ...] | None = None
    capture: str | None = None
    stale: str | None = None

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """The details from their JSON."""
        refuse_unknown("a table or view", data, ("managed", "landing", "create", "columns", "capture", "stale"))
        columns = data.get("columns")
        return cls(
            managed=data.get("managed"),
            landing=data.get("landing"),
            create=data.get("create"),
            columns=None if columns is None else tuple(columns),
            capture=data.get("capture"),
            stale=data.get("stale"),
        )

    def dump(self) -> dict[str, Any]:
        """The JSON that `load` reads."""
        data = {
            "managed": self.managed,
            "landing": self.landing,
            "create": self.create,
            "columns": None if self.columns is None else list(self.columns),
            "capture": self.capture,
            "stale": self.stale,
        }
        return {key: value for key, value in data.items() if value is not None}
