"""Which user is at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct
import sys

_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1
"""macOS: <sys/un.h>; Python has no names for them."""
ROOT_UID = 0


def uid_of_peer(connection: socket.socket) -> int:
    """The user id that the operating system recorded when the connection was made."""
    if sys.platform == "darwin":
        record = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, struct.calcsize("IIh16I"))
        return int(struct.unpack_from("II", record)[1])
    record = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    return int(struct.unpack("iII", record)[1])


def may_call(peer: int, own: int) -> bool:
    """Whether a user may use the process of another one: only its own user and root, who can do anything anyway."""
    return peer in (own, ROOT_UID)
