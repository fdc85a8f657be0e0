"""Reading the files of a `_delta_log` directory, straight from a POSIX file system.

`LogFiles` is the interface: `SparkLogFiles` reads the same through Spark if the lake is not on this machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.engine.storage.location import LOG_DIRECTORY, file_in_table
from millstream.engine.storage.log.actions import Json

_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.(?P<uuid>[0-9a-f-]{36}))?\.(parquet|json)\Z"
)

Stamp = tuple[int, int, int]
"""The inode, time and size that distinguish a file from another of the same name."""


class LogGoneError(Exception):
    """Commits are missing: the table was dropped, or its log was cleaned up past the requested version."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The commits and the complete checkpoints of a log."""

    commits: frozenset[int]
    checkpoints: dict[int, tuple[str, ...]]

    @property
    def newest(self) -> int | None:
        """The table's version."""
        return max(self.commits, default=None)


class LogFiles(Protocol):
    """Access to the files of one table's log."""

    def listing(self) -> Listing:
        """All commits and checkpoints; empty if there is no table."""

    def newest(self, at_least: int | None) -> int | None:
        """The table's version, searched from a version known to exist; `None` if there is no table."""

    def stamp(self, version: int) -> Stamp | None:
        """The identity of a commit's file; `None` if it no longer exists."""

    def commits(self, versions: Iterable[int]) -> Iterator[tuple[int, list[Json]]]:
        """The actions of each commit; raises `LogGoneError` for a missing one."""

    def checkpoint(self, names: tuple[str, ...]) -> Iterator[Json]:
        """The actions of a checkpoint."""

    def missing(self, logged_paths: Iterable[str]) -> list[str]:
        """The data or change files that no longer exist; at least one of them if there are any."""


def commit_name(version: int) -> str:
    """The file name of a commit.

    >>> commit_name(7)
    '00000000000000000007.json'
    """
    return f"{version:020d}.json"


def listing_of(names: Iterable[str]) -> Listing:
    """Sort the file names of a log; a checkpoint of several parts counts only if all parts exist."""
    commits: set[int] = set()
    checkpoints: dict[int, list[str]] = {}
    for name in names:
        if match := _COMMIT.match(name):
            commits.add(int(match[1]))
        elif match := _CHECKPOINT.match(name):
            if match["parts"] is None:
                checkpoints[int(match[1])] = [name]
            else:
                checkpoints.setdefault(int(match[1]), []).append(name)
    whole = {v: tuple(sorted(parts)) for v, parts in checkpoints.items() if _is_whole(parts)}
    return Listing(frozenset(commits), whole)


def _is_whole(parts: list[str]) -> bool:
    match = _CHECKPOINT.match(parts[0])
    wanted = match["parts"] if match else None
    return wanted is None or len(parts) == int(wanted)


class PosixLogFiles:
    """A log on a POSIX file system: a version is found by one `stat`, without listing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._log = root / LOG_DIRECTORY

    def listing(self) -> Listing:
        """All commits and checkpoints; empty if there is no table."""
        try:
            return listing_of(os.listdir(self._log))
        except (FileNotFoundError, NotADirectoryError):
            return Listing(frozenset(), {})

    def newest(self, at_least: int | None) -> int | None:
        """The table's version, searched from a version known to exist."""
        if at_least is None:
            return self.listing().newest
        version = at_least
        while os.path.exists(self._log / commit_name(version + 1)):
            version += 1
        return version

    def stamp(self, version: int) -> Stamp | None:
        """The identity of a commit's file; `None` if it no longer exists."""
        try:
            stat = os.stat(self._log / commit_name(version))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def commits(self, versions: Iterable[int]) -> Iterator[tuple[int, list[Json]]]:
        """The actions of each commit."""
        for version in versions:
            try:
                text = (self._log / commit_name(version)).read_text(encoding="utf-8")
            except (FileNotFoundError, NotADirectoryError) as e:
                raise LogGoneError(f"commit {version} is no longer in the log") from e
            yield version, [json.loads(line) for line in text.split("\n") if line.strip()]

    def checkpoint(self, names: tuple[str, ...]) -> Iterator[Json]:
        """The actions of a checkpoint, in any of the three layouts."""
        for name in names:
            for action in self._checkpoint_file(self._log / name):
                sidecar = action.get("sidecar")
                if sidecar:
                    yield from self._checkpoint_file(self._log / "_sidecars" / os.path.basename(sidecar["path"]))
                else:
                    yield action

    def _checkpoint_file(self, file: Path) -> Iterator[Json]:
        try:
            if file.suffix == ".json":
                yield from (json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip())
            else:
                yield from checkpoint_actions(pq.read_table(file))
        except FileNotFoundError as e:
            raise LogGoneError(f"checkpoint {file.name} is no longer in the log") from e

    def missing(self, logged_paths: Iterable[str]) -> list[str]:
        """The data or change files that no longer exist."""
        found = ((path, file_in_table(self._root, path)) for path in logged_paths)
        return [path for path, file in found if file is not None and not file.exists()]


def checkpoint_actions(table: pa.Table) -> Iterator[Json]:
    """The rows of a checkpoint file as in the JSON log: one action each, maps as objects."""
    for kind in ("protocol", "metaData", "txn", "add", "sidecar"):
        if kind not in table.column_names:
            continue
        column = table.column(kind).combine_chunks()
        for value in column.filter(column.is_valid()).to_pylist(maps_as_pydicts="strict"):
            yield {kind: _without_nulls(value)}


def _without_nulls(value: Json) -> Json:
    return {
        k: _without_nulls(v) if k == "deletionVector" else v
        for k, v in value.items()
        if v is not None and not k.endswith("_parsed")
    }
