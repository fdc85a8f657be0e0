"""Writes the pages of errors, events, reasons and settings from the code, so that they cannot go stale.

`python -m millstream.testing.reference_docs` writes them; with `--check` it only reports whether they are up to date.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from millstream import settings
from millstream.errors import Code
from millstream.events import FIELDS, Event, EventName
from millstream.naming import TableName
from millstream.reasons import CaptureReason, Place, Reason
from millstream.settings import Settings


def errors_page() -> str:
    """All error codes with their explanations."""
    rows = [f"| `{code.value}` | {code.explanation} |" for code in Code]
    return "\n".join(
        [
            "# Errors",
            "",
            "Every error millstream raises on purpose is a `MillstreamError` with one of these codes, a message,",
            "a hint and, for SQL, a position. Match on `error.code`; the texts may change.",
            "",
            "| code | meaning |",
            "|---|---|",
            *rows,
            "",
        ]
    )


_SHOWN_IN = {
    Place.HISTORY: (
        "In `refresh_history` and in the result of a refresh; `explain` and `validate` list those for which a query",
        "may be recomputed. [Actions and reasons](reference.md#actions-and-reasons) has the action of each.",
    ),
    Place.SERVED: (
        "In `millstream.served_tables.reason` of the database that holds the [served table](serving.md): why it was",
        "last written and, for all but `CHANGED`, why as a whole.",
    ),
    Place.SOURCES: (
        "In `millstream sources`, for a captured table that is not brought forward: one of these, the code of an",
        "[error](errors.md) with its message, or a sentence about the table.",
    ),
}


def reasons_page() -> str:
    """All reasons with their meanings, by the place that shows them."""
    lines = [
        "# Reasons",
        "",
        "Why a refresh, a served table or a captured table is what its record says. A reason is one of these codes,",
        "mostly followed by a colon and the facts. Match on the code; the facts may change. A stream table in `ERROR`",
        "has the code of an [error](errors.md) as its reason.",
    ]
    for place, where in _SHOWN_IN.items():
        shown = [(reason, reason.sentences[place]) for reason in Reason if place in reason.sentences]
        rows = [f"| `{reason}` | {sentence} |" for reason, sentence in shown]
        lines += ["", f"## {place}", "", *where, "", "| reason | meaning |", "|---|---|", *rows]
    sentences = [f"| {reason} | `{reason.state}` |" for reason in CaptureReason]
    lines += ["", "The sentences, and the state they come with:", "", "| reason | state |", "|---|---|", *sentences]
    return "\n".join([*lines, ""])


def events_page() -> str:
    """All events with their severity, fields and meanings."""
    sample = Event.of(
        EventName.STALE,
        datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC),
        TableName.parse("reports.totals"),
        staleness_secs=130.5,
        schedule="1m",
        data_timestamp=datetime(2026, 3, 4, 5, 3, 56, 500_000, tzinfo=UTC),
    )
    shown = json.dumps({**sample.dump(), "event_id": 42}, indent=2)
    rows = [
        f"| `{e}` | {e.severity} | {e.explanation} | {', '.join(f'`{name}`' for name in e.fields)} |" for e in EventName
    ]
    return "\n".join(
        [
            "# Events",
            "",
            "What happens in a lake is kept in its catalog: `millstream events` and `ms.events()` read it. Events are",
            "also sent to Python's logging (logger `millstream.events`) and, by the [settings](settings.md) `alert_*`,",
            "to a webhook (a JSON array per request), to a program (one JSON object per line on its standard input)",
            "and by NOTIFY, on the channel `millstream_alert` of every attached database.",
            "",
            "Every event has the same keys, followed by its own fields:",
            "",
            "```json",
            shown,
            "```",
            "",
            "`time` is in UTC. `schema` and `stream_table` name the stream table, `database` the attached database;",
            "they are null if the event is about none. `event_id` grows in the order in which events are recorded. A",
            "field without a value is null.",
            "",
            "Every role that can connect to a database may LISTEN there. The payload of a NOTIFY therefore has no",
            "`error_message`, and of a `reason` only its code: both could quote values of rows. A payload has less",
            "than 8,000 bytes; longer texts are shortened.",
            "",
            "| event | severity | meaning | fields |",
            "|---|---|---|---|",
            *rows,
            "",
            "| field | meaning |",
            "|---|---|",
            *(f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items()),
            "",
        ]
    )


def settings_page() -> str:
    """All settings with defaults, ranges and descriptions."""
    descriptions = _descriptions()
    rows = []
    for item in dataclasses.fields(Settings):
        default = item.default if item.default is not dataclasses.MISSING else {}
        low_high = item.metadata.get("range")
        bounds = f"{low_high[0]} to {low_high[1]}" if low_high else ""
        rows.append(f"| `{item.name}` | `{_toml(default)}` | {bounds} | {descriptions[item.name]} |")
    return "\n".join(
        [
            "# Settings",
            "",
            "In a `millstream.toml` in the lake's directory, or one named by `connect(config=...)` or `--config`:",
            "",
            "```toml",
            "[millstream]",
            "differential_max_change_ratio = 0.2",
            "",
            "[spark]",
            'spark.driver.memory = "8g"',
            "```",
            "",
            "An unknown name is an error. `[spark]` holds settings of the Spark session (`spark_conf` below).",
            "",
            "| setting | default | range | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _descriptions() -> dict[str, str]:
    """The docstring of each field of `Settings`."""
    body = next(
        node
        for node in ast.parse(inspect.getsource(settings)).body
        if isinstance(node, ast.ClassDef) and node.name == "Settings"
    ).body
    found: dict[str, str] = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr), f"{field.target.id} has no description"
            assert isinstance(text.value, ast.Constant), f"{field.target.id} has no description"
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _toml(value: object) -> str:
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


PAGES = {"errors.md": errors_page, "events.md": events_page, "reasons.md": reasons_page, "settings.md": settings_page}


def main(arguments: list[str]) -> int:
    """Write or check the pages; the exit code is 1 if one is stale."""
    docs = Path(__file__).resolve().parents[3] / "docs"
    stale = [name for name, make in PAGES.items() if _text(docs / name) != make()]
    if "--check" in arguments:
        for name in stale:
            print(f"docs/{name} is stale: run python -m millstream.testing.reference_docs", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (docs / name).write_text(PAGES[name]())
    return 0


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
