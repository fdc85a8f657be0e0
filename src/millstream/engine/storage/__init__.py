"""Delta tables behind one small interface: Spark's way and the direct way, with equal results."""

from millstream.engine.storage.lookup import MAX_FOUND, has_exact_equality
from millstream.engine.storage.model import (
    CHANGE,
    DELETE,
    INSERT,
    POSTIMAGE,
    PREIMAGE,
    Changes,
    ChangeSet,
    Commit,
    RangeKind,
    RangeSummary,
    Rows,
    Snapshot,
    Txn,
)
from millstream.engine.storage.places import PLACE_COLUMNS
from millstream.engine.storage.store import DeltaStore

__all__ = [
    "CHANGE",
    "DELETE",
    "INSERT",
    "MAX_FOUND",
    "PLACE_COLUMNS",
    "POSTIMAGE",
    "PREIMAGE",
    "ChangeSet",
    "Changes",
    "Commit",
    "DeltaStore",
    "RangeKind",
    "RangeSummary",
    "Rows",
    "Snapshot",
    "Txn",
    "has_exact_equality",
]
