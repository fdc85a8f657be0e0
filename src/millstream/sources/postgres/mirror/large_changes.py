"""Applies changes to a mirror through Spark, if they are too many for the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from millstream import naming
from millstream.engine.storage import PLACE_COLUMNS, ChangeSet, DeltaStore, Rows, Txn
from millstream.engine.storage.spark.row_identity import identities
from millstream.errors import Code, MillstreamError
from millstream.naming import quote

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.sources.postgres.mirror.table import Mirror

_SAME, _COUNT, _COPY = (f"{naming.RESERVED_PREFIX}{word}" for word in ("same_", "count", "copy"))


def land(
    store: DeltaStore, mirror: Mirror, version: int, changes: Rows, txn: Txn, metadata: Mapping[str, object]
) -> int | None:
    """Apply a Z-set in one commit; None if nothing changes.

    Raises:
        MillstreamError: CAPTURE_LOST if a row to remove is not in the mirror.
    """
    schema = store.snapshot(mirror.path, version).spark_schema
    zset = StructType([*schema.fields, StructField(naming.WEIGHT, LongType())])
    net = _netted(store.frame(changes, zset), schema).persist()
    weight = F.col(naming.WEIGHT)
    going = net.where(weight < 0)
    removed = _found(store.read_located(mirror.path, version), going, schema, mirror.key).persist()
    try:
        row = net.agg(F.sum(F.when(weight < 0, -weight).otherwise(0)), F.count(F.lit(1))).collect()[0]
        gone = int(row[0] or 0)
        if not row[1]:
            return None
        has = removed.count() if gone else 0
        if has != gone:
            raise mismatch_error(mirror.name, f"they remove {gone} rows, of which the mirror has {has}")
        made = store.apply(
            mirror.path, ChangeSet(removed if gone else None, _added(net, schema), version, mirror.key), txn, metadata
        )
    finally:
        removed.unpersist()
        net.unpersist()
    return made.version if made is not None else None


def stored_rows(store: DeltaStore, mirror: Mirror, version: int, keys: pa.Table) -> pa.Table:
    """The mirror's rows with the given keys."""
    schema = store.snapshot(mirror.path, version).spark_schema
    by = [schema[name] for name in keys.column_names]
    wanted = store.frame(keys, StructType(by)).select(*identities(by, _SAME)).distinct()
    marked = store.read(mirror.path, version).select("*", *identities(by, _SAME))
    agrees = [marked[f"{_SAME}{i}"].eqNullSafe(wanted[f"{_SAME}{i}"]) for i in range(len(by))]
    return marked.join(wanted, agrees, "left_semi").select(*(quote(n) for n in schema.names)).toArrow()


@contextmanager
def difference(store: DeltaStore, mirror: Mirror, version: int, contents: Rows) -> Iterator[DataFrame]:
    """The Z-set that leads from the mirror's rows to `contents`, computed once and cached while the block lasts."""
    schema = store.snapshot(mirror.path, version).spark_schema
    names = [quote(n) for n in schema.names]
    new = store.frame(contents, schema).select(*names, F.lit(1).cast("bigint").alias(naming.WEIGHT))
    old = store.read(mirror.path, version).select(*names, F.lit(-1).cast("bigint").alias(naming.WEIGHT))
    net = _netted(new.unionAll(old), schema).persist()
    try:
        yield net
    finally:
        net.unpersist()


def mismatch_error(name: str, why: str) -> MillstreamError:
    """The error for a mirror that lacks rows that the captured changes start from."""
    return MillstreamError(
        Code.CAPTURE_LOST,
        f"the captured changes of {name} do not fit its mirror: {why}",
        hint="the next refresh compares the mirror with the table and corrects it",
    )


def _netted(zset: DataFrame, schema: StructType) -> DataFrame:
    """Sum the weights of rows with equal bits, and leave out those of weight zero."""
    same = identities(schema.fields, _SAME)
    values = [F.first(quote(f.name)).alias(f.name) for f in schema.fields]
    summed = zset.groupBy(*same).agg(*values, F.sum(naming.WEIGHT).alias(naming.WEIGHT))
    return summed.where(F.col(naming.WEIGHT) != 0).select(*(quote(n) for n in schema.names), naming.WEIGHT)


def _found(stored: DataFrame, going: DataFrame, schema: StructType, key: tuple[str, ...]) -> DataFrame:
    """The stored rows to remove, with their places; of equal rows as many as are to be removed."""
    by = [f for f in schema.fields if f.name in key] if key else list(schema.fields)
    wanted = going.select(*identities(by, _SAME), (-F.col(naming.WEIGHT)).alias(_COUNT))
    marked = stored.select("*", *identities(by, _SAME))
    agrees = [marked[f"{_SAME}{i}"].eqNullSafe(wanted[f"{_SAME}{i}"]) for i in range(len(by))]
    same = [marked[f"{_SAME}{i}"] for i in range(len(by))]
    names = [F.col(quote(n)) for n in (*schema.names, *PLACE_COLUMNS)]
    found = marked.join(wanted, agrees, "inner")
    order = Window.partitionBy(*same).orderBy(*PLACE_COLUMNS)
    numbered = found.withColumn(_COPY, F.row_number().over(order))
    return numbered.where(F.col(_COPY) <= F.col(_COUNT)).select(*names)


def _added(net: DataFrame, schema: StructType) -> DataFrame:
    names = [quote(n) for n in schema.names]
    copies = F.explode(F.sequence(F.lit(1).cast("bigint"), F.col(naming.WEIGHT)))
    return net.where(F.col(naming.WEIGHT) > 0).select(*names, copies.alias(_COPY)).select(*names)
