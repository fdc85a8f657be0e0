"""Calls of other processes, over a real socket, on a facade in memory; `tests/cli/test_client.py` has a real lake."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from kits.cli_stand_in import Frame, StandIn
from kits.paths import environment
from millstream import __version__, notices
from millstream.cli.facade import Facade
from millstream.errors import Code, MillstreamError, Position
from millstream.remote import protocol
from millstream.remote.address import address_of
from millstream.remote.client import AloneError, RemoteLake, dial
from millstream.results import Status
from millstream.service.daemon.call_server import CallServer
from millstream.service.daemon.client_call import current_call

VERSION = "1.2.3"


class Lake(StandIn):
    """Some calls do what a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.refreshing: Callable[[], object] = lambda: None

    def refresh_stream_table(self, name: str, *, mode: str | None = None) -> Any:
        self.refreshing()
        return super().refresh_stream_table(name, mode=mode)


@contextmanager
def serving(lake: Lake, root: Path, config: Path | None = None, version: str = VERSION) -> Iterator[threading.Event]:
    stop = threading.Event()
    server = CallServer(cast("Any", lake), version, config, lambda: cast("Any", lake.sql))
    with server.listening(root, stop):
        yield stop


@pytest.fixture
def lake() -> Lake:
    return Lake()


@pytest.fixture
def stop(lake: Lake, tmp_path: Path) -> Iterator[threading.Event]:
    with serving(lake, tmp_path) as stopping:
        yield stopping


def connected(root: Path, progress: Callable[[str], None] = lambda _: None, **options: Any) -> RemoteLake:
    return dial(root, options.get("config"), options.get("version", VERSION), progress)


def test_a_result_is_that_of_the_facade(lake: Lake, stop: threading.Event, tmp_path: Path) -> None:
    with connected(tmp_path) as client:
        assert client.refresh_stream_table("totals", mode="FULL") == lake.refresh_stream_table("totals", mode="FULL")
        assert lake.calls[0] == ("refresh", "totals", "FULL")
        assert client.status() == lake.status()
        graph = client.dag()
        assert (graph.nodes, graph.edges, graph.stream_tables) == (
            lake.dag().nodes,
            lake.dag().edges,
            lake.dag().stream_tables,
        )
        assert (graph.mermaid(), graph.dot()) == (lake.dag().mermaid(), lake.dag().dot())


def test_an_error_keeps_code_hint_and_position_and_the_connection_goes_on(
    lake: Lake, stop: threading.Event, tmp_path: Path
) -> None:
    error = MillstreamError(Code.SUSPENDED, "it is", hint="resume it", position=Position(1, 2), sql="abc")
    lake.errors["totals"] = error
    with connected(tmp_path) as client:
        with pytest.raises(MillstreamError) as caught:
            client.refresh_stream_table("totals")
        assert (caught.value.code, str(caught.value)) == (error.code, str(error))
        assert client.refresh_stream_table("best").rows_inserted == 1234


def test_progress_and_warnings_reach_the_client(lake: Lake, stop: threading.Event, tmp_path: Path) -> None:
    def refreshing() -> None:
        call = current_call()
        assert call is not None
        call.progress("computing")
        notices.warn("mind the gap", notices.CaptureWarning)

    lake.refreshing, seen = refreshing, list[str]()
    with connected(tmp_path, seen.append) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.refresh_stream_table("totals")
    assert seen == ["computing"]
    assert [(w.category, str(w.message)) for w in caught] == [(notices.CaptureWarning, "mind the gap")]


def test_rows_are_fetched_from_the_last_statement(lake: Lake, stop: threading.Event, tmp_path: Path) -> None:
    many = 2 * protocol.ROWS_PER_MESSAGE + 1
    lake.frames["SELECT 1"] = Frame(["x", "y"], [(i, b"\x01") for i in range(many)])
    with connected(tmp_path) as client:
        frame = client.sql("SELECT 1")
        assert frame.columns == ["x", "y"]
        assert frame.take(2) == [[0, b"\x01"], [1, b"\x01"]]
        assert [x for x, _ in frame.collect()] == list(range(many))
        assert client.sql("DROP TABLE t").collect() == []


def test_only_listed_calls_are_made(lake: Lake, stop: threading.Event, tmp_path: Path) -> None:
    with connected(tmp_path) as client:
        with pytest.raises(AttributeError):
            client.run()
        for name in ("run", "connect", "__init__", "calls"):
            with pytest.raises(MillstreamError) as caught:
                client.call(name)
            assert caught.value.code is Code.DAEMON_REFUSED
    assert lake.calls == []


def test_the_calls_are_those_of_the_command_line() -> None:
    """A new call of the facade fails here until it is decided whether clients may make it."""
    calls = {name for name in vars(Facade) if not name.startswith("_")}
    assert calls == protocol.CALLS | {protocol.SQL, protocol.DAG, "run"}


