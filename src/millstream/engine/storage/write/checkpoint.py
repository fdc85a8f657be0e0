"""Checkpoints for tables with direct commits: Delta writes them only after its own commits.

delta-rs writes them, with deletion vectors, statistics and transaction numbers (see the tests). A checkpoint only saves
readers time, so a failure to write one does not fail the commit before it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from millstream.engine.storage.location import LOG_DIRECTORY
from millstream.engine.storage.log.table_log import TableState
from millstream.engine.storage.write.durable import sync

_DEFAULT_INTERVAL = 10

_log = logging.getLogger(__name__)


def is_due(state: TableState, version: int) -> bool:
    """Whether a checkpoint of the table is due at `version`."""
    interval = int(state.metadata.configuration.get("delta.checkpointInterval", _DEFAULT_INTERVAL))
    return version > 0 and version % interval == 0


def write_checkpoint(root: Path) -> bool:
    """Write a checkpoint of the newest version, and delete commits past the table's log retention."""
    try:
        table = DeltaTable(str(root))
        table.create_checkpoint()
        # Spark's checksum of the pointer is no longer valid, and Hadoop would retry for seconds before giving up.
        (root / LOG_DIRECTORY / "._last_checkpoint.crc").unlink(missing_ok=True)
        table.cleanup_metadata()
    except (DeltaError, OSError) as e:
        _log.warning("no checkpoint for %s: %s", root, e)
        return False
    return True


def write_checkpoint_at(root: Path, version: int) -> bool:
    """Write a checkpoint of an earlier version, durably: commits before it may be deleted afterwards."""
    log = root / LOG_DIRECTORY
    try:
        DeltaTable(str(root), version=version).create_checkpoint()
        (log / "._last_checkpoint.crc").unlink(missing_ok=True)
        for file in log.glob(f"{version:020d}.checkpoint*.parquet"):
            sync(file)
        sync(log)
    except (DeltaError, OSError) as e:
        _log.warning("no checkpoint for version %d of %s: %s", version, root, e)
        return False
    return True
