"""The small formats a Delta table is made of, without a JVM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64
from pyspark.sql.types import StringType, StructField, StructType, VariantType

from millstream import naming
from millstream.engine.storage.files import deletion_vector as dv
from millstream.engine.storage.files.schema import UnsupportedTypeError, arrow_schema
from millstream.engine.storage.log.log_files import listing_of
from millstream.engine.storage.read.zset import consolidated, weighted


def test_vectors_survive(tmp_path: Path) -> None:
    bitmaps = {
        "a": BitMap64([0]),
        "b": BitMap64(range(100_000)),
        "c": dv.positions(np.random.default_rng(1).integers(0, 10**10, 5_000)),
    }
    descriptors = dv.write(tmp_path, bitmaps)
    assert len(list(tmp_path.iterdir())) == 1, "one file for all"
    for path, bitmap in bitmaps.items():
        assert dv.read(tmp_path, descriptors[path]) == bitmap
        assert list(dv.to_numpy(bitmap)) == sorted(bitmap)
    assert dv.read(tmp_path, None) == BitMap64()


def test_vectors_in_the_log() -> None:
    """The portable format is read; the protocol's example is in the older native one, which is left to Spark."""
    bitmap = BitMap64([3, 4, 7, 11, 18, 29])
    data = (1681511377).to_bytes(4, "little") + bitmap.serialize()
    described = {"storageType": "i", "pathOrInlineDv": dv.z85_encode(data), "sizeInBytes": len(data), "cardinality": 6}
    assert dv.read(Path(), described) == bitmap
    example = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    with pytest.raises(dv.UnreadableVectorError):
        dv.read(Path(), {**described, "pathOrInlineDv": example, "sizeInBytes": 40})


def test_damaged_vectors_are_noticed(tmp_path: Path) -> None:
    descriptor = dv.write(tmp_path, {"a": BitMap64([1, 2, 3])})["a"]
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(dv.UnreadableVectorError):
        dv.read(tmp_path, descriptor)
    file.unlink()
    with pytest.raises(dv.UnreadableVectorError):
        dv.read(tmp_path, descriptor)
    with pytest.raises(dv.UnreadableVectorError):
        dv.read(tmp_path, {**descriptor, "storageType": "p"})


def test_only_whole_checkpoints_count() -> None:
    listing = listing_of(
        [
            "00000000000000000009.json",
            "00000000000000000010.json",
            "00000000000000000010.checkpoint.parquet",
            "00000000000000000020.checkpoint.0000000001.0000000002.parquet",
            "00000000000000000030.checkpoint.0000000001.0000000002.parquet",
            "00000000000000000030.checkpoint.0000000002.0000000002.parquet",
            "00000000000000000040.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json",
            "00000000000000000010.crc",
            "_last_checkpoint",
            ".00000000000000000011.json.crc",
        ]
    )
    assert listing.newest == 10
    assert {version: len(names) for version, names in listing.checkpoints.items()} == {10: 1, 30: 2, 40: 1}


def test_equal_rows_are_summed() -> None:
    rows = pa.table({"a": [1, 1, None, None, 2], "f": [0.0, -0.0, float("nan"), float("nan"), 1.0]})
    zset = pa.concat_tables([weighted(rows, 1), weighted(rows.slice(2), -1)])
    summed = consolidated(zset)
    assert summed.schema == zset.schema
    assert sum(summed.column(naming.WEIGHT).to_pylist()) == 2
    assert set(summed.column("a").to_pylist()) == {1}
    nested = weighted(pa.table({"l": [[1], [1]]}), 1)
    assert consolidated(nested) is nested


@pytest.mark.parametrize("data_type", [VariantType(), StringType("UTF8_LCASE")])
def test_types_left_to_spark(data_type: VariantType | StringType) -> None:
    with pytest.raises(UnsupportedTypeError):
        arrow_schema(StructType([StructField("c", data_type)]))
