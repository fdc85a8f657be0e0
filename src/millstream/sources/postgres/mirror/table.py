"""A mirror: the Delta table that holds the captured columns of a PostgreSQL table, brought forward by Z-sets.

Each landing is one commit. The rows to remove are looked up by the key, or by all columns if there is none; if such a
row is not there, a change was missed, which is always an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream import naming
from millstream.engine.storage import (
    CHANGE,
    DELETE,
    INSERT,
    PLACE_COLUMNS,
    POSTIMAGE,
    PREIMAGE,
    ChangeSet,
    DeltaStore,
    Lookup,
    Rows,
    Txn,
    comparable,
    difference,
    has_exact_equality,
    netted,
)
from millstream.engine.storage.files.exact_cast import exactly
from millstream.engine.storage.files.schema import arrow_schema
from millstream.errors import MillstreamError
from millstream.sources.postgres.mirror import large_changes

_CODE, _PLACE = f"{naming.RESERVED_PREFIX}code", f"{naming.RESERVED_PREFIX}place"


@dataclass(frozen=True)
class Mirror:
    """Where a table is mirrored.

    Args:
        name: the table's name, for messages.
        key: columns that identify a row and are never NULL; empty if there are none.
    """

    name: str
    path: str
    key: tuple[str, ...] = ()


def land(
    store: DeltaStore,
    mirror: Mirror,
    changes: Rows,
    txn: Txn,
    metadata: Mapping[str, object],
    max_driver_rows: int,
    *,
    truncated: bool = False,
    stored: pa.Table | None = None,
) -> int | None:
    """Apply a Z-set (the mirror's columns and `naming.WEIGHT`) in one commit; None if nothing changes.

    Args:
        truncated: first remove all rows that the mirror has.
        stored: what `stored_rows` returned, if it has all rows to remove and nothing has been written since.
        max_driver_rows: larger changes are applied by Spark.

    Raises:
        MillstreamError: CAPTURE_LOST if a row to remove is not in the mirror.
    """
    version = store.version(mirror.path)
    if isinstance(changes, pa.Table):
        changes = netted(changes)
        if truncated:
            return _replace(store, mirror, version, changes, txn, metadata, max_driver_rows)
        if changes.num_rows == 0:
            return None
        if changes.num_rows <= max_driver_rows:
            change = _on_driver(store, mirror, version, changes, stored)
            if change is not None:
                made = store.apply(mirror.path, change, txn, metadata)
                return made.version if made is not None else None
    assert not truncated, "the rows of a truncated table come to the driver"
    return large_changes.land(store, mirror, version, changes, txn, metadata)


def resync(
    store: DeltaStore,
    mirror: Mirror,
    contents: Rows,
    txn: Txn,
    metadata: Mapping[str, object],
    max_driver_rows: int,
) -> int | None:
    """Make the mirror's rows equal to `contents`, by a commit of the difference only; None if there is none."""
    version = store.version(mirror.path)
    have = store.rows(mirror.path, version, max_driver_rows) if isinstance(contents, pa.Table) else None
    if isinstance(contents, pa.Table) and have is not None:
        net: Rows = difference(exactly(contents.select(have.column_names), have.schema), have)
        return land(store, mirror, net, txn, metadata, max_driver_rows)
    with large_changes.difference(store, mirror, version, contents) as frame:
        return large_changes.land(store, mirror, version, frame, txn, metadata)


def stored_rows(store: DeltaStore, mirror: Mirror, keys: pa.Table, max_driver_rows: int) -> pa.Table:
    """The mirror's rows with the given keys, with their places if they were found on the driver.

    There is no row for a key that the mirror does not have.

    Args:
        keys: in columns that identify a row of the mirror.
    """
    version = store.version(mirror.path)
    schema = arrow_schema(store.snapshot(mirror.path, version).spark_schema)
    if keys.num_rows == 0:
        return schema.empty_table()
    names = keys.column_names
    found = Lookup(store, mirror.path, version).by_key(keys, names) if keys.num_rows <= max_driver_rows else None
    rows = store.arrow_at(mirror.path, version, found) if found is not None else None
    if rows is None:
        return exactly(large_changes.stored_rows(store, mirror, version, keys).select(schema.names), schema)
    codes = _codes(comparable(pa.concat_tables([exactly(keys, rows.select(names).schema), rows.select(names)]), names))
    wanted = set(codes[: keys.num_rows])
    return rows.filter(pa.array([code in wanted for code in codes[keys.num_rows :]], pa.bool_()))


def _replace(
    store: DeltaStore,
    mirror: Mirror,
    version: int,
    changes: pa.Table,
    txn: Txn,
    metadata: Mapping[str, object],
    max_driver_rows: int,
) -> int | None:
    """Replace all rows by those that came after a TRUNCATE: often the same ones, loaded again."""
    if (pc.min(changes[naming.WEIGHT]).as_py() or 0) < 0:
        raise _mismatch_error(mirror, "they remove a row from before the table was truncated")
    rows = _repeated(changes).drop_columns([naming.WEIGHT])
    have = store.rows(mirror.path, version, max_driver_rows)
    if have is not None:
        net = difference(exactly(rows.select(have.column_names), have.schema), have)
        return land(store, mirror, net, txn, metadata, max_driver_rows)
    return store.replace(mirror.path, rows, txn, metadata).version


def _on_driver(
    store: DeltaStore, mirror: Mirror, version: int, net: pa.Table, stored: pa.Table | None
) -> ChangeSet | None:
    """The changes to commit, if the rows to remove can be found on the driver."""
    going = net.filter(pc.less(net[naming.WEIGHT], 0))
    coming = _repeated(net.filter(pc.greater(net[naming.WEIGHT], 0))).drop_columns([naming.WEIGHT])
    if going.num_rows == 0:
        return ChangeSet(None, coming, version, mirror.key)
    if stored is not None and not set(PLACE_COLUMNS) <= set(stored.column_names):
        stored = None
    lookup = Lookup(store, mirror.path, version)
    removed = _by_key(lookup, mirror, going, stored) if mirror.key else None
    if removed is None:
        removed = _by_all(lookup, mirror, going, stored)
    if removed is None:
        return None
    if mirror.key:
        removed, coming = _labelled(removed, coming, mirror.key)
    return ChangeSet(removed, coming, version, mirror.key)


def _by_key(lookup: Lookup, mirror: Mirror, going: pa.Table, stored: pa.Table | None) -> pa.Table | None:
    if not all(has_exact_equality(going.schema.field(name).type) for name in mirror.key):
        return None  # e.g. an array: rows are neither found nor joined by such a type here
    found = stored if stored is not None else lookup.by_key(going, mirror.key)
    if found is None:
        return None
    wanted = going.select(mirror.key).append_column(_CODE, _numbers(going.num_rows))
    places = exactly(found.select(mirror.key), wanted.select(mirror.key).schema)
    joined = wanted.join(places.append_column(_PLACE, _numbers(found.num_rows)), list(mirror.key), join_type="inner")
    if joined.num_rows != going.num_rows or len(pc.unique(joined[_CODE])) != going.num_rows:
        raise _mismatch_error(
            mirror, f"they remove {going.num_rows} rows, of which the mirror has {joined.num_rows} by key"
        )
    rows, at = going.take(joined[_CODE]).drop_columns([naming.WEIGHT]), found.take(joined[_PLACE])
    return _placed(rows, at)


def _by_all(lookup: Lookup, mirror: Mirror, going: pa.Table, stored: pa.Table | None) -> pa.Table | None:
    """Find rows by all columns; of equal rows as many as are to be removed."""
    names = [n for n in going.column_names if n != naming.WEIGHT]
    if stored is None and (found := lookup.by_any(going, names)) is not None:
        stored = lookup.store.arrow_at(lookup.path, lookup.version, found)
    if stored is None:
        return None
    return _matched(mirror, going, stored, names)


def _matched(mirror: Mirror, going: pa.Table, stored: pa.Table, names: list[str]) -> pa.Table:
    plain = exactly(stored.select(names), going.select(names).schema)
    keys = comparable(pa.concat_tables([going.select(names), plain]), names)
    codes = _codes(keys)
    wanted = dict(zip(codes[: going.num_rows], (-w for w in going[naming.WEIGHT].to_pylist()), strict=True))
    missing, chosen = dict(wanted), []
    for place, code in enumerate(codes[going.num_rows :]):
        if missing.get(code, 0) > 0:
            missing[code] -= 1
            chosen.append(place)
    if any(missing.values()):
        total = sum(wanted.values())
        raise _mismatch_error(
            mirror, f"they remove {total} rows, of which the mirror has {total - sum(missing.values())}"
        )
    places = pa.array(chosen, pa.int64())
    return _placed(plain.take(places), stored.take(places))


def _codes(keys: pa.Table) -> list[int]:
    """A number per row, equal for equal rows."""
    numbered = keys.append_column(_CODE, _numbers(keys.num_rows))
    groups = numbered.group_by(keys.column_names, use_threads=False).aggregate([(_CODE, "list")])
    codes = np.empty(keys.num_rows, np.int64)
    for code, places in enumerate(groups[f"{_CODE}_list"]):
        codes[places.values.to_numpy()] = code
    return [int(c) for c in codes]


def _labelled(removed: pa.Table, added: pa.Table, key: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """The rows with their change types for the change feed: updates, if a key is removed and added."""
    codes = _codes(comparable(pa.concat_tables([removed.select(key), added.select(key)]), key))
    old, new = codes[: removed.num_rows], codes[removed.num_rows :]
    stays = set(old) & set(new)
    was = pa.array([PREIMAGE if c in stays else DELETE for c in old], pa.string())
    becomes = pa.array([POSTIMAGE if c in stays else INSERT for c in new], pa.string())
    return removed.append_column(CHANGE, was), added.append_column(CHANGE, becomes)


def _placed(rows: pa.Table, places: pa.Table) -> pa.Table:
    for name in PLACE_COLUMNS:
        rows = rows.append_column(name, places[name])
    return rows


def _repeated(weighted_rows: pa.Table) -> pa.Table:
    """Each row as often as its weight says."""
    weights = weighted_rows[naming.WEIGHT].to_numpy()
    if (weights == 1).all():
        return weighted_rows
    return weighted_rows.take(pa.array(np.repeat(np.arange(weighted_rows.num_rows), weights)))


def _numbers(count: int) -> pa.Array:
    return pa.array(np.arange(count, dtype=np.int64))


def _mismatch_error(mirror: Mirror, why: str) -> MillstreamError:
    return large_changes.mismatch_error(mirror.name, why)
