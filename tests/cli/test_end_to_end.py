"""The real commands on a real lake: a table, a stream table on it, changes, and every verb once.

A process that opens a lake starts a JVM, so only the first commands get a process each; the others share one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long]  # each command starts a JVM of its own

SCRIPT = Path(sys.executable).with_name("millstream")
COMMAND = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "millstream.cli"]

SETUP = """
CREATE TABLE orders (id BIGINT, customer STRING, amount DECIMAL(10,2));  -- a Delta table;
INSERT INTO orders VALUES (1, 'alice', 49.99), (2, 'bob; the builder', 10.00);
SELECT COUNT(*) AS n FROM orders;
"""
# C1 only: a JVM that lives for seconds is warm sooner.
SETTINGS = """
[spark]
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"""
TOTALS = "SELECT customer, SUM(amount) AS total, COUNT(*) AS order_count FROM orders GROUP BY customer"

# Runs each command as the script would, and writes what it gave to stdout.
SHARED_PROCESS = """
import contextlib, io, json, sys
from millstream.cli.main import main
results = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    results.append([code, out.getvalue(), err.getvalue()])
json.dump(results, sys.stdout)
"""
SHARED = {
    "insert": ["sql", "INSERT INTO orders VALUES (3, 'alice', 0.01), (4, 'carol', 5.00)"],
    "status": ["status", "--json"],
    "refresh": ["refresh", "customer_totals", "--json"],
    "refresh again": ["refresh", "--all"],
    "select": ["sql", "SELECT * FROM customer_totals ORDER BY customer", "--json"],
    "dml": ["sql", "DELETE FROM customer_totals", "--json"],
    "second": ["sql", "CREATE STREAM TABLE best AS SELECT customer FROM customer_totals WHERE total > 40"],
    "history": ["history", "customer_totals", "--json"],
    "explain": ["explain", "customer_totals", "--json"],
    "validate": ["validate", TOTALS, "--json"],
    "validate wrong": ["validate", "SELECT customer,\n  nope\nFROM orders"],
    "verify": ["verify", "--all", "--json"],
    "dag": ["dag"],
    "alter": ["alter", "best", "--schedule", "5m", "--json"],
    "drop refused": ["drop", "customer_totals", "--json"],
    "drop": ["drop", "customer_totals", "--cascade", "--yes"],
    "status at the end": ["status", "--json"],
}


class Run:
    """What a command gave."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def data(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    directory = tmp_path_factory.mktemp("end_to_end")
    settings = directory / "millstream.toml"
    settings.write_text(SETTINGS)
    environment = {**os.environ, "MILLSTREAM_LAKE": str(directory / "lake")}

    def run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, env=environment, cwd=directory, timeout=300
        )

    found: dict[str, Run] = {}
    query = directory / "totals.sql"
    query.write_text(TOTALS + ";\n")
    for name, arguments, text in (
        ("setup", ["sql", "--json"], SETUP),
        ("create", ["create", "customer_totals", "--file", str(query), "--json"], ""),
    ):
        done = run([*COMMAND, "--config", str(settings), *arguments], text)
        found[name] = Run(done.returncode, done.stdout, done.stderr)
    commands = [["--config", str(settings), *arguments] for arguments in SHARED.values()]
    shared = run([sys.executable, "-c", SHARED_PROCESS], json.dumps(commands))
    assert shared.returncode == 0, shared.stderr
    found |= {name: Run(*result) for name, result in zip(SHARED, json.loads(shared.stdout), strict=True)}
    return found


def test_sql(runs: dict[str, Run]) -> None:
    run = runs["setup"]
    assert run.code == 0, run.err
    created, _, counted = run.data
    assert created["columns"] == []
    assert counted["rows"] == [[2]]


def test_create(runs: dict[str, Run]) -> None:
    run = runs["create"]
    assert run.code == 0, run.err
    assert run.data["created"]["name"] == "customer_totals"


def test_status(runs: dict[str, Run]) -> None:
    (status,) = runs["status"].data
    assert (status["name"], status["status"], status["is_populated"]) == ("customer_totals", "ACTIVE", True)


def test_refresh(runs: dict[str, Run]) -> None:
    assert runs["insert"].code == 0, runs["insert"].err
    (refreshed,) = runs["refresh"].data
    assert refreshed["action"] in {"DIFFERENTIAL", "FULL"}
    if refreshed["action"] == "DIFFERENTIAL":
        assert [refreshed[f"rows_{kind}"] for kind in ("inserted", "updated", "deleted")] == [1, 1, 0]
    assert "NO_DATA" in runs["refresh again"].out


def test_contents(runs: dict[str, Run]) -> None:
    (result,) = runs["select"].data
    assert result["columns"] == ["customer", "total", "order_count"]
    assert result["rows"] == [["alice", "50.00", 2], ["bob; the builder", "10.00", 1], ["carol", "5.00", 1]]


def test_a_stream_table_is_not_written(runs: dict[str, Run]) -> None:
    error = runs["dml"].data["error"]
    assert (runs["dml"].code, error["code"]) == (1, "STREAM_TABLE_READ_ONLY")
    assert error["position"] == {"line": 1, "column": 13}


def test_history(runs: dict[str, Run]) -> None:
    records = runs["history"].data
    assert [r["initiated_by"] for r in records if r["action"] != "NO_DATA"] == ["MANUAL", "INITIAL"]
    assert {r["status"] for r in records} == {"COMPLETED"}


def test_explain(runs: dict[str, Run]) -> None:
    data = runs["explain"].data
    assert data["supported"] is True
    assert [c["name"] for c in data["columns"]] == ["customer", "total", "order_count"]
    assert data["steps"]


def test_validate(runs: dict[str, Run]) -> None:
    assert runs["validate"].data["supported"] is True
    run = runs["validate wrong"]
    assert run.code == 1
    assert run.out == ""
    assert run.err.startswith("Error: [UNKNOWN_COLUMN] ")
    assert "(line 2, column 3)\n    nope\n    ^" in run.err


def test_verify(runs: dict[str, Run]) -> None:
    assert runs["verify"].code == 0, runs["verify"].out
    assert [(v["name"], v["ok"]) for v in runs["verify"].data] == [("customer_totals", True), ("best", True)]


def test_dag(runs: dict[str, Run]) -> None:
    assert [line.split()[-1] for line in runs["dag"].out.splitlines()] == ["(table)", "customer_totals", "best"]


def test_alter_and_drop(runs: dict[str, Run]) -> None:
    assert runs["alter"].data["altered"]["schedule"] == "5m"
    assert runs["drop refused"].data["error"]["code"] == "DEPENDENTS_EXIST"
    assert runs["drop"].out == "dropped customer_totals, best\n"
    assert runs["status at the end"].data == []


def test_a_quiet_process(runs: dict[str, Run]) -> None:
    """Neither Spark nor the resolver has anything to say on stderr."""
    assert runs["setup"].err == ""
    assert runs["verify"].err == ""
    assert runs["create"].err.startswith("Warning: the change data feed of orders was switched on")
    assert len(runs["create"].err.splitlines()) == 1
