"""Refreshes a stream table and everything it reads, and compiles definitions again whose sources have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from millstream.catalog import Catalog
from millstream.errors import MillstreamError
from millstream.naming import TableName
from millstream.passes.held_snapshot import HeldSnapshot
from millstream.refresh.runner import OutdatedError
from millstream.results import InitiatedBy, RefreshMode, RefreshResult
from millstream.service.replacing import TRIES, dag_of, kept_changing
from millstream.service.runtime import Runtime


class Refreshing:
    """Refreshes stream tables, each after what it reads.

    Args:
        runtime: returns the part of the lake that needs Spark, and starts it if necessary.
        progress: called with a short text when a longer operation begins.
    """

    def __init__(self, catalog: Catalog, runtime: Callable[[], Runtime], progress: Callable[[str], None]) -> None:
        self._catalog = catalog
        self._runtime = runtime
        self._progress = progress

    def refresh(
        self,
        name: TableName,
        initiated_by: InitiatedBy,
        mode: RefreshMode | None = None,
        held: HeldSnapshot | None = None,
    ) -> RefreshResult:
        """Bring a stream table, and first what it reads, up to date.

        A definition whose sources have changed is compiled again, and the refresh starts over.

        Args:
            mode: for the named table only.
            held: takes over the snapshot that the chain is brought to.

        Raises:
            MillstreamError: SUSPENDED, FULL_REQUIRED, SOURCE_MISSING, SOURCE_CHANGED, REFRESH_FAILED, ...
        """
        self._catalog.get(name)
        runtime = self._runtime()
        followed: Counter[str] = Counter()
        reloaded: RefreshResult | None = None
        while True:
            runtime.lake.sync()
            try:
                chain = [TableName.parse(n) for n in dag_of(self._catalog).refresh_order([str(name)])]
            except MillstreamError:
                self._catalog.get(name)  # reports that another process has dropped it meanwhile
                raise
            try:
                result = runtime.coordinator.refresh(chain, initiated_by, mode, held)
            except OutdatedError as outdated:
                self._progress(f"compiling {outdated.table.name} again: {outdated.reason}")
                is_last = outdated.table.name == name
                loaded = runtime.replacements.follow(outdated, initiated_by, mode if is_last else None)
                if is_last and loaded is not None:
                    if held is None:
                        return loaded
                    reloaded = loaded  # the chain has to be at the one snapshot that is held
                followed[outdated.table.id] += 1
                if followed[outdated.table.id] >= TRIES:
                    raise kept_changing(outdated.table.name) from None
            else:
                return reloaded or result
