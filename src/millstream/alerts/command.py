"""Events for a program: it is run once per batch, and reads one JSON object per line from its standard input."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress

from millstream.alerts.sink import FailureCount
from millstream.errors import Code, MillstreamError
from millstream.events import Event

_TIMEOUT_SECONDS = 30.0
_SHOWN_CHARACTERS = 500


class CommandSink:
    """Runs a program, without a shell, for each batch of events.

    Args:
        command: the program and its arguments, quoted as in a shell.
        timeout: after how many seconds it is killed, with the processes it started.
    """

    def __init__(self, command: str, *, timeout: float = _TIMEOUT_SECONDS) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as e:
            raise _invalid(command, str(e)) from e
        if not self._arguments:
            raise _invalid(command, "it is empty")
        self._timeout = timeout
        self._failed = FailureCount(f"the command {self._arguments[0]}")

    @property
    def failures(self) -> int:
        """How many runs failed."""
        return self._failed.total

    def send(self, events: Sequence[Event]) -> None:
        """Run the program with the events."""
        given = "".join(json.dumps(event.dump()) + "\n" for event in events).encode()
        with tempfile.TemporaryFile() as said:  # a pipe would stay open as long as anything the program started
            why = self._run(given, said.fileno())
            if why:
                said.seek(0)
                text = said.read(_SHOWN_CHARACTERS).decode(errors="replace").strip()
                self._failed.add(f"{why}: {text}" if text else why)

    def _run(self, given: bytes, said: int) -> str:
        try:
            process = subprocess.Popen(
                self._arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            )
        except OSError as e:
            return str(e.strerror)
        try:
            process.communicate(given, timeout=self._timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"it did not end within {self._timeout:g} s"
        return f"it ended with {process.returncode}" if process.returncode else ""


def _invalid(command: str, why: str) -> MillstreamError:
    hint = "write a program and its arguments, e.g. '/usr/local/bin/page --team data'"
    return MillstreamError(Code.SETTING_INVALID, f"alert_command = {command!r}: {why}", hint=hint)
