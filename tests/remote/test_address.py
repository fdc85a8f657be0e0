"""Where a process listens: in the lake if that is possible, in place of what a killed process has left."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kits.paths import environment
from millstream.remote.address import address_of, listener


def reached(lake: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(address_of(lake)))
        except OSError:
            return False
        return True


@pytest.mark.parametrize("length", [1, 150], ids=["short path", "path that is too long for a socket"])
def test_only_the_owner_reaches_it_and_nothing_remains(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    runtime = Path(tmp_path_factory.mktemp("r"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    lake = runtime / ("x" * length)
    lake.mkdir()
    with listener(lake):
        assert reached(lake)
        path = address_of(lake)
        assert (path.parent == lake / ".daemon") is (length == 1)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE((lake / ".daemon").stat().st_mode) == 0o700
    assert not reached(lake)
    assert list((lake / ".daemon").iterdir()) == []
    assert list(runtime.iterdir()) == [lake]


@pytest.mark.parametrize("length", [1, 150])
def test_a_socket_of_a_killed_process_is_replaced(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    runtime = Path(tmp_path_factory.mktemp("r"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    lake = runtime / ("x" * length)
    lake.mkdir()
    code = (
        "import os, sys; from pathlib import Path; from millstream.remote.address import listener\n"
        "with listener(Path(sys.argv[1])): os._exit(0)"  # as after a kill: nothing is cleaned up
    )
    subprocess.run([sys.executable, "-c", code, str(lake)], env=environment(), timeout=60, check=True)
    assert address_of(lake).exists()
    assert not reached(lake)
    with listener(lake):
        assert reached(lake)
    assert list(runtime.iterdir()) == [lake]


def test_without_a_process_there_is_no_address(tmp_path: Path) -> None:
    assert not reached(tmp_path)
    assert not reached(tmp_path / "missing")
