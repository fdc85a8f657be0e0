"""Applies the result of a stage's steps to its stored Delta table, in one commit, and counts what the user sees.

Steps come back either as Arrow tables on the driver, committed directly, or as frames that Spark merges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from millstream import naming
from millstream.diff.aggregate.accumulator import OLD
from millstream.diff.plan import CHANGES, MORE, NET, RECOMPUTED, REMOVED, SHOWN, STORE, Kind, Layout
from millstream.engine.storage import CHANGE, PLACE_COLUMNS, ChangeSet, Rows
from millstream.errors import Code, MillstreamError
from millstream.naming import quote

_PREIMAGE, _POSTIMAGE = "update_preimage", "update_postimage"


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows as the user sees them: a key that existed before and after counts as an update."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def change_set(layout: Layout, results: Mapping[str, Rows], expected_version: int) -> tuple[ChangeSet, Counts]:
    """The change set that a stage's steps produce, and how many rows it changes.

    Raises:
        MillstreamError: REFRESH_FAILED if the stored table lacks rows the delta removes.
    """
    removed, added, counts = _MAKERS[layout.kind](layout, results)
    key = layout.key if layout.kind is Kind.KEYED else ()  # rows of a partition share its columns
    return ChangeSet(removed, added, expected_version, key), counts


def _keyed(layout: Layout, results: Mapping[str, Rows]) -> tuple[Rows, Rows, Counts]:
    parts = [results[name] for name in (CHANGES, RECOMPUTED) if name in results]
    if all(isinstance(p, pa.Table) for p in parts):
        return _keyed_arrow(layout, [p for p in parts if isinstance(p, pa.Table)])
    return _keyed_frames(layout, [p for p in parts if isinstance(p, DataFrame)])


def _keyed_arrow(layout: Layout, parts: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table, Counts]:
    names = [c.name for c in layout.columns]
    rows = pa.concat_tables([p.filter(pc.invert(p[MORE.name])) for p in parts])
    store = rows[STORE.name]
    old = rows.filter(pc.not_equal(store, "insert"))
    new = rows.filter(pc.not_equal(store, "delete"))
    removed = old.select([n + OLD for n in (*names, *PLACE_COLUMNS)]).rename_columns([*names, *PLACE_COLUMNS])
    removed = removed.append_column(CHANGE, _label(old[STORE.name], _PREIMAGE, "delete"))
    added = new.select(names).append_column(CHANGE, _label(new[STORE.name], _POSTIMAGE, "insert"))
    shown = {str(e["values"]): int(e["counts"]) for e in pc.value_counts(rows[SHOWN.name].combine_chunks()).to_pylist()}
    return removed, added, Counts(shown.get("insert", 0), shown.get("update", 0), shown.get("delete", 0))


def _label(store: pa.ChunkedArray, updated: str, otherwise: str) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(store, "update"), updated, otherwise)


def _keyed_frames(layout: Layout, parts: Sequence[DataFrame]) -> tuple[DataFrame, DataFrame, Counts]:
    names = [c.name for c in layout.columns]
    rows = parts[0].where(~f.col(MORE.name))
    for part in parts[1:]:
        rows = rows.unionByName(part.where(~f.col(MORE.name)).select(*rows.columns))
    store = f.col(STORE.name)
    removed = rows.where(store != "insert").select(
        *(f.col(quote(n + OLD)).alias(n) for n in (*names, *PLACE_COLUMNS)),
        f.when(store == "update", _PREIMAGE).otherwise("delete").alias(CHANGE),
    )
    added = rows.where(store != "delete").select(
        *(quote(n) for n in names), f.when(store == "update", _POSTIMAGE).otherwise("insert").alias(CHANGE)
    )
    shown = {str(r[0]): int(r[1]) for r in rows.groupBy(SHOWN.name).count().collect()}
    return removed, added, Counts(shown.get("insert", 0), shown.get("update", 0), shown.get("delete", 0))


def _bag(layout: Layout, results: Mapping[str, Rows]) -> tuple[Rows | None, Rows, Counts]:
    net, removed = results[NET], results.get(REMOVED)
    if isinstance(net, pa.Table) and (removed is None or isinstance(removed, pa.Table)):
        return _bag_arrow(layout, net, removed)
    assert isinstance(net, DataFrame)
    assert removed is None or isinstance(removed, DataFrame)
    return _bag_frames(layout, net, removed)


def _bag_arrow(layout: Layout, net: pa.Table, removed: pa.Table | None) -> tuple[Rows | None, Rows, Counts]:
    added = repeated(net, [c.name for c in layout.columns])
    going = pc.sum(net.filter(net[MORE.name])[naming.WEIGHT]).as_py() or 0
    found = removed.num_rows if removed is not None else 0
    _require_found(-going, found)
    return removed, added, Counts(added.num_rows, 0, found)


def _partitioned(layout: Layout, results: Mapping[str, Rows]) -> tuple[Rows | None, Rows, Counts]:
    """The rows that one step's result removes and adds."""
    names, net = [c.name for c in layout.columns], results[NET]
    if isinstance(net, pa.Table):
        comes = pc.greater(net[naming.WEIGHT], 0)
        going = net.filter(pc.invert(comes)).select([*names, *PLACE_COLUMNS])
        coming = net.filter(comes).select(names)
        return going, coming, _seen(layout, net)
    went = net.where(f.col(naming.WEIGHT) < 0).select(*(quote(n) for n in (*names, *PLACE_COLUMNS)))
    came = net.where(f.col(naming.WEIGHT) > 0).select(*(quote(n) for n in names))
    seen = net.groupBy(*(quote(n) for n in _shown(layout))).agg(f.sum(naming.WEIGHT).alias("n"))
    totals = seen.agg(f.sum(f.greatest("n", f.lit(0))), f.sum(f.greatest(-f.col("n"), f.lit(0)))).collect()[0]
    return went, came, Counts(int(totals[0] or 0), 0, int(totals[1] or 0))


