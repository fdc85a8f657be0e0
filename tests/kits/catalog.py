"""Records with everything a test does not care about filled in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from millstream.catalog import (
    Catalog,
    Definition,
    Dependency,
    Intent,
    NewStreamTable,
    NoData,
    RefreshOutcome,
    RefreshStart,
    SourceKind,
    Stage,
    StreamTable,
    new_id,
)
from millstream.catalog.definition_body import DefinitionBody, RecordedSource, Translation
from millstream.catalog.models import Load, NewDefinition
from millstream.naming import TableName
from millstream.results import Action, InitiatedBy, RefreshMode

T0 = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


class Clock:
    """A clock that stands still until `pass_seconds` moves it."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> datetime:
        return self.now

    def pass_seconds(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


def base(name: str = "orders") -> Dependency:
    return Dependency(
        kind=SourceKind.TABLE, name=name, source_id=f"/lake/{name}", columns_used=("id", "amount"), fingerprint="f1"
    )


def reads(table: StreamTable) -> Dependency:
    return Dependency(kind=SourceKind.STREAM_TABLE, name=str(table.name), source_id=table.id)


def body(**changes: Any) -> DefinitionBody:
    """A compiled query of which nothing is read."""
    values: dict[str, Any] = {
        "stamp": "s1",
        "outputs": ("x_1", "x_2"),
        "hides_rows": False,
        "fingerprint": "f1",
        "is_faithful": None,
        "sources": {"orders": RecordedSource(columns=(("x", "string"), ("ü", "decimal(10,2)")), table_id="t1")},
        "views": {"v": "SELECT 'it''s'"},
        "functions": {"f": "RETURN 1"},
        "names": {("orders",): "orders", ("s", "v"): "v"},
        "reasons": ("the refresh mode is FULL",),
        "translation": Translation(text="SELECT 1", notices=("n",)),
    }
    return DefinitionBody(**(values | changes))


def definition(*dependencies: Dependency, **changes: Any) -> Definition:
    values: dict[str, Any] = {
        "original_query": "SELECT  'it''s' AS x,\n\tü FROM orders -- exactly",
        "dialect": "spark",
        "body": body(),
        "settings": {"timeZone": "Europe/Berlin", "ansi": True},
        "columns": (("x", "string"), ("ü", "decimal(10,2)")),
        "dependencies": dependencies or (base(),),
        "functions_used": ("sum", "my_udf"),
    }
    return Definition(**(values | changes))


def new_table(name: str = "totals", *dependencies: Dependency, **changes: Any) -> NewStreamTable:
    table_id = new_id()
    values: dict[str, Any] = {
        "id": table_id,
        "name": TableName.parse(name),
        "schedule": "1m",
        "refresh_mode": RefreshMode.AUTO,
        "definition": definition(*dependencies),
        "stages": (
            Stage(id=new_id(), ordinal=0, path=f"/lake/{table_id}/0", is_public=False),
            Stage(id=new_id(), ordinal=1, path=f"/lake/{table_id}/1", is_public=True),
        ),
    }
    return NewStreamTable(**(values | changes))


def new_definition(table: StreamTable, intent: Intent | None = None, **changes: Any) -> NewDefinition:
    """Another definition of a table, loaded if there is an intent."""
    version = 1 if intent is not None else None
    stages = (Stage(id=new_id(), ordinal=0, path=f"/lake/{new_id()}", is_public=True, version=version),)
    values: dict[str, Any] = {
        "table_id": table.id,
        "name": table.name,
        "definition": definition(original_query="SELECT 3"),
        "stages": stages,
        "load": None,
    }
    if intent is not None:
        done = RefreshOutcome(stage_versions={stages[0].id: 1}, action=Action.REINITIALIZE, rows_inserted=3)
        values["load"] = Load(intent=intent, initiated_by=InitiatedBy.INITIAL, reason="QUERY_ALTERED", outcome=done)
    return NewDefinition(**(values | changes))


def intended(table: StreamTable) -> Intent:
    """An intent that no catalog has given."""
    return Intent(
        table_id=table.id,
        refresh_id=1_000,
        action=Action.REINITIALIZE,
        data_timestamp=T0,
        old_frontier={},
        new_frontier={"orders": 9},
        base_frontier={"orders": 9},
        reinit_mark=0,
        created_at=T0,
    )


def start(table: StreamTable, **changes: Any) -> RefreshStart:
    values: dict[str, Any] = {
        "table_id": table.id,
        "action": Action.DIFFERENTIAL,
        "initiated_by": InitiatedBy.MANUAL,
        "data_timestamp": T0,
        "old_frontier": table.frontier,
        "new_frontier": {"orders": 7},
        "base_frontier": {"orders": 7},
        "reason": "SMALL_CHANGE",
    }
    return RefreshStart(**(values | changes))


def outcome(table: StreamTable, version: int = 1, **changes: Any) -> RefreshOutcome:
    values: dict[str, Any] = {"stage_versions": {s.id: version for s in table.stages}, "rows_inserted": 3}
    return RefreshOutcome(**(values | changes))


def no_data(table: StreamTable, **changes: Any) -> NoData:
    values: dict[str, Any] = {
        "table_id": table.id,
        "initiated_by": InitiatedBy.MANUAL,
        "data_timestamp": T0,
        "frontier": {"orders": 8},
        "base_frontier": {"orders": 8},
        "started_at": T0,
        "reason": "NO_CHANGES",
    }
    return NoData(**(values | changes))


def refreshed(catalog: Catalog, table: StreamTable, **changes: Any) -> Intent:
    """Refresh a table from beginning to end."""
    intent = catalog.begin_refresh(start(table, **changes))
    catalog.complete_refresh(intent, outcome(table))
    return intent
