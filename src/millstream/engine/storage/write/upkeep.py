"""Keeping one table of ours small: what could be rewritten or deleted, and doing it.

Only for tables on a file system of this machine. Every step leaves a table that all readers can read: a commit is made
completely or not at all, and only files that no version in use needs are deleted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.engine.storage.location import CHANGE_DIRECTORY, LOG_DIRECTORY
from millstream.engine.storage.log.actions import DataFile
from millstream.engine.storage.log.features import writing_obstacle
from millstream.engine.storage.log.log_files import commit_name
from millstream.engine.storage.log.retention import (
    StoredFile,
    commits_to_checkpoint,
    needed_names,
    unneeded_files,
    unneeded_log,
    version_current_at,
)
from millstream.engine.storage.log.table_log import TableLog, TableState
from millstream.engine.storage.read.scan import scan_obstacle
from millstream.engine.storage.write.checkpoint import write_checkpoint_at
from millstream.engine.storage.write.commit import writing
from millstream.engine.storage.write.compaction import Rewritten, bounded, files_to_rewrite, rewriting
from millstream.engine.storage.write.durable import sync_commits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SYNCED_SECONDS = 600.0
"""The operating system has written older commits to disk by itself."""
_ABANDONED_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Contents:
    """The files in a table's directory at one time, without those of its log, and those of its log."""

    data: tuple[StoredFile, ...]
    log: tuple[StoredFile, ...]


@dataclass(frozen=True, slots=True)
class Excess:
    """What a table has too much of.

    Args:
        since: the oldest version in use.
        rewritable: the number of its files that are small or have many dead rows, and their size.
        commits: how many commits a checkpoint at `since` would make unneeded.
        files: data files, change files and deletion vectors that no version in use needs.
        log: files of the log that no version in use needs.
    """

    since: int
    rewritable: tuple[int, int]
    commits: int
    files: tuple[StoredFile, ...]
    log: tuple[StoredFile, ...]


@dataclass(frozen=True)
class TableUpkeep:
    """The upkeep of the table in the directory `root`."""

    spark: SparkSession
    root: Path
    log: TableLog

    def contents(self) -> Contents:
        """The files in the table's directory."""
        return Contents(tuple(_data_files(self.root)), tuple(_files(self.root / LOG_DIRECTORY)))

    def excess(self, contents: Contents, needed: int, cutoff: float) -> Excess:
        """What the table has too much of.

        Args:
            contents: the files, listed before `needed` was determined: a file that was written, but not committed, at
                that time is either in the log now, or its writer has failed.
            needed: the oldest version that somebody needs by name.
            cutoff: other readers may have the versions open that were current since this time.

        Raises:
            MillstreamError: SOURCE_MISSING if there is no table.
            LogGoneError: the log has a gap.
        """
        newest, listing = self.log.version(), self.log.files.listing()
        times = {v: f.modified for f in contents.log if (v := _version(f.name)) is not None and v <= newest}
        current = version_current_at(times, cutoff)
        since = min(needed, newest if current is None else current)
        if 0 not in listing.commits and listing.checkpoints:
            since = max(since, min(listing.checkpoints))  # an earlier version is lost, so nobody can need it
        state, now = self.log.state(since), self.log.state(newest)
        named = needed_names(state, self.log.commits(since, newest))
        rewritable = self._rewritable(now)
        old = unneeded_log(contents.log, listing.checkpoints, since, self._last_checkpoint(), _abandoned(cutoff))
        return Excess(
            since=since,
            rewritable=(len(rewritable), sum(f.size for f in rewritable)),
            commits=commits_to_checkpoint(listing.checkpoints, min(listing.commits), since),
            files=tuple(unneeded_files(contents.data, named, cutoff)),
            log=tuple(old),
        )

    @contextmanager
    def rewriting(self, max_bytes: int) -> Iterator[Rewritten | None]:
        """Write small files and files with many dead rows again, up to a size; None if there is nothing to rewrite.

        Raises:
            MillstreamError: LAKE_UNWRITABLE.
        """
        state = self.log.state()
        files = bounded(self._rewritable(state), max_bytes)
        if not files:
            yield None
            return
        with writing(str(self.root)), rewriting(self.spark, self.root, state, files) as rewritten:
            yield rewritten

    def checkpoint(self, version: int) -> bool:
        """Write a checkpoint of a version; False if that failed."""
        return write_checkpoint_at(self.root, version)

    def delete_files(self, files: Sequence[StoredFile], since: int) -> None:
        """Delete data files, change files and deletion vectors that no version from `since` on needs.

        What the versions in use consist of is flushed to disk first: after a power cut the table would otherwise be at
        a version before the deleted files were replaced.
        """
        newest = self.log.version()
        first = newest
        while first > since and _age(self.root / LOG_DIRECTORY / commit_name(first)) < _SYNCED_SECONDS:
            first -= 1
        with writing(str(self.root)):
            sync_commits(self.root, first - 1, newest)
            _delete(self.root, files)

    def delete_log_files(self, files: Iterable[StoredFile]) -> None:
        """Delete files of the log, the oldest first: a crash leaves a log that begins later, without a gap."""
        with writing(str(self.root)):
            _delete(self.root / LOG_DIRECTORY, sorted(files, key=lambda f: f.name.lstrip(".")))

    def _rewritable(self, state: TableState) -> list[DataFile]:
        if writing_obstacle(state) or scan_obstacle(self.root, state):
            return []
        return files_to_rewrite(state)

    def _last_checkpoint(self) -> int | None:
        try:
            return int(json.loads((self.root / LOG_DIRECTORY / "_last_checkpoint").read_bytes())["version"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return 0  # another engine is writing it: delete nothing now


def _abandoned(cutoff: float) -> float:
    return min(cutoff, time.time() - _ABANDONED_SECONDS)


def _data_files(root: Path) -> Iterator[StoredFile]:
    """The files that may belong to a table: Delta reserves other names that begin with an underscore."""
    yield from (f for f in _files(root) if f.name[0] not in "_." or f.name.endswith(".crc"))
    for entry in _entries(root):
        if entry.is_dir(follow_symlinks=False) and (entry.name == CHANGE_DIRECTORY or entry.name[0] not in "_."):
            yield from _files(Path(entry.path), f"{entry.name}/")


def _files(directory: Path, prefix: str = "") -> Iterator[StoredFile]:
    for entry in _entries(directory):
        with suppress(FileNotFoundError):  # deleted meanwhile
            if entry.is_file(follow_symlinks=False):
                stat = entry.stat(follow_symlinks=False)
                yield StoredFile(f"{prefix}{entry.name}", stat.st_size, stat.st_mtime)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _version(name: str) -> int | None:
    stem = name.removesuffix(".json")
    return int(stem) if name != stem and len(stem) == 20 and stem.isdigit() else None


def _age(file: Path) -> float:
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _delete(root: Path, files: Iterable[StoredFile]) -> None:
    for file in files:
        (root / file.name).unlink(missing_ok=True)
