"""How a stream table is served, as the catalog records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millstream.catalog.json_keys import refuse_unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingDetails:
    """The options of a served table.

    Args:
        user_triggers: whether the users' triggers on it fire: `auto` or `off`.
        owner: the role that owns it, if not ours.
        grants: the roles that may read it.
        serving_schema: the schema of the ledger in its database; None for the setting of that name.
        moved_from: the table as which it was served before, until that is dropped.
    """

    user_triggers: str
    owner: str | None = None
    grants: tuple[str, ...] = ()
    serving_schema: str | None = None
    moved_from: FormerServing | None = None

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """The options from their JSON."""
        keys = ("user_triggers", "owner", "grants", "serving_schema", "moved_from")
        refuse_unknown("a served table", data, keys)
        moved_from = data.get("moved_from")
        return cls(
            user_triggers=data["user_triggers"],
            owner=data.get("owner"),
            grants=tuple(data.get("grants", ())),
            serving_schema=data.get("serving_schema"),
            moved_from=None if moved_from is None else FormerServing.load(moved_from),
        )

    def dump(self) -> dict[str, Any]:
        """The JSON that `load` reads."""
        data = {
            "serving_schema": self.serving_schema,
            "user_triggers": self.user_triggers,
            "owner": self.owner,
            "grants": list(self.grants),
        }
        return data if self.moved_from is None else {**data, "moved_from": self.moved_from.dump()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerServing:
    """The table as which a stream table was served before."""

    database: str
    schema: str
    table: str
    details: ServingDetails

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """A former served table from its JSON."""
        refuse_unknown("a former served table", data, ("database", "schema", "table", "details"))
        return cls(
            database=data["database"],
            schema=data["schema"],
            table=data["table"],
            details=ServingDetails.load(data["details"]),
        )

    def dump(self) -> dict[str, Any]:
        """The JSON that `load` reads."""
        details = self.details.dump()
        return {"database": self.database, "schema": self.schema, "table": self.table, "details": details}
