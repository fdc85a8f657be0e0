"""Which files of a table no version in use needs any more: pure functions of its log and of listings of its directory.

A version is in use if a reader may still need its contents or the changes since it. Everything that the oldest such
version and all later ones refer to is kept; the rest is deleted, once it is old enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from urllib.parse import unquote

from millstream.engine.storage.files.deletion_vector import stored_name
from millstream.engine.storage.log.actions import LogCommit
from millstream.engine.storage.log.table_log import TableState

_VERSIONED = re.compile(r"\.?(\d{20})\.(?:(?P<end>\d{20})\.compacted\.)?(?P<rest>[\w.-]+)\Z")
_DRAFT = re.compile(r"\.[0-9a-f-]{36}\.draft\Z")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a table's directory: its path relative to it, its size, and when it was written, in seconds."""

    name: str
    size: int
    modified: float


def version_current_at(times: Mapping[int, float], moment: float) -> int | None:
    """The version that was the newest at a time, from the times of the commits; the oldest known one if that is later.

    >>> version_current_at({3: 30.0, 4: 40.0, 5: 50.0}, 45.0)
    4
    >>> version_current_at({3: 30.0, 4: 40.0}, 1.0)
    3
    """
    # The clock may have gone back between two commits: what is older than a young commit counts as young.
    current = None
    for version in sorted(times):
        if current is not None and times[version] > moment:
            break
        current = version
    return current


def needed_names(state: TableState, commits: Iterable[LogCommit]) -> set[str]:
    """The files that a version and the commits after it refer to, as paths relative to the table."""
    files = list(state.files.values())
    for commit in commits:
        files += [*commit.adds, *commit.removes, *commit.changes]
    vectors = {name for f in files if (name := stored_name(f.deletion_vector))}
    return {unquote(f.path) for f in files} | vectors


def unneeded_files(files: Iterable[StoredFile], needed: Set[str], before: float) -> list[StoredFile]:
    """The data files, change files and deletion vectors that may be deleted: not needed, and written before a time."""
    return [f for f in files if _data_name(f.name) not in needed and f.modified < before]


def _data_name(name: str) -> str:
    """The file that a file belongs to: a checksum belongs to another one.

    >>> _data_name("_change_data/.cdc-1.parquet.crc")
    '_change_data/cdc-1.parquet'
    >>> _data_name("part-1.parquet")
    'part-1.parquet'
    """
    directory, slash, base = name.rpartition("/")
    if base.startswith(".") and base.endswith(".crc"):
        base = base[1 : -len(".crc")]
    return f"{directory}{slash}{base}"


def unneeded_log(
    files: Iterable[StoredFile], checkpoints: Iterable[int], since: int, last_checkpoint: int | None, before: float
) -> list[StoredFile]:
    """The files of a log that may be deleted such that `since` and every later version can still be reconstructed.

    Args:
        checkpoints: the versions of the complete checkpoints.
        last_checkpoint: the version that `_last_checkpoint` names, which readers look for.
        before: drafts of commits that were written before this time were left by a crash.
    """
    usable = [v for v in checkpoints if v <= since]
    start = max(usable) if usable else 0
    if last_checkpoint is not None:
        start = min(start, last_checkpoint)
    return [f for f in files if _is_below(f, start) or (_DRAFT.match(f.name) and f.modified < before)]


def _is_below(file: StoredFile, start: int) -> bool:
    match = _VERSIONED.match(file.name)
    return match is not None and int(match["end"] or match[1]) < start


def commits_to_checkpoint(checkpoints: Iterable[int], first: int, since: int) -> int:
    """How many commits a checkpoint at `since` makes unneeded; `first` is the oldest commit in the log.

    >>> commits_to_checkpoint([100, 200], 100, 250)
    50
    >>> commits_to_checkpoint([], 0, 30)
    30
    """
    return since - max((v for v in checkpoints if v <= since), default=min(first, since))
