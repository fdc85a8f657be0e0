"""New tables of ours, created alike by both paths: with change feed, deletion vectors and 30 days of history."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.engine.storage.files.data_file import has_bounds
from millstream.engine.storage.files.schema import UnsupportedTypeError, arrow_type, delta_schema_string
from millstream.engine.storage.location import LOG_DIRECTORY
from millstream.engine.storage.write.commit import commit_info, put_if_absent
from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CHECKPOINT_INTERVAL = 100

_UNSTORABLE = frozenset(" ,;{}()\n\t=")

_PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    # How long a reader may pause and still find its changes; Delta requires the log to be kept as long as the files.
    "delta.deletedFileRetentionDuration": "interval 30 days",
    "delta.logRetentionDuration": "interval 30 days",
}


def properties_of(schema: StructType, stats_columns: Sequence[str], extra: Mapping[str, str]) -> dict[str, str]:
    """The table properties: ours, bounds for the columns whose type can have them, then the caller's."""
    bounded = [c for c in stats_columns if _has_bounds(schema, c)]
    if bounded:
        skipping = {"delta.dataSkippingStatsColumns": ",".join(bounded)}
    else:
        skipping = {"delta.dataSkippingNumIndexedCols": "0"}
    return {**_PROPERTIES, **skipping, **extra}


def _has_bounds(schema: StructType, column: str) -> bool:
    try:
        return column in schema.names and has_bounds(arrow_type(schema[column].dataType))
    except UnsupportedTypeError:
        return False


def check_names(schema: StructType) -> None:
    """Refuse column names that Delta stores only with column mapping, which the direct path does not read."""
    for name in schema.names:
        if _UNSTORABLE & set(name):
            raise MillstreamError(
                Code.NAME_INVALID, f"a stored column cannot be named {name!r}", hint="give it another name in the view"
            )


def create_directly(root: Path, schema: StructType, properties: Mapping[str, str]) -> bool:
    """Write version 0; False if the table already exists."""
    (root / LOG_DIRECTORY).mkdir(parents=True, exist_ok=True)
    schema_string = delta_schema_string(schema)
    ntz = ntz_features(schema_string)
    actions = [
        commit_info("CREATE TABLE", -1, {}, {}),
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors", *ntz],
                "writerFeatures": ["deletionVectors", "changeDataFeed", "appendOnly", "invariants", *ntz],
            }
        },
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema_string,
                "partitionColumns": [],
                "configuration": dict(properties),
                "createdTime": int(time.time() * 1000),
            }
        },
    ]
    return put_if_absent(root, 0, actions)


def ntz_features(schema_string: str) -> list[str]:
    """The table features that a schema's types need."""
    return ["timestampNtz"] if "timestamp_ntz" in schema_string else []
