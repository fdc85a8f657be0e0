"""Commits that outlive a power cut: their files, and the directories that name them, are on disk.

Nobody waits for that by default: a commit that is lost with the page cache is made again from its sources. It has to be
waited for where a source is about to forget what was landed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from millstream.engine.storage.deletion_vector import stored_name
from millstream.engine.storage.location import LOG_DIRECTORY, file_in_table
from millstream.engine.storage.log_files import commit_name


def sync_commits(root: Path, after: int, upto: int) -> None:
    """Have all on disk that the commits after a version and up to another one have written; data before the log.

    Args:
        after: -1 for a table that is new.
    """
    log = root / LOG_DIRECTORY
    commits = [file for version in range(after + 1, upto + 1) if (file := log / commit_name(version)).exists()]
    data = {file for commit in commits for file in _files(root, commit)}
    for file in sorted(data):
        _sync(file)
    for directory in sorted({file.parent for file in data} | {root}):
        _sync(directory)
    if after < 0:
        for above in list(root.parents)[:2]:  # a table that is new, perhaps the first of its kind
            _sync(above)
    for commit in commits:
        _sync(commit)
    _sync(log)


def _files(root: Path, commit: Path) -> Iterator[Path]:
    """The files a commit has added to the table; a later one may have removed them, and they may be gone."""
    for line in commit.read_text(encoding="utf-8").splitlines():
        for kind, action in json.loads(line).items():
            if kind not in ("add", "cdc"):
                continue
            named = file_in_table(root, action["path"])
            vector = stored_name(action.get("deletionVector"))
            yield from (file for file in (named, root / vector if vector else None) if file is not None)


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
