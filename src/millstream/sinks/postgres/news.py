"""What whoever listens is told of a change of a served table."""

from __future__ import annotations

import json

from millstream.sinks.postgres.moves import Counts
from millstream.sinks.postgres.target import Mark, Target

CHANNEL = "millstream_refresh"
"""Where each change of a served table is notified of."""


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
