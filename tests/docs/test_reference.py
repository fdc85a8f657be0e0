"""The reference names every statement, call, verb, state and reason there is, and its snippets run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

import millstream
from kits.pages import ROOT, LakeSql, Reader, blocks_of
from millstream import notices
from millstream.cli.main import command_line, main
from millstream.errors import Code
from millstream.events import Event
from millstream.reasons import Place, Reason
from millstream.results import (
    Action,
    CdcHealth,
    Explanation,
    InitiatedBy,
    MaintenanceResult,
    RefreshMode,
    RefreshRecord,
    RefreshResult,
    RefreshStats,
    RefreshStatus,
    SlotHealth,
    SourceStatus,
    Status,
    StreamTableStatus,
    VerifyResult,
    WaitResult,
)
from millstream.scheduler.schedule import _ALIASES, Schedule
from millstream.sql.statements.own import _OWN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "reference.md"
TEXT = PAGE.read_text()
RECORDS = (
    RefreshResult,
    WaitResult,
    MaintenanceResult,
    VerifyResult,
    StreamTableStatus,
    RefreshStats,
    RefreshRecord,
    Event,
    SourceStatus,
    CdcHealth,
    SlotHealth,
    Explanation,
)


def row_of(name: str) -> str:
    """The row of a table whose first cell begins with a name."""
    [row] = [line for line in TEXT.splitlines() if line.startswith((f"| `{name}` ", f"| `{name} "))]
    return row


def test_every_statement_is_there() -> None:
    words = " ".join(TEXT.split())
    for _, form, _ in _OWN:
        assert form in words, form


def calls() -> Iterator[str]:
    """The public calls, as they are written: names and defaults, no types."""
    members = {n: m for n, m in vars(millstream.Millstream).items() if not n.startswith("_")}
    yield f"millstream.connect{_written(millstream.connect, first=0)}"
    for name, member in members.items():
        yield name if isinstance(member, property) else f"{name}{_written(member, first=1)}"


def _written(function: object, first: int) -> str:
    assert callable(function)
    parameters = list(inspect.signature(function).parameters.values())[first:]
    shown, is_keyword = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            shown.append("*")
            is_keyword = True
        default = parameter.default
        text = json.dumps(default) if isinstance(default, str) else repr(default)
        shown.append(parameter.name if default is parameter.empty else f"{parameter.name}={text}")
    return f"({', '.join(shown)})"


@pytest.mark.parametrize("call", list(calls()), ids=lambda call: call.split("(")[0])
def test_every_call_is_there(call: str) -> None:
    assert f"`{call}`" in TEXT


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_there(record: type) -> None:
    assert record.__name__ in millstream.__all__
    row = row_of(record.__name__)
    assert [f.name for f in fields(record) if f"`{f.name}`" not in row] == []


def test_every_verb_and_option_is_there() -> None:
    command = typer.main.get_command(command_line())
    verbs: dict[str, typer.core.TyperCommand] = command.commands  # type: ignore[attr-defined]
    for parameter in command.params:
        assert all(f"`{option}`" in TEXT for option in parameter.opts), parameter.opts
    shared = {option for parameter in command.params for option in parameter.opts}
    for name, verb in verbs.items():
        options = {option for p in verb.params for option in p.opts if option.startswith("-")} - shared
        row = row_of(name)
        assert [option for option in options - {"--help", "-h"} if f"`{option}`" not in row] == [], name


def test_every_state_action_and_reason_is_there() -> None:
    for word in (*Status, *Action):
        assert row_of(word), word
    for word in (*RefreshMode, *RefreshStatus, *InitiatedBy):
        assert word in TEXT, word
    for reason in Reason:
        if sentence := reason.sentences.get(Place.HISTORY):
            assert row_of(reason).endswith(f"| {sentence} |"), reason
    for alias in _ALIASES:
        assert f"`{alias}`" in TEXT, alias


def test_every_warning_is_there() -> None:
    classes = [c for c in vars(notices).values() if isinstance(c, type) and issubclass(c, notices.MillstreamWarning)]
    assert len(classes) >= 6
    for each in classes:
        assert row_of(each.__name__), each


def test_schedules_that_are_shown_are_schedules() -> None:
    rows = TEXT.partition("| schedule | |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    shown = [cell for row in rows for cell in row.split("|")[1].split("`")[1::2]]
    assert len(shown) == 6 + 2 + len(_ALIASES) + 1
    for text in shown:
        Schedule.parse(text, min_seconds=0.1)


def test_an_error_is_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [shown] = [block for block in blocks_of(PAGE) if block.language == "json"]
    assert main(["--lake", str(tmp_path), "status", "nope", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == json.loads(shown.text)


def test_codes_that_are_named_exist() -> None:
    for code in ("SOURCE_MISSING", "SOURCE_CHANGED", "FULL_REQUIRED", "LAKE_CLOSED", "DATABASE_REPLACED", "SUSPENDED"):
        assert f"`{code}`" in TEXT
        assert Code(code)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::millstream.notices.ChangeFeedWarning")
def test_the_page_runs_as_written(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_LAKE", str(tmp_path / "lake"))
    reader = Reader(PAGE)
    reader.psql = LakeSql(reader.namespace)
    count = reader.read()
    assert min(count["python"], count["sql"], count["console"], count["text"]) >= 1