@pytest.mark.parametrize("options", [{"version": "1.2.4"}, {"config": Path("other.toml")}], ids=str)
def test_another_version_or_other_settings_work_alone(
    lake: Lake, stop: threading.Event, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(AloneError):
        connected(tmp_path, **options)


def test_the_same_settings_use_the_process(lake: Lake, tmp_path: Path) -> None:
    config = tmp_path / "millstream.toml"
    with serving(lake, tmp_path, config):
        for given in (config, None):
            with connected(tmp_path, config=given) as client:
                assert client.status()[0].status is Status.ACTIVE


def test_without_a_process_the_client_works_alone(tmp_path: Path) -> None:
    with pytest.raises(AloneError):
        connected(tmp_path)


def test_running_calls_are_finished_and_no_new_client_is_accepted(
    lake: Lake, stop: threading.Event, tmp_path: Path
) -> None:
    started, go_on, results = threading.Event(), threading.Event(), list[Any]()

    def refreshing() -> None:
        started.set()
        assert go_on.wait(30)

    lake.refreshing = refreshing
    with connected(tmp_path) as client:
        thread = threading.Thread(target=lambda: results.append(client.refresh_stream_table("totals")))
        thread.start()
        assert started.wait(30)
        stop.set()
        until(lambda: not address_of(tmp_path).exists())
        with pytest.raises(AloneError):
            connected(tmp_path)
        go_on.set()
        thread.join(30)
    assert [r.rows_inserted for r in results] == [1234]


def test_a_client_that_goes_away_is_noticed_while_its_call_runs(
    lake: Lake, stop: threading.Event, tmp_path: Path
) -> None:
    has_gone = threading.Event()

    def refreshing() -> None:
        call = current_call()
        assert call is not None
        until(call.has_gone)
        has_gone.set()

    lake.refreshing = refreshing
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(address_of(tmp_path)))
    greeting = {"protocol": protocol.PROTOCOL, "version": VERSION, "config": None}
    connection.sendall(protocol.packed(protocol.GREETING, greeting))
    connection.sendall(protocol.packed(protocol.CALL, ["refresh_stream_table", ["totals"], {}]))
    connection.close()
    assert has_gone.wait(30)


def test_ctrl_c_ends_the_wait_and_the_process_notices(lake: Lake, tmp_path: Path) -> None:
    started, has_gone = threading.Event(), threading.Event()

    def refreshing() -> None:
        call = current_call()
        assert call is not None
        started.set()
        until(call.has_gone)
        has_gone.set()

    lake.refreshing = refreshing
    with serving(lake, tmp_path, version=__version__):
        command = [sys.executable, "-m", "millstream.cli", "--lake", str(tmp_path), "refresh", "totals"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()) as process:
            assert started.wait(60)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert process.stderr is not None
            assert b"interrupted" in process.stderr.read()
        assert has_gone.wait(30)


def test_an_unexpected_failure_is_reported_and_ends_nothing(lake: Lake, stop: threading.Event, tmp_path: Path) -> None:
    lake.errors["totals"] = RuntimeError("a bug")
    with connected(tmp_path) as client:
        with pytest.raises(MillstreamError) as caught:
            client.refresh_stream_table("totals")
        assert caught.value.code is Code.DAEMON_LOST
        assert client.refresh_stream_table("best").rows_inserted == 1234


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b'{"call": ["status", [], {}]}\n', b"[]\n"])
def test_what_is_not_a_greeting_is_refused(lake: Lake, stop: threading.Event, tmp_path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(address_of(tmp_path)))
        connection.sendall(data)
        answer = connection.makefile("rb").read()
    assert b"DAEMON_REFUSED" in answer
    assert lake.calls == []


SERVER = """
import os, sys, threading
from pathlib import Path
from kits.cli_stand_in import StandIn
from millstream.service.daemon.call_server import CallServer

class Lake(StandIn):
    def refresh_stream_table(self, name, *, mode=None):
        os._exit(1)

with CallServer(Lake(), "1.2.3", None, lambda: None).listening(Path(sys.argv[1]), threading.Event()):
    print("ready", flush=True)
    threading.Event().wait()
"""


def test_a_process_that_dies_during_a_call_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with connected(tmp_path) as client, pytest.raises(MillstreamError) as caught:
            client.refresh_stream_table("totals")
        assert caught.value.code is Code.DAEMON_LOST
    with pytest.raises(AloneError):
        connected(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_is_refused(lake: Lake, stop: threading.Event, tmp_path: Path) -> None:
    """Permissions alone keep others out; here they are opened, so that the check of the user id has to."""
    path = address_of(tmp_path)
    path.chmod(0o666)
    for directory in (path.parent, *path.parent.parents[:-1]):
        directory.chmod(0o755)
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        'sys.stdout.buffer.write(s.makefile("rb").read())'
    )
    answer = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=60, check=True).stdout
    assert b"DAEMON_REFUSED" in answer


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