def _shown(layout: Layout) -> list[str]:
    return list(dict.fromkeys(layout.outputs))


def _seen(layout: Layout, net: pa.Table) -> Counts:
    """The change in the columns the user sees: a row that only moves to another partition does not count."""
    weights = net[naming.WEIGHT]
    if len(_shown(layout)) < len(layout.columns) and not any(
        pa.types.is_nested(net.schema.field(n).type) for n in _shown(layout)
    ):
        weights = net.group_by(_shown(layout)).aggregate([(naming.WEIGHT, "sum")])[f"{naming.WEIGHT}_sum"]
    values = weights.to_numpy()
    return Counts(int(values[values > 0].sum()), 0, int(-values[values < 0].sum()))


_MAKERS = {Kind.KEYED: _keyed, Kind.BAG: _bag, Kind.PARTITIONED: _partitioned}


def repeated(weighted: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Rows of positive weight, each repeated as often as its weight says."""
    weights = weighted[naming.WEIGHT].combine_chunks()
    positive = weighted.filter(pc.greater(weights, 0))
    counts = positive[naming.WEIGHT].to_pylist()
    rows = positive.select(list(columns))
    if all(c == 1 for c in counts):
        return rows
    return rows.take(pa.array([i for i, count in enumerate(counts) for _ in range(count)], pa.int64()))


def _bag_frames(layout: Layout, net: DataFrame, removed: DataFrame | None) -> tuple[Rows | None, Rows, Counts]:
    names = [quote(c.name) for c in layout.columns]
    sums = net.agg(
        f.sum(f.when(~f.col(MORE.name), f.col(naming.WEIGHT))), f.sum(f.when(f.col(MORE.name), -f.col(naming.WEIGHT)))
    ).collect()[0]
    going = int(sums[1] or 0)
    found = removed.count() if removed is not None else 0
    _require_found(going, found)
    return removed, repeated_frame(net, names), Counts(int(sums[0] or 0), 0, found)


def repeated_frame(weighted: DataFrame, names: Sequence[str]) -> DataFrame:
    """Rows of positive weight, each repeated as often as its weight says."""
    copies = f.explode(f.sequence(f.lit(1).cast("bigint"), f.col(naming.WEIGHT)))
    return weighted.where(f.col(naming.WEIGHT) > 0).select(*names, copies.alias("__ms_copy")).select(*names)


def _require_found(going: int, found: int) -> None:
    if going != found:
        raise MillstreamError(
            Code.REFRESH_FAILED,
            f"the delta removes {going} rows, but the stored table has {found} of them",
            hint="something else changed the stored table; refresh with FULL",
        )
