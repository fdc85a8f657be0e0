"""Locations of tables: paths on this machine, other URIs, and the paths inside a Delta log."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOG_DIRECTORY = "_delta_log"
CHANGE_DIRECTORY = "_change_data"


def local_root(path: str) -> Path | None:
    """The directory that `path` names if it is a POSIX path on this machine, else `None`.

    >>> local_root("s3a://bucket/table") is None
    True
    >>> str(local_root("file:///lake/my%20table"))
    '/lake/my table'
    """
    parts = urlsplit(path)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if parts.scheme and "://" in path:
        return None
    return Path(os.path.abspath(path))


def normalised(path: str) -> str:
    """One spelling per table, as a cache key.

    >>> normalised("/lake/a/../b/")
    '/lake/b'
    """
    root = local_root(path)
    return str(root) if root is not None else path.rstrip("/")


def file_in_table(root: Path, logged_path: str) -> Path | None:
    """The file that an `add`, `remove` or `cdc` action names; `None` if it is outside the table (a shallow clone).

    >>> str(file_in_table(Path("/lake/t"), "day=2024-01-01%2010%253A00/part-0.parquet"))
    '/lake/t/day=2024-01-01 10%3A00/part-0.parquet'
    """
    if logged_path.startswith("/") or "://" in logged_path or logged_path.startswith("file:"):
        return None
    return root / unquote(logged_path)
