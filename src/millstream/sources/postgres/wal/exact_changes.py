"""The changes of a table with REPLICA IDENTITY FULL, whose whole old rows are in the WAL."""

from __future__ import annotations

import pyarrow as pa

from millstream import naming
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.memory_limit import row_bytes
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.values.decode import batch_schema, decode_texts
from millstream.sources.postgres.wal.eligibility import WalTable
from millstream.sources.postgres.wal.pgoutput import UNCHANGED, Row

_DECODED_AT_ONCE = 50_000


class NoWholeRowError(Exception):
    """The WAL has an old row of a table without all its columns."""

    def __init__(self, table: WalTable) -> None:
        super().__init__(table.name)
        self.table_id = table.id


class ExactCollector:
    """Collects the changes of a table whose old rows are in the WAL, as a Z-set."""

    def __init__(self, table: WalTable) -> None:
        self._table = table
        self._rows: list[Row] = []
        self._weights: list[int] = []
        self._decoded: list[pa.Table] = []
        self._truncated = False
        self.held = 0
        """About how many bytes the changes take."""

    def insert(self, new: Row) -> None:
        """Add an INSERT."""
        self._add(new, 1)

    def update(self, old: Row | None, is_old_whole: bool, new: Row) -> None:
        """Add an UPDATE."""
        if old is None or not is_old_whole:
            raise self._no_whole_row()
        self._add(old, -1)
        if UNCHANGED in new:
            new = tuple(o if n is UNCHANGED else n for o, n in zip(old, new, strict=True))
        self._add(new, 1)

    def delete(self, old: Row) -> None:
        """Add a DELETE."""
        self._add(old, -1)

    def delete_by_key(self) -> None:
        """Refuse a DELETE for which only the key is known."""
        raise self._no_whole_row()

    def truncate(self) -> None:
        """Add a TRUNCATE."""
        self._rows, self._weights, self._decoded = [], [], []
        self._truncated, self.held = True, 0

    def collected(self) -> TableChanges | None:
        """The Z-set; None if there was no change at all."""
        self._decode()
        if not self._decoded and not self._truncated:
            return None
        empty = batch_schema(self._table.columns).append(pa.field(naming.WEIGHT, pa.int64())).empty_table()
        return TableChanges(pa.concat_tables([empty, *self._decoded]), self._truncated)

    def _add(self, row: Row, weight: int) -> None:
        self.held += row_bytes(row)
        self._rows.append(row)
        self._weights.append(weight)
        if len(self._rows) >= _DECODED_AT_ONCE:
            self._decode()

    def _decode(self) -> None:
        if self._rows:
            table = decode_texts(self._table.columns, list(zip(*self._rows, strict=True)))
            self._decoded.append(table.append_column(naming.WEIGHT, pa.array(self._weights, pa.int64())))
            self._rows, self._weights = [], []

    def _no_whole_row(self) -> Exception:
        if self._table.key:
            return NoWholeRowError(self._table)
        return MillstreamError(
            Code.CAPTURE_LOST,
            f"the WAL has changes of {self._table.name} without the old rows: its REPLICA IDENTITY was changed",
            hint="the table is read again at the next refresh",
        )
