"""Landing: a table that records no changes is copied as a whole into the lake for each refresh that reads it.

The copy is a Delta table, so that a refresh reads it at a version like any other, and `verify` compares with the copy
and not with what the source holds by then.
"""

from __future__ import annotations

import time
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A version that has just been replaced may still be read.
_KEPT_SECONDS = 3600.0


def land(frame: DataFrame, directory: Path, used: Set[int] = frozenset()) -> None:
    """Replace the copy's contents, in one commit, and remove files that no version in use needs any more."""
    writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    # column mapping allows any column name
    writer.option("delta.columnMapping.mode", "name").save(str(directory))
    _remove_unused(directory, used)


def _remove_unused(directory: Path, used: Set[int]) -> None:
    newest = DeltaTable(str(directory))
    needed = {Path(uri).name for uri in newest.file_uris()}
    for version in used:
        if version < newest.version():
            needed |= {Path(uri).name for uri in DeltaTable(str(directory), version=version).file_uris()}
    oldest = time.time() - _KEPT_SECONDS
    for file in directory.rglob("*.parquet"):
        if "_delta_log" not in file.parts and file.name not in needed and file.stat().st_mtime < oldest:
            file.unlink(missing_ok=True)
