"""What a lake knows about itself: stream tables, dependencies, history, intents, tables, views and functions.

`Catalog` is all that other packages need; only this package imports SQLAlchemy.
"""

from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode, OpenTick, Serving
from millstream.catalog.capture_state import Position
from millstream.catalog.facade import Catalog
from millstream.catalog.leadership import Leader, Leadership
from millstream.catalog.models import (
    Definition,
    Dependency,
    Frontier,
    Intent,
    LakeObject,
    NewStreamTable,
    NoData,
    ObjectKind,
    Refresh,
    RefreshOutcome,
    RefreshStart,
    SourceKind,
    Stage,
    StreamTable,
    new_id,
)

__all__ = [
    "AttachedDatabase",
    "Capture",
    "CaptureMode",
    "Catalog",
    "Definition",
    "Dependency",
    "Frontier",
    "Intent",
    "LakeObject",
    "Leader",
    "Leadership",
    "NewStreamTable",
    "NoData",
    "ObjectKind",
    "OpenTick",
    "Position",
    "Refresh",
    "RefreshOutcome",
    "RefreshStart",
    "Serving",
    "SourceKind",
    "Stage",
    "StreamTable",
    "new_id",
]
