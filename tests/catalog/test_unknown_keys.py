"""Every typed record of the catalog refuses keys that it does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kits.catalog import T0, body
from kits.lake import refused
from millstream.catalog import Leader
from millstream.catalog.definition_body import DefinitionBody
from millstream.catalog.object_details import ObjectDetails
from millstream.catalog.refresh_details import RefreshDetails
from millstream.catalog.serving_details import FormerServing, ServingDetails
from millstream.errors import Code
from millstream.events import Event, EventName

FORMER = FormerServing(database="d", schema="s", table="t", details=ServingDetails(user_triggers="auto"))
FIGURES = RefreshDetails(changed_rows=1, source_rows=2, rows_read=3, jobs=4, milliseconds={"read": 0.5})
RECORDS: list[tuple[Callable[[Mapping[str, Any]], Any], Any]] = [
    (DefinitionBody.load, body()),
    (ObjectDetails.load, ObjectDetails(columns=("a",), landing="/x")),
    (RefreshDetails.load, FIGURES),
    (Leader.load, Leader(id="a", host="h", pid=1, version="1", since=T0)),
    (Event.load, Event.of(EventName.STALE, T0, schedule="1m")),
    (ServingDetails.load, ServingDetails(user_triggers="off", owner="o", grants=("a",), moved_from=FORMER)),
]


@pytest.mark.parametrize(("load", "record"), RECORDS, ids=lambda item: type(item).__name__)
def test_what_is_dumped_is_loaded(load: Callable[[Mapping[str, Any]], Any], record: Any) -> None:
    assert load(record.dump()) == record


@pytest.mark.parametrize(("load", "record"), RECORDS, ids=lambda item: type(item).__name__)
def test_an_unknown_key_is_refused(load: Callable[[Mapping[str, Any]], Any], record: Any) -> None:
    with refused(Code.CATALOG_FAILED, "from_later"):
        load({**record.dump(), "from_later": 1})


def test_an_unknown_key_further_down_is_refused() -> None:
    data = body().dump()
    data["sources"]["orders"]["from_later"] = 1
    with refused(Code.CATALOG_FAILED):
        DefinitionBody.load(data)


def test_a_refresh_without_figures() -> None:
    assert RefreshDetails.load({}) is None
