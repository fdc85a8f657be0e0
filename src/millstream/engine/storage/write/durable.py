"""Commits that survive a power cut: their files, and the directories that contain them, are flushed to disk.

By default no commit waits for that: one that is lost with the page cache is made again from its sources. A commit must
wait if a source is about to discard the changes that were committed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from millstream.engine.storage.files.deletion_vector import stored_name
from millstream.engine.storage.location import LOG_DIRECTORY, file_in_table
from millstream.engine.storage.log.actions import Json
from millstream.engine.storage.log.log_files import commit_name


def sync_commits(root: Path, after: int, upto: int) -> None:
    """Flush to disk all files of the commits after one version up to another; data before the log.

    Args:
        after: -1 for a new table.
    """
    log = root / LOG_DIRECTORY
    commits = [file for version in range(after + 1, upto + 1) if (file := log / commit_name(version)).exists()]
    sync_files(root, (json.loads(line) for commit in commits for line in commit.read_text("utf-8").splitlines()))
    if after < 0:
        for above in list(root.parents)[:2]:  # a new table's directory may be the first in its parent
            sync(above)
    for commit in commits:
        sync(commit)
    sync(log)


def sync_files(root: Path, actions: Iterable[Json]) -> None:
    """Flush the files that some actions add to a table to disk; files that no longer exist are skipped."""
    files = {file for action in actions for file in _files(root, action)}
    for file in sorted(files):
        sync(file)
    for directory in sorted({file.parent for file in files} | {root}):
        sync(directory)


def _files(root: Path, action: Json) -> Iterator[Path]:
    for kind in ("add", "cdc"):
        if (added := action.get(kind)) is not None:
            named = file_in_table(root, added["path"])
            vector = stored_name(added.get("deletionVector"))
            yield from (file for file in (named, root / vector if vector else None) if file is not None)


def sync(path: Path) -> None:
    """Flush a file or directory to disk, if it exists."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
