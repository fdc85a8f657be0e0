"""The changes of a table whose old rows the WAL identifies by their key only, completed from the mirror.

The mirror needs to know which keys were touched, and which rows they have at the end. A value that is stored outside
its row (TOAST) and was not changed is in no message; it is a gap, which is filled from the mirror's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from millstream import naming
from millstream.engine.storage.files.exact_cast import exactly
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.memory_limit import row_bytes
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.values.decode import decode_texts
from millstream.sources.postgres.wal.eligibility import WalTable
from millstream.sources.postgres.wal.pgoutput import UNCHANGED, Row, Value


@dataclass(frozen=True, slots=True)
class Gap:
    """A value that is in no message: `column` of `rows[row]` is what the mirror's row of key `keys[origin]` has."""

    row: int
    column: str
    origin: int


@dataclass(frozen=True, slots=True)
class KeyedTableChanges:
    """The net effect of some transactions on a table with a key: the rows with `keys` are removed, `rows` are added.

    Args:
        name: the table's, for messages.
        rows: the newest row of each key that has one, in the captured columns; NULL in the place of a gap.
        gaps: what must be filled before the rows are used.
        keys: those of all rows that were inserted, updated or deleted; not all are in the mirror, and two may be equal.
        existing: how many of them the mirror has, if nothing was missed.
        truncated: all rows of the mirror are removed, and none is needed.
    """

    name: str
    rows: pa.Table
    gaps: tuple[Gap, ...]
    keys: pa.Table
    existing: int
    truncated: bool


def complete(changes: KeyedTableChanges, old_rows: pa.Table) -> TableChanges:
    """The changes as a Z-set.

    Args:
        old_rows: the mirror's rows of `changes.keys`, at least the captured columns; not used if truncated.

    Raises:
        MillstreamError: CAPTURE_LOST if the mirror does not have the rows that were changed.
    """
    coming = changes.rows
    if changes.truncated:
        return TableChanges(_weighted(coming, 1), True)
    if old_rows.num_rows != changes.existing:
        raise MillstreamError(
            Code.CAPTURE_LOST,
            f"the WAL changes {changes.existing} rows of {changes.name}, of which the mirror has {old_rows.num_rows}",
            hint="the table is read again at the next refresh",
        )
    going = exactly(old_rows.select(coming.column_names), coming.schema)
    if changes.gaps:
        coming = _filled(changes, going)
    return TableChanges(pa.concat_tables([_weighted(going, -1), _weighted(coming, 1)]), False)


def _filled(changes: KeyedTableChanges, old_rows: pa.Table) -> pa.Table:
    key = changes.keys.column_names
    places = {values: i for i, values in enumerate(_hashable(old_rows.select(key)))}
    origins = _hashable(changes.keys)
    by_column: dict[str, list[int | None]] = {}
    for gap in changes.gaps:
        source: list[int | None] = by_column.setdefault(gap.column, [None] * changes.rows.num_rows)
        place = places.get(origins[gap.origin])
        if place is None:
            raise MillstreamError(
                Code.CAPTURE_LOST,
                f"the WAL omits an unchanged value of a row of {changes.name} that the mirror does not have",
                hint="the table is read again at the next refresh",
            )
        source[gap.row] = place
    rows = changes.rows
    for column, given in by_column.items():
        indices = pa.array(given, pa.int64())
        kept = old_rows[column].combine_chunks().take(indices)
        values = pc.if_else(indices.is_valid(), kept, rows[column].combine_chunks())
        rows = rows.set_column(rows.column_names.index(column), rows.schema.field(column), values)
    return rows


def _hashable(keys: pa.Table) -> list[tuple[object, ...]]:
    columns = [keys[name].to_pylist() for name in keys.column_names]
    # a NaN is not equal to itself in Python, nor can a list be looked up
    plain = [[repr(v) if isinstance(v, (float, list)) else v for v in column] for column in columns]
    return list(zip(*plain, strict=True))


def _weighted(rows: pa.Table, weight: int) -> pa.Table:
    return rows.append_column(naming.WEIGHT, pa.repeat(pa.scalar(weight, pa.int64()), rows.num_rows))


@dataclass(slots=True)
class _Image:
    """The newest row of a key, and the key of the mirror's row that its gaps are filled from."""

    values: list[Value]
    origin: tuple[Value, ...] | None


