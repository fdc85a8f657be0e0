"""Which tables the direct path may read, and which it may write.

Any feature that is not known to be harmless is refused: a table with a feature of a later Delta goes through Spark.
"""

from __future__ import annotations

from millstream.engine.storage.files.schema import UnsupportedTypeError, arrow_schema_of
from millstream.engine.storage.log.table_log import TableState

_READABLE = frozenset({"deletionVectors", "timestampNtz", "columnMapping", "v2Checkpoint", "vacuumProtocolCheck"})
_WRITABLE = frozenset({"deletionVectors", "timestampNtz", "changeDataFeed", "appendOnly", "invariants"})


def reading_obstacle(state: TableState) -> str | None:
    """Why the files of the table cannot be read without Delta's own reader; `None` if they can."""
    protocol, metadata = state.protocol, state.metadata
    unknown = protocol.reader_features - _READABLE
    if protocol.min_reader > 3 or unknown:
        return f"table feature {', '.join(sorted(unknown)) or f'reader version {protocol.min_reader}'}"
    if metadata.maps_columns:
        return "column mapping"
    if metadata.partition_columns:
        return "partitioned table"
    try:
        arrow_schema_of(metadata.schema_string)
    except UnsupportedTypeError as e:
        return str(e)
    return None


def writing_obstacle(state: TableState) -> str | None:
    """Why the table cannot be written without Spark; `None` for tables that we create."""
    protocol, metadata = state.protocol, state.metadata
    unknown = protocol.writer_features - _WRITABLE
    if protocol.min_writer != 7 or unknown:
        return f"table feature {', '.join(sorted(unknown)) or f'writer version {protocol.min_writer}'}"
    if metadata.configuration.get("delta.appendOnly", "false").lower() == "true":
        return "append-only table"
    if '"nullable":false' in metadata.schema_string or '"delta.invariants"' in metadata.schema_string:
        return "constraints on columns"
    return reading_obstacle(state)


def marks_rows(state: TableState) -> bool:
    """Whether rows may be removed by deletion vectors."""
    enabled = state.metadata.configuration.get("delta.enableDeletionVectors", "false").lower() == "true"
    return enabled and "deletionVectors" in state.protocol.writer_features
