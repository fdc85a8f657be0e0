"""The notification that is sent when a served table has changed."""

from __future__ import annotations

import json

from millstream.sinks.postgres.dml import Counts
from millstream.sinks.postgres.target import Mark, Target

CHANNEL = "millstream_refresh"
"""The channel on which each change of a served table sends a NOTIFY."""


def message(target: Target, mark: Mark, mode: str, counts: Counts) -> str:
    """The JSON text of a notification."""
    return json.dumps(
        {
            "stream_table": mark.stream_table,
            "schema": target.schema,
            "table": target.table,
            "mode": mode,
            "rows_inserted": counts.inserted,
            "rows_updated": counts.updated,
            "rows_deleted": counts.deleted,
            "refresh_id": mark.refresh_id,
            "data_timestamp": mark.data_timestamp.isoformat(),
        }
    )
