"""The file system of a lake, from the list of mounts."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from millstream.errors import Code, MillstreamError
from millstream.lake.file_system import file_system_of, is_network, refuse_network

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
31 22 0:44 / /srv/lakes rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2
32 31 8:2 / /srv/lakes/local rw - xfs /dev/sdb1 rw
33 22 0:45 / /mnt/two\040words rw,nosuid master:2 propagate_from:1 - fuse.sshfs me@host:/ rw
34 22 0:46 / /mnt/covered rw - cifs //host/share rw
35 22 0:47 / /mnt/covered rw - tmpfs tmpfs rw
not a line of it
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/lake", "ext4"),
        ("/srv/lakes", "nfs4"),
        ("/srv/lakes/a/b", "nfs4"),
        ("/srv/lakeshore", "ext4"),
        ("/srv/lakes/local/lake", "xfs"),
        ("/mnt/two words/lake", "fuse.sshfs"),
        ("/mnt/covered/lake", "tmpfs"),
    ],
)
def test_the_innermost_mount_counts(path: str, expected: str) -> None:
    assert file_system_of(MOUNTS, PurePosixPath(path)) == expected


def test_an_empty_list_says_nothing() -> None:
    assert file_system_of("", PurePosixPath("/srv")) is None
    assert not is_network(None)


def test_a_lake_on_the_network_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:4 / {tmp_path} rw - nfs4 server:/ rw\n")
    with pytest.raises(MillstreamError) as caught:
        refuse_network(tmp_path / "lake", mounts)
    assert caught.value.code is Code.LAKE_ON_NETWORK
    refuse_network(Path("/somewhere/else"), mounts)
    refuse_network(tmp_path / "lake", tmp_path / "missing")  # as on macOS
