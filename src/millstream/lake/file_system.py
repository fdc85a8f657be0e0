"""The file system that a lake is on, from the text of `/proc/self/mountinfo`. Pure, except for `refuse_network`.

`flock` and SQLite's locks are not reliable on network file systems: two processes may both become the leader, or write
the catalog at the same time, and damage it.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from millstream.errors import Code, MillstreamError

MOUNTS = Path("/proc/self/mountinfo")

_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb2",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "coda",
        "fuse.ceph",
        "fuse.cephfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "lustre",
        "ncpfs",
    }
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


def file_system_of(mounts: str, path: PurePosixPath) -> str | None:
    """The type of the file system at an absolute path without symbolic links; None if the text does not say.

    Of several mounts the one with the longest path counts; of those at the same path, the last one covers the others.
    """
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        head, separator, tail = line.partition(" - ")
        fields = head.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = PurePosixPath(_ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), tail.split(" ")[0])
    return None if best is None else best[1]


def is_network(file_system: str | None) -> bool:
    """Whether a type of file system is one of the network."""
    return file_system in _NETWORK


def refuse_network(lake: Path, mounts: Path = MOUNTS) -> None:
    """Refuse a lake on a network file system. Where the system does not list its mounts (macOS), nothing is refused.

    Raises:
        MillstreamError: LAKE_ON_NETWORK.
    """
    try:
        text = mounts.read_text(errors="surrogateescape")
    except OSError:
        return
    found = file_system_of(text, PurePosixPath(lake.resolve()))
    if is_network(found):
        raise MillstreamError(
            Code.LAKE_ON_NETWORK,
            f"{lake} is on a network file system ({found}), where file locks are not reliable",
            hint="use a catalog in PostgreSQL (catalog_url), or a local directory; "
            "allow_network_file_system = true accepts the risk",
        )
