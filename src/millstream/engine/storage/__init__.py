"""Delta tables behind one small interface: the direct path and the Spark path, with equal results."""

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
from millstream.engine.storage.read.lookup import (
    MAX_FOUND,
    Lookup,
    has_exact_equality,
    rows_to_remove,
    selective_columns,
)
from millstream.engine.storage.read.places import PLACE_COLUMNS
from millstream.engine.storage.read.zset import comparable, difference, netted, weighted
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
    "Lookup",
    "RangeKind",
    "RangeSummary",
    "Rows",
    "Snapshot",
    "Txn",
    "comparable",
    "difference",
    "has_exact_equality",
    "netted",
    "rows_to_remove",
    "selective_columns",
    "weighted",
]
