"""Delta tables behind one small interface: Spark's way and the direct way, with equal results."""

from millstream.engine.storage.finding import Finder, taken_away, telling
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
from millstream.engine.storage.zset import comparable, difference, netted, weighted

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
    "Finder",
    "RangeKind",
    "RangeSummary",
    "Rows",
    "Snapshot",
    "Txn",
    "comparable",
    "difference",
    "has_exact_equality",
    "netted",
    "taken_away",
    "telling",
    "weighted",
]
