"""A stand-in for the service facade, and a way to call the command line on it.

Only rendering, exit codes and the shape of the JSON are tested on it; `test_end_to_end.py` runs the real thing.
"""

from __future__ import annotations

import pytest

from kits.cli_stand_in import Call, Called, StandIn
from millstream.cli.main import main


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.delenv("MILLSTREAM_LAKE", raising=False)
    monkeypatch.setattr("millstream.connect", stand_in.connect, raising=False)
    return stand_in


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str) -> Called:
        code = main(arguments)
        captured = capsys.readouterr()
        return Called(code, captured.out, captured.err)

    return run
