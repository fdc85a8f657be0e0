"""Adding columns to a stored table by rewriting all its rows; readers of the old columns see no change."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream import naming
from millstream.engine.storage.files.data_file import conformed, write_data
from millstream.engine.storage.files.schema import arrow_schema, delta_schema_string
from millstream.engine.storage.log.actions import Json
from millstream.engine.storage.log.table_log import TableLog, TableState
from millstream.engine.storage.model import Commit, Rows, Txn
from millstream.engine.storage.write.adoption import adopted_data, written_by_spark
from millstream.engine.storage.write.commit import changes_nothing, commit_info, commit_next, txn_action
from millstream.engine.storage.write.create import ntz_features
from millstream.engine.storage.write.draft import Draft, stats_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def commit_wider(
    log: TableLog,
    root: Path,
    state: TableState,
    schema: StructType,
    rows: Rows,
    txn: Txn,
    metadata: Mapping[str, object],
) -> Commit:
    """Replace the table's rows, in one commit that records no row change.

    Args:
        schema: the table's columns and the new ones.
        rows: equal to the table's rows in the old columns; the caller guarantees this.

    Raises:
        MillstreamError: `COMMIT_CONFLICT` if another writer touched the table meanwhile.
    """
    draft = Draft(root, state)
    with draft.kept_if_committed() as keep:
        for old in state.files.values():
            draft.remove(old, data_change=False)
        _add(draft, schema, rows)
        info = commit_info("ADD COLUMNS", state.version, {"numFiles": draft.num_new_files}, metadata)
        actions = [info, txn_action(txn), *_described(state, schema), *draft.actions]
        outcome = commit_next(log, root, state, txn, actions, changes_nothing)
        if isinstance(outcome, Commit):
            return outcome
        keep()
    return Commit(outcome)


def _add(draft: Draft, schema: StructType, rows: Rows) -> None:
    root, bounded = draft.root, stats_columns(draft.state)
    if isinstance(rows, pa.Table):
        if rows.num_rows:
            action = write_data(root, conformed(rows, arrow_schema(schema), rows.num_rows), bounded)
            draft.add_new({**action, "dataChange": False})
        return
    with written_by_spark(root, rows.select(*(naming.quote(n) for n in schema.names))) as files:
        for file in files:
            if found := adopted_data(root, file, bounded):
                draft.add_new({**found, "dataChange": False})


def _described(state: TableState, schema: StructType) -> list[Json]:
    """The actions that add the new columns to the table."""
    schema_string, known = delta_schema_string(schema), state.metadata
    described: list[Json] = [
        {
            "metaData": {
                "id": known.table_id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema_string,
                "partitionColumns": list(known.partition_columns),
                "configuration": dict(known.configuration),
                "createdTime": int(time.time() * 1000),
            }
        }
    ]
    missing = [f for f in ntz_features(schema_string) if f not in state.protocol.writer_features]
    if missing:
        described.append(
            {
                "protocol": {
                    "minReaderVersion": state.protocol.min_reader,
                    "minWriterVersion": state.protocol.min_writer,
                    "readerFeatures": sorted({*state.protocol.reader_features, *missing}),
                    "writerFeatures": sorted({*state.protocol.writer_features, *missing}),
                }
            }
        )
    return described
