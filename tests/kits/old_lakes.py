"""Lakes that earlier versions of millstream wrote, kept as fixtures."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from kits.paths import FIXTURES

V2_ROOT = "/tmp/millstream-v2/lake"
"""Where the lake of version 2 was when it was written: the directory that its catalog names."""


def unpack(version: str, target: Path) -> Path:
    """A copy of a lake's fixture, its files as old as the copy: Delta takes the age of a commit from its file."""
    with tarfile.open(FIXTURES / "lakes" / version / "lake.tar.gz") as archive:
        archive.extractall(target, filter="data")
    for file in target.rglob("*"):
        os.utime(file)
    return target