class KeyedCollector:
    """Folds changes into their net effect per key; keys are compared as texts, which are identical in the WAL."""

    def __init__(self, table: WalTable) -> None:
        self._table = table
        self._places = [[c.name for c in table.columns].index(name) for name in table.key]
        self._images: dict[tuple[Value, ...], _Image] = {}
        self._touched: dict[tuple[Value, ...], bool] = {}  # whether the row existed before
        self._truncated = False
        self.held = 0
        """About how many bytes the changes take."""

    def insert(self, new: Row) -> None:
        """Add an INSERT."""
        self._put(self._key(new), _Image(list(new), None))

    def update(self, old: Row | None, is_old_whole: bool, new: Row) -> None:
        """Add an UPDATE, which may change the key."""
        values = list(new)
        if old is not None:  # a long key may itself be stored outside the row
            for place in range(len(values)) if is_old_whole else self._places:
                if values[place] is UNCHANGED:
                    values[place] = old[place]
        old_key = self._key(values if old is None else old)
        before = self._take(old_key)
        origin = old_key if before is None else before.origin
        has_gap = False
        for place, value in enumerate(values):
            if value is UNCHANGED:
                values[place] = before.values[place] if before is not None else UNCHANGED
                has_gap = has_gap or values[place] is UNCHANGED
        key = self._key(values)
        self._put(key, _Image(values, origin if has_gap else None))

    def delete(self, old: Row) -> None:
        """Add a DELETE."""
        self._take(self._key(old))

    def truncate(self) -> None:
        """Add a TRUNCATE."""
        self._images.clear()
        self._touched.clear()
        self._truncated, self.held = True, 0

    def collected(self) -> KeyedTableChanges | None:
        """The net effect; None if there was no change at all."""
        if not self._touched and not self._truncated:
            return None
        table = self._table
        index = {key: i for i, key in enumerate(self._touched)}
        gaps = []
        texts: list[list[str | None]] = [[] for _ in table.columns]
        for row, image in enumerate(self._images.values()):
            for column, text, value in zip(table.columns, texts, image.values, strict=True):
                if isinstance(value, str) or value is None:
                    text.append(value)
                else:
                    assert image.origin is not None
                    text.append(None)
                    gaps.append(Gap(row, column.name, index[image.origin]))
        key_columns = [table.columns[place] for place in self._places]
        keys: Sequence[Sequence[Value]] = list(zip(*self._touched, strict=True)) or [[] for _ in key_columns]
        return KeyedTableChanges(
            name=table.name,
            rows=decode_texts(table.columns, texts),
            gaps=tuple(gaps),
            keys=decode_texts(key_columns, [[_text(v) for v in column] for column in keys]),
            existing=sum(self._touched.values()),
            truncated=self._truncated,
        )

    def _key(self, row: Sequence[Value]) -> tuple[Value, ...]:
        key = tuple(row[place] for place in self._places)
        if not all(isinstance(value, str) for value in key):
            raise MillstreamError(
                Code.CAPTURE_LOST,
                f"the WAL names a row of {self._table.name} without its key {', '.join(self._table.key)}",
                hint="the REPLICA IDENTITY of the table or of a partition was changed; the table is read again",
            )
        return key

    def _put(self, key: tuple[Value, ...], image: _Image) -> None:
        if key not in self._touched:
            self._touch(key, was_there=False)
        if (old := self._images.get(key)) is not None:
            self.held -= row_bytes(old.values)
        self.held += row_bytes(image.values)
        self._images[key] = image

    def _touch(self, key: tuple[Value, ...], *, was_there: bool) -> None:
        self.held += row_bytes(key)
        self._touched[key] = was_there

    def _take(self, key: tuple[Value, ...]) -> _Image | None:
        """Remove and return the newest row of a key; None if that is still the mirror's."""
        image = self._images.pop(key, None)
        if image is None:
            if self._truncated or key in self._touched:
                raise MillstreamError(
                    Code.CAPTURE_LOST,
                    f"the WAL changes a row of {self._table.name} that no longer exists",
                    hint="the table is read again at the next refresh",
                )
            self._touch(key, was_there=True)
        else:
            self.held -= row_bytes(image.values)
        return image


def _text(value: Value) -> str | None:
    return value if isinstance(value, str) else None
