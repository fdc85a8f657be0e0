"""A cached view of a table's log: its version, its state at a version, its commits, each read once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from millstream.engine.storage.log.actions import DataFile, LogCommit, Metadata, Protocol, parse_commit
from millstream.engine.storage.log.log_files import LogFiles, LogGoneError, Stamp
from millstream.errors import Code, MillstreamError

_STATES_KEPT = 8
_COMMITS_KEPT = 256


@dataclass(frozen=True)
class TableState:
    """The table at one version: the result of all actions up to it."""

    version: int
    protocol: Protocol
    metadata: Metadata
    transactions: Mapping[str, int]
    files: Mapping[str, DataFile]

    @cached_property
    def num_rows(self) -> int | None:
        """Live rows; `None` if a file has no statistics."""
        live = [f.num_live for f in self.files.values()]
        return None if None in live else sum(n for n in live if n is not None)

    @cached_property
    def size_bytes(self) -> int:
        """The size of the live files."""
        return sum(f.size for f in self.files.values())

    def advanced(self, commit: LogCommit) -> TableState:
        """The state after one more commit."""
        files = self.files
        if commit.touches_files:
            # Removes first: a new deletion vector is a remove and an add of the same path.
            gone = {f.path for f in commit.removes}
            files = {path: f for path, f in files.items() if path not in gone} if gone else dict(files)
            files.update((f.path, f) for f in commit.adds)
        return replace(
            self,
            version=commit.version,
            protocol=commit.protocol or self.protocol,
            metadata=commit.metadata or self.metadata,
            transactions={**self.transactions, **commit.transactions} if commit.transactions else self.transactions,
            files=files,
        )


class TableLog:
    """Reads one table's log and remembers what it read, as long as it is the same table."""

    def __init__(self, path: str, files: LogFiles) -> None:
        self.path = path
        self.files = files
        self._lock = threading.RLock()
        self._tip: tuple[int, Stamp | None] | None = None
        self._states: OrderedDict[int, TableState] = OrderedDict()
        self._commits: OrderedDict[int, LogCommit] = OrderedDict()

    def exists(self) -> bool:
        """Whether there is a table."""
        with self._lock:
            return self._newest() is not None

    def version(self) -> int:
        """The newest version; raises `SOURCE_MISSING` if the table no longer exists."""
        with self._lock:
            newest = self._newest()
        if newest is None:
            raise MillstreamError(
                Code.SOURCE_MISSING,
                f"there is no Delta table at {self.path}",
                hint="restore the table, or drop the stream tables that read it",
            )
        return newest

    def _newest(self) -> int | None:
        known: int | None = None
        if self._tip is not None:
            version, stamp = self._tip
            if self.files.stamp(version) == stamp:
                known = version
            else:  # dropped, and perhaps created again
                self._forget()
        newest = self.files.newest(known)
        if newest is None:
            self._forget()
        elif newest != known:
            self._tip = newest, self.files.stamp(newest)
        return newest

    def _forget(self) -> None:
        self._tip = None
        self._states.clear()
        self._commits.clear()

    def state(self, version: int | None = None) -> TableState:
        """The table at `version`, by default the newest.

        A version that was read before is not read again: `version` detects when a table was created again.

        Raises:
            LogGoneError: the log no longer reaches that version.
        """
        with self._lock:
            if version is not None and version in self._states:
                return self._states[version]
            newest = self.version()
            wanted = newest if version is None else version
            if wanted > newest or wanted < 0:
                raise LogGoneError(f"version {wanted} of {self.path} does not exist; the newest is {newest}")
            state = self._nearest(wanted) or self._loaded(wanted)
            if state.version < wanted:
                for commit in self.commits(state.version, wanted):
                    state = state.advanced(commit)
            self._states[wanted] = state
            self._states.move_to_end(wanted)
            while len(self._states) > _STATES_KEPT:
                self._states.popitem(last=False)
            return state

    def _nearest(self, wanted: int) -> TableState | None:
        earlier = [v for v in self._states if v <= wanted]
        return self._states[max(earlier)] if earlier else None

    def _loaded(self, wanted: int) -> TableState:
        """The state at the newest checkpoint up to `wanted`, or at version 0."""
        listing = self.files.listing()
        checkpoints = [v for v in listing.checkpoints if v <= wanted]
        if checkpoints:
            at = max(checkpoints)
            base = parse_commit(at, self.files.checkpoint(listing.checkpoints[at]))
        else:
            base = self.commits(-1, 0)[0]
        if base.protocol is None or base.metadata is None:
            raise LogGoneError(f"the log of {self.path} does not begin with a protocol and a schema")
        files = {f.path: f for f in base.adds}
        return TableState(base.version, base.protocol, base.metadata, base.transactions, files)

    def commits(self, after: int, upto: int) -> list[LogCommit]:
        """The commits `(after, upto]`.

        Raises:
            LogGoneError: one of them is no longer in the log.
        """
        with self._lock:
            wanted = range(after + 1, upto + 1)
            unread = [v for v in wanted if v not in self._commits]
            read = {v: parse_commit(v, actions) for v, actions in self.files.commits(unread)}
            result = [self._commits.get(v) or read[v] for v in wanted]
            self._commits.update(read)
            while len(self._commits) > _COMMITS_KEPT:
                self._commits.popitem(last=False)
            return result

    def commit_of(self, app_id: str, number: int) -> LogCommit | None:
        """The commit that recorded transaction `number` of `app_id`, if it is still in the log."""
        version = self.version()
        while version >= 0:
            try:
                commit = self.commits(version - 1, version)[0]
            except LogGoneError:
                return None
            recorded = commit.transactions.get(app_id)
            if recorded is not None and recorded <= number:
                return commit if recorded == number else None
            version -= 1
        return None
