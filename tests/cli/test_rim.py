"""Options, exit codes, errors, progress and the time `--help` takes: what all verbs have in common."""

from __future__ import annotations

import json
import logging
import os
import pty
import resource
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import typer

from kits.cli_stand_in import Call, StandIn
from kits.paths import environment
from millstream import __version__
from millstream.cli.main import command_line, main
from millstream.cli.output import ConsoleOutput
from millstream.cli.progress import Progress
from millstream.errors import Code, MillstreamError
from millstream.results import Portion

VERBS = sorted(typer.main.get_command(command_line()).commands)  # type: ignore[attr-defined]


MANY_ROWS = """
import sys, millstream
from kits.cli_stand_in import Frame, StandIn
from millstream.cli.main import main
lake = StandIn()
lake.frames["SELECT 1"] = Frame(["x"], [("y" * 1000,)] * 2000)
millstream.connect = lake.connect
sys.exit(main(["sql", "SELECT 1", "--limit", "0"]))
"""


def python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, *arguments], text=True, env=environment(), timeout=60, **options
    )


def test_the_verbs() -> None:
    expected = (
        "alter attach bench cancel create dag demo detach drop events explain health history maintain pause refresh "
        "resume run slots sources sql stats status validate verify wait"
    )
    assert " ".join(VERBS) == expected


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(call: Call, verb: str) -> None:
    result = call(verb, "--help")
    assert result.code == 0
    after = result.out.split("Example:")[1]
    assert f"millstream {verb}" in after
    assert "--json" in after


def test_help_is_quick_and_starts_nothing() -> None:
    """In seconds of CPU, the best of several: a busy machine must not fail the test, a slow import must."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        python("-m", "millstream.cli", "--help", check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.4
    code = (
        "import sys; from millstream.cli.main import main; main(['--help']);"
        "print([m for m in ('pyspark', 'sqlglot', 'sqlalchemy', 'pyarrow', 'millstream.service') if m in sys.modules])"
    )
    assert python("-c", code, check=True, capture_output=True).stdout.splitlines()[-1] == "[]"


class TestOptions:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["--lake", "here", "--config", "m.toml", "--json", "status"],
            ["status", "--lake", "here", "--config", "m.toml", "--json"],
            ["--lake", "elsewhere", "--json", "status", "--lake", "here", "--config", "m.toml"],
        ],
    )
    def test_before_and_behind_the_verb(self, lake: StandIn, call: Call, arguments: list[str]) -> None:
        result = call(*arguments)
        assert isinstance(result.data, list)
        assert lake.calls == [("connect", "here", "m.toml"), ("close",)]

    def test_lake_from_the_environment(self, lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLSTREAM_LAKE", "from_env")
        call("status")
        call("status", "--lake", "given")
        call("--lake", "given", "status")
        assert [c[1] for c in lake.calls if c[0] == "connect"] == ["from_env", "given", "given"]

    def test_default_lake(self, lake: StandIn, call: Call) -> None:
        call("status")
        assert lake.calls[0] == ("connect", "lake", None)

    def test_version(self, call: Call) -> None:
        result = call("--version")
        assert result.code == 0
        assert result.out == f"millstream {__version__}\n"

    def test_no_verb_shows_the_help(self, call: Call) -> None:
        result = call()
        assert result.code == 2
        assert "Usage: millstream" in result.out + result.err


class TestErrors:
    def test_coded(self, lake: StandIn, call: Call) -> None:
        lake.errors["totals"] = MillstreamError(Code.SUSPENDED, "totals is suspended", hint="resume it")
        result = call("explain", "totals")
        assert (result.code, result.out) == (1, "")
        assert result.err == "Error: [SUSPENDED] totals is suspended\nHint: resume it\n"
        assert lake.calls[-1] == ("close",)

    def test_coded_as_json(self, lake: StandIn, call: Call) -> None:
        lake.errors["totals"] = MillstreamError(Code.SUSPENDED, "totals is suspended", hint="resume it")
        result = call("explain", "totals", "--json")
        assert (result.code, result.err) == (1, "")
        assert result.data == {
            "error": {"code": "SUSPENDED", "message": "totals is suspended", "hint": "resume it", "position": None}
        }

    def test_unexpected(self, lake: StandIn, call: Call) -> None:
        lake.errors["totals"] = ZeroDivisionError("division by zero\nat a place")
        result = call("explain", "totals")
        assert (result.code, result.out) == (1, "")
        assert result.err.splitlines() == [
            "Error: millstream failed unexpectedly: ZeroDivisionError: division by zero",
            "Hint: run the command again with --traceback to see where",
        ]
        assert call("--json", "explain", "totals").data["error"]["code"] == "INTERNAL"

    @pytest.mark.parametrize("arguments", [["--traceback", "explain", "totals"], ["explain", "totals", "--traceback"]])
    def test_traceback(self, lake: StandIn, call: Call, arguments: list[str]) -> None:
        lake.errors["totals"] = ZeroDivisionError("division by zero")
        assert "Traceback (most recent call last)" in call(*arguments).err

    @pytest.mark.parametrize(
        "arguments", [["status", "--nonsense"], ["nonsense"], ["explain"], ["dag", "--format", "x"]]
    )
    def test_usage(self, lake: StandIn, call: Call, arguments: list[str]) -> None:
        result = call(*arguments)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("Error: ")
        assert "--help` shows the usage" in result.err
        error = call(*arguments, "--json")
        assert (error.code, error.data["error"]["code"]) == (2, "USAGE")

    def test_interrupted(self, lake: StandIn, call: Call) -> None:
        lake.errors["totals"] = KeyboardInterrupt()
        result = call("refresh", "totals")
        assert (result.code, result.out, result.err) == (130, "", "Error: interrupted\n")
        assert lake.calls[-1] == ("close",)

    def test_a_reader_that_leaves_early(self, tmp_path: Path) -> None:
        """`millstream … | head -1` ends without a word on stderr."""
        script = tmp_path / "many_rows.py"
        script.write_text(MANY_ROWS)
        pipe = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} | head -1"
        result = subprocess.run(pipe, shell=True, text=True, env=environment(), timeout=60, capture_output=True)
        assert result.stdout.strip() == "x"
        assert result.stderr == ""


class TestWarnings:
    def test_ours_are_shown_once_as_a_sentence(
        self, lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class FeedWarning(UserWarning):
            __module__ = "millstream.somewhere"

        def refresh(name: str, *, mode: str | None = None) -> object:
            warnings.warn("orders was altered", FeedWarning, stacklevel=2)
            warnings.warn("not for the user", DeprecationWarning, stacklevel=2)
            return StandIn.refresh_stream_table(lake, name, mode=mode)

        monkeypatch.setattr(lake, "refresh_stream_table", refresh)
        assert call("refresh", "totals", "best").err == "Warning: orders was altered\n"
        as_json = call("refresh", "totals", "--json")
        assert as_json.err == "Warning: orders was altered\n"
        assert as_json.data[0]["action"] == "DIFFERENTIAL"
        assert "not for the user" in call("refresh", "totals", "--verbose").err


def test_verbose_shows_the_log(lake: StandIn, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh(name: str, *, mode: str | None = None) -> object:
        logging.getLogger("millstream.refresh").info("read the feed of orders")
        logging.getLogger("millstream.refresh").debug("frontier: 7")
        return StandIn.refresh_stream_table(lake, name, mode=mode)

    monkeypatch.setattr(lake, "refresh_stream_table", refresh)
    once = call("refresh", "totals", "-v").err
    assert "millstream.refresh: read the feed of orders" in once
    assert "frontier" not in once
    for arguments in (("-vv", "refresh", "totals"), ("-v", "refresh", "totals", "--verbose")):
        assert "millstream.refresh: frontier: 7" in call(*arguments).err
    assert call("refresh", "totals").err == ""


class TestProgress:
    SCRIPT = """
