"""Where the running process of a lake listens: a socket in the lake, or in a directory that a file of the lake names.

The address of a Unix socket has at most about a hundred bytes, and not every file system can hold one. Where the lake's
own directory cannot, the socket is in a private directory for temporary files.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DIRECTORY = ".daemon"
_SOCKET, _ELSEWHERE = "socket", "address"
_PREFIX = "millstream-"
_MAX_ADDRESS = 100
"""Linux allows 107 bytes, macOS 103."""


def address_of(lake: Path) -> Path:
    """The socket of a lake's running process, if there is one."""
    directory = lake / DIRECTORY
    with suppress(OSError, UnicodeDecodeError):
        return Path((directory / _ELSEWHERE).read_text(encoding="utf-8"))
    return directory / _SOCKET


@contextmanager
def listener(lake: Path) -> Iterator[socket.socket]:
    """Listen in a lake. The caller is its leader, so a socket that is already there is that of a killed process.

    Raises:
        OSError: no directory can hold the socket.
    """
    directory = lake / DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)
    _remove(directory)
    elsewhere: Path | None = None
    try:
        found = _bound(directory / _SOCKET)
    except OSError:
        elsewhere = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=os.environ.get("XDG_RUNTIME_DIR")))
        found = _bound(elsewhere / _SOCKET)
        _write(directory / _ELSEWHERE, str(elsewhere / _SOCKET))
    try:
        yield found
    finally:
        found.close()
        _remove(directory)
        if elsewhere is not None:
            shutil.rmtree(elsewhere, ignore_errors=True)


def _bound(path: Path) -> socket.socket:
    """A socket that listens; it appears under its name only when it does."""
    new = path.with_name(f"{_SOCKET}.new")
    if len(os.fsencode(new)) > _MAX_ADDRESS:
        raise OSError(f"the address of a socket may not be longer than {_MAX_ADDRESS} bytes: {new}")
    new.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(str(new))
        new.chmod(0o600)
        made.listen(64)
        new.replace(path)
    except OSError:
        made.close()
        raise
    return made


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _remove(directory: Path) -> None:
    """Remove the socket of this process, or of one that was killed."""
    (directory / _SOCKET).unlink(missing_ok=True)
    elsewhere = address_of(directory.parent)
    if elsewhere.name == _SOCKET and elsewhere.parent.name.startswith(_PREFIX):
        with suppress(OSError):
            elsewhere.unlink(missing_ok=True)
            elsewhere.parent.rmdir()
    (directory / _ELSEWHERE).unlink(missing_ok=True)
