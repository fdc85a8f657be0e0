"""Logging, a real HTTP server and real programs as receivers of events."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kits.lake import refused
from millstream.alerts.command import CommandSink
from millstream.alerts.log_sink import LOGGER, LogSink
from millstream.alerts.webhook import WebhookSink
from millstream.errors import Code
from millstream.events import Event, EventName
from millstream.naming import TableName

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
STALE = Event.of(EventName.STALE, NOON, TableName.parse("totals"), schedule="1m")
FAILED = Event.of(EventName.REFRESH_FAILED, NOON, TableName.parse("totals"), error_message="größer \n than")


def test_logging(caplog: pytest.LogCaptureFixture) -> None:
    sink = LogSink()
    with caplog.at_level(logging.INFO, LOGGER):
        sink.send([STALE, FAILED])
    assert [(r.name, r.levelname) for r in caplog.records] == [(LOGGER, "WARNING"), (LOGGER, "ERROR")]
    assert caplog.records[0].getMessage() == "stale totals schedule=1m"
    assert caplog.records[1].__dict__["millstream_event"] == FAILED.dump()


class Receiver:
    """A web server that answers with the given codes, then with 204."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.requests: list[tuple[str, str, object]] = []
        self.url = ""


@contextmanager
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.requests.append((self.path, self.headers["Content-Type"], body))
            self.send_response(found.answers.pop(0) if found.answers else 204)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}/hook/s3cret"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class TestWebhook:
    def test_a_batch_is_one_request(self) -> None:
        with receiver() as web:
            sink = WebhookSink(web.url)
            sink.send([STALE, FAILED])
        assert web.requests == [("/hook/s3cret", "application/json", [STALE.dump(), FAILED.dump()])]
        assert sink.failures == 0

    @pytest.mark.parametrize(("answers", "tries", "failures"), [
        ([503], 2, 0), ([500, 429], 3, 0), ([503] * 3, 3, 1), ([404], 1, 1), ([302], 1, 1),
    ])  # fmt: skip
    def test_what_is_tried_again(self, answers: list[int], tries: int, failures: int) -> None:
        pauses: list[float] = []
        with receiver() as web:
            web.answers = list(answers)
            sink = WebhookSink(web.url, sleep=pauses.append)
            sink.send([STALE])
        assert (len(web.requests), sink.failures, len(pauses)) == (tries, failures, tries - 1)

    def test_nobody_there(self, caplog: pytest.LogCaptureFixture) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            sink = WebhookSink(f"http://127.0.0.1:{unused.getsockname()[1]}/s3cret", sleep=lambda _: None)
            sink.send([STALE])
            sink.send([STALE])
        assert sink.failures == 2
        assert "s3cret" not in caplog.text

    def test_one_that_does_not_answer(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            sink = WebhookSink(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout=0.05, sleep=lambda _: None)
            sink.send([STALE])
        assert sink.failures == 1

    def test_the_url_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with receiver() as web:
            monkeypatch.setenv("HOOK", web.url)
            WebhookSink("env:HOOK").send([STALE])
        assert len(web.requests) == 1

    @pytest.mark.parametrize("url", ["file:///etc/passwd", "env:NOT_SET_HERE", "host/path", "https://"])
    def test_wrong_urls(self, url: str) -> None:
        with refused(Code.SETTING_INVALID, "alert_webhook_url"):
            WebhookSink(url)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "alert me"
    path.write_text(f"#!/bin/sh\necho \"$1\" >> '{tmp_path}/arguments'\ncat >> '{tmp_path}/got'\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


class TestCommand:
    def test_it_reads_json_lines(self, script: Path) -> None:
        sink = CommandSink(f"'{script}' 'to; whom'")
        sink.send([STALE, FAILED])
        sink.send([STALE])
        got = [json.loads(line) for line in (script.parent / "got").read_text().splitlines()]
        assert got == [STALE.dump(), FAILED.dump(), STALE.dump()]
        assert (script.parent / "arguments").read_text() == "to; whom\n" * 2
        assert sink.failures == 0

    def test_failures_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        sink = CommandSink("sh -c 'echo no paper >&2; exit 3'")
        sink.send([STALE] * 5_000)  # more than a pipe holds, and nobody reads it
        CommandSink("/not/there").send([STALE])
        assert sink.failures == 1
        assert "it ended with 3: no paper" in caplog.text
        assert "/not/there" in caplog.text

    def test_one_that_hangs_is_killed_with_its_children(self, tmp_path: Path) -> None:
        pid_file = tmp_path / "pid"
        sink = CommandSink(f"sh -c 'sleep 60 & echo $! > {pid_file}; wait'", timeout=0.5)
        started = time.monotonic()
        sink.send([STALE])
        assert time.monotonic() - started < 10
        assert sink.failures == 1
        pid, end = int(pid_file.read_text()), time.monotonic() + 10
        while time.monotonic() < end and is_running(pid):
            time.sleep(0.01)
        assert not is_running(pid)

    @pytest.mark.parametrize("command", ["", "  ", "a 'b"])
    def test_wrong_commands(self, command: str) -> None:
        with refused(Code.SETTING_INVALID, "alert_command"):
            CommandSink(command)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie that its new parent has not collected yet."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
