"""Compares a stream table's contents with its query at the frontier, as bags."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from millstream.catalog.models import StreamTable
from millstream.engine.storage import DeltaStore
from millstream.lake import Compiled
from millstream.naming import VISIBLE, quote
from millstream.results import VerifyResult

_FLOATING = {"float", "double"}


def contents_of(store: DeltaStore, table: StreamTable, compiled: Compiled) -> DataFrame:
    """The rows of a stream table as its view shows them, at the recorded version."""
    stage, layout = table.public_stage, compiled.layouts[-1]
    assert stage.version is not None
    contents = store.read(stage.path, stage.version)
    if layout.hides_rows:
        contents = contents.where(VISIBLE)
    return contents.select(*layout.outputs)


def compare(contents: DataFrame, expected: DataFrame, relative_tolerance: float) -> VerifyResult:
    """Count rows missing from and extra in `contents`; floating-point values may differ within the tolerance."""
    names = [f"c{i}" for i in range(len(expected.columns))]
    actual, wanted = contents.toDF(*names), expected.toDF(*names)
    floating = [n for n, t in wanted.dtypes if t in _FLOATING]
    if not floating:
        missing, extra = _compare_exactly(actual, wanted, names)
    else:
        missing, extra = _compare_near(actual, wanted, names, floating, relative_tolerance)
    return VerifyResult(missing == 0 and extra == 0, missing, extra)


def _compare_exactly(actual: DataFrame, wanted: DataFrame, names: Sequence[str]) -> tuple[int, int]:
    """Count the rows that one side has more often than the other, in one job; EXCEPT ALL both ways takes two."""
    weight = f.col("weight")
    both = wanted.withColumn("weight", f.lit(1)).unionAll(actual.withColumn("weight", f.lit(-1)))
    apart = both.groupBy(*names).agg(f.sum(weight).alias("weight")).filter(weight != 0)
    row = apart.agg(
        f.coalesce(f.sum(f.greatest(weight, f.lit(0))), f.lit(0)).alias("missing"),
        f.coalesce(f.sum(f.greatest(-weight, f.lit(0))), f.lit(0)).alias("extra"),
    ).collect()[0]
    return int(row["missing"]), int(row["extra"])


def _compare_near(
    actual: DataFrame, wanted: DataFrame, names: Sequence[str], floating: Sequence[str], tolerance: float
) -> tuple[int, int]:
    """Pair rows with equal exact columns, in the order of their floating-point values, and compare those values."""
    exact = [n for n in names if n not in floating]
    keys = [*exact, "rank"]
    left, right = _ranked(actual, exact, floating).alias("a"), _ranked(wanted, exact, floating).alias("w")
    same_key = _all([f.col(f"a.{k}").eqNullSafe(f.col(f"w.{k}")) for k in keys])
    paired = left.join(right, same_key, "full_outer")
    near = _all([_near(f.col(f"a.{quote(n)}"), f.col(f"w.{quote(n)}"), tolerance) for n in floating])
    here, there = f.col("a.rank").isNotNull(), f.col("w.rank").isNotNull()
    different = here & there & ~near
    row = paired.agg(
        f.count_if((there & ~here) | different).alias("missing"), f.count_if((here & ~there) | different).alias("extra")
    ).collect()[0]
    return int(row["missing"]), int(row["extra"])


def _ranked(frame: DataFrame, exact: Sequence[str], floating: Sequence[str]) -> DataFrame:
    window = Window.partitionBy(*exact).orderBy(*floating)
    return frame.withColumn("rank", f.row_number().over(window))


def _near(left: Column, right: Column, tolerance: float) -> Column:
    close = f.abs(left - right) <= f.greatest(f.abs(left), f.abs(right)) * f.lit(tolerance)
    return f.coalesce(left.eqNullSafe(right) | close, f.lit(False))


def _all(conditions: Sequence[Column]) -> Column:
    result = f.lit(True)
    for condition in conditions:
        result = result & condition
    return result
