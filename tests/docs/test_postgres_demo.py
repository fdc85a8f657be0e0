"""The PostgreSQL demonstration plays the first tutorial, and shows results as psql does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from kits.pages import TUTORIALS, Psql, blocks_of
from millstream.cli.main import main
from millstream.cli.output import ConsoleOutput
from millstream.demo import story
from millstream.demo.screen import LiveScreen, Screen, screen_for
from millstream.demo.watch import Rows, Watch, fetched
from millstream.testing.postgres_server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def words(text: str) -> str:
    return " ".join(text.split())


def test_it_plays_the_tutorial() -> None:
    blocks = blocks_of(TUTORIALS / "getting-started-postgres.md")
    typed = [words(s) for b in blocks if b.language == "sql" for s in b.text.split(";\n")]
    played = [words(s) for s in (*story.TABLES, *story.GRANTS, *(scene.statement for scene in story.SCENES))]
    assert [statement for statement in typed if statement in played] == played
    program = words(" ".join(b.text for b in blocks if b.language == "python"))
    for name, query in story.QUERIES.items():
        assert f'"{name}", """ {words(query)} """' in program


@pytest.mark.postgres
def test_rows_are_shown_as_psql_does(server: Server, psql: Callable[[str], Psql]) -> None:
    opened = psql("shop")
    opened.run("CREATE TABLE t (n int, longer_name numeric(10,2), words text);")
    query = "SELECT * FROM t ORDER BY n"
    with server.superuser("shop") as connection:
        for rows in ("(1, 10.5, 'a b')", "(200, NULL, NULL), (3, 1000, 'x')"):
            opened.run(f"INSERT INTO t VALUES {rows};")
            shown = [line.rstrip() for line in opened.run(f"{query};").rstrip("\n").splitlines()]
            assert str(fetched(connection, query)).splitlines() == shown


@pytest.mark.postgres
def test_a_change_is_seen_when_it_is_there(server: Server, psql: Callable[[str], Psql]) -> None:
    psql("shop").run("CREATE TABLE t (n int);")
    seen: list[Rows] = []
    with server.superuser("shop") as connection, Watch(server.url("shop"), "SELECT n FROM t", seen.append) as watch:
        before = time.perf_counter()
        assert watch.first_change_after(0.0, timeout=0.2) is None  # the first look is no change
        connection.execute("INSERT INTO t VALUES (7)")
        changed = watch.first_change_after(before)
        assert changed is not None
        assert before < changed < time.perf_counter()
    assert [rows.rows for rows in seen] == [(), ((7,),)]


def test_a_terminal_gets_a_live_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(("path", "people"), (("Mill / Forge", 2),))
    assert type(screen_for(ConsoleOutput())) is Screen
    monkeypatch.setattr("millstream.demo.screen._READING_SECONDS", 0.2)
    with screen_for(ConsoleOutput(), live=True) as screen:
        assert isinstance(screen, LiveScreen)
        screen.working("starting")
        screen.typed("Somebody is hired", "INSERT INTO employees\n VALUES (1)", rows)
        screen.served(rows)
        screen.ended(rows, story.RESULT, "12 ms from COMMIT to the changed row")
    painted = capsys.readouterr().out
    for text in ("Somebody is hired", "hr=> INSERT INTO employees VALUES (1);", "Mill / Forge", "12 ms from COMMIT"):
        assert text in painted


@pytest.mark.spark
@pytest.mark.postgres
def test_it_says_what_it_took(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--postgres", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verified"] == {"org_chart": True, "team_costs": True, "division_costs": True}
    assert said["is_clean"]
    chart = [change["did"]["org_chart"] for change in said["changes"]]
    assert chart == ["+0 ~0 -0", "+1 ~0 -0", "+4 ~0 -4", "+0 ~0 -0"]
    for change in said["changes"]:  # no Spark job is faster, so it is the change and not a look before it
        assert 20 < change["commit_to_row_ms"] <= change["commit_to_chain_ms"] + 1000