import sys, time, millstream
from kits.cli_stand_in import StandIn
from millstream.cli.main import main
lake = StandIn()
lake.phases = ("starting Spark", "computing the delta")
millstream.connect = lake.connect
refresh = lake.refresh_stream_table
def slow(name, *, mode=None):
    result = refresh(name, mode=mode)
    time.sleep(0.3)
    return result
lake.refresh_stream_table = slow
sys.exit(main(["refresh", "totals", "--json"]))
"""

    def test_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "xterm")  # independent of the terminal the tests run in
        ours, theirs = pty.openpty()
        try:
            result = python("-c", self.SCRIPT, stdout=subprocess.PIPE, stderr=theirs)
            os.close(theirs)
            shown = os.read(ours, 100_000).decode()
        finally:
            os.close(ours)
        assert result.returncode == 0
        assert "computing the delta" in shown
        assert json.loads(result.stdout)[0]["action"] == "DIFFERENTIAL"

    def test_how_far_it_is_where_that_is_known(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
        monkeypatch.setenv("COLUMNS", "120")
        progress = Progress(enabled=True)
        with progress.working("loading"):
            progress(Portion.of("reading orders: 30 of about 40 rows", 30, 40))
            progress._bar.refresh()
            known = capsys.readouterr().err
            progress("comparing")
            progress._bar.refresh()
            unknown = capsys.readouterr().err
        assert "reading orders: 30 of about 40 rows" in known
        assert "━" * 18 in known
        assert "75%" in known
        assert "%" not in unknown
        assert "━" not in unknown

    def test_the_spinner_makes_room_for_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        progress = Progress(enabled=True)
        output = ConsoleOutput(progress)
        with progress.working("generating"):
            output.line("one")
            progress("comparing")
            output.table("", ["a"], [["b"]])
        assert capsys.readouterr().out.split() == ["one", "a", "─", "b"]

    def test_nowhere_else(self) -> None:
        result = python("-c", self.SCRIPT, capture_output=True)
        assert result.stderr == ""
        assert json.loads(result.stdout)[0]["action"] == "DIFFERENTIAL"


def test_main_returns_codes_and_does_not_exit(lake: StandIn) -> None:
    assert main(["status"]) == 0
    assert main(["--help"]) == 0
