"""Stores the stages of stream tables.

Each definition has its own directory, so that the old one stays readable until the new one is loaded.
"""

from __future__ import annotations

import glob
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

from millstream.catalog.models import Stage, StreamTable, new_id
from millstream.engine.worker import Workers
from millstream.lake import Compiled
from millstream.naming import TableName


class StageStorage:
    """The stored tables of a lake's stream tables."""

    def __init__(self, root: Path, workers: Workers) -> None:
        self._root = root / "stream_tables"
        self._workers = workers

    def create(self, name: TableName, compiled: Compiled) -> tuple[Stage, ...]:
        """Create empty tables for a query's stages."""
        root = self._root / f"{name}-{uuid.uuid4().hex[:8]}"
        worker = self._workers.here()
        stages: list[Stage] = []
        try:
            for ordinal, layout in enumerate(compiled.layouts):
                is_public = ordinal == len(compiled.layouts) - 1
                path = str(root / ("result" if is_public else f"stage_{ordinal + 1}"))
                worker.store.create(path, worker.analyzer.schema(layout.columns), stats_columns=layout.key)
                stages.append(Stage(id=new_id(), ordinal=ordinal, path=path, is_public=is_public))
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        return tuple(stages)

    def remove(self, stages: Sequence[Stage]) -> None:
        """Delete the stored tables of stages."""
        for parent in {Path(s.path).parent for s in stages}:
            if parent.is_relative_to(self._root):
                shutil.rmtree(parent, ignore_errors=True)

    def sweep(self, table: StreamTable) -> None:
        """Delete the directories of a stream table's earlier definitions, and those that a crash has orphaned."""
        for directory in self._root.glob(f"{glob.escape(str(table.name))}-????????"):
            if str(directory) not in {str(Path(s.path).parent) for s in table.stages}:
                shutil.rmtree(directory, ignore_errors=True)
