"""The only decoder from PostgreSQL's texts to Arrow: for COPY, trigger buffers and the WAL.

All values are texts first, written under the session settings of `connection`; then each column is converted as a
whole. A value that the column's Spark type cannot hold exactly is a coded error that names the column and the value.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from millstream.engine.storage.files.schema import arrow_type
from millstream.errors import Code, MillstreamError
from millstream.naming import postgres_name
from millstream.sources.postgres.values.array_text import ArrayTextError, split_arrays
from millstream.sources.postgres.values.number_text import (
    UnfitError,
    decimals,
    fitting_range,
    floats,
    without_trailing_zeros,
)
from millstream.sources.postgres.values.types import MirrorColumn, data_type, takes_range

Texts: TypeAlias = "pa.StringArray | pa.ChunkedArray | Sequence[str | None]"

BATCH_BYTES = 8 << 20
"""How much CSV is decoded at once, at least: enough to make Python's share small, not too much to hold several."""

_SHOWN = 80  # characters of a value in a message


def decode_texts(columns: Sequence[MirrorColumn], texts: Sequence[Texts]) -> pa.Table:
    """Rows from the texts of each column, `None` for NULL.

    Raises:
        MillstreamError: VALUE_UNSUPPORTED.
    """
    return pa.Table.from_batches([decode_batch(columns, texts)])


def decode_batch(columns: Sequence[MirrorColumn], texts: Sequence[Texts]) -> pa.RecordBatch:
    """As `decode_texts`, as one batch."""
    arrays = [_decoded(column, _strings(given)) for column, given in zip(columns, texts, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=batch_schema(columns))


def batch_schema(columns: Sequence[MirrorColumn]) -> pa.Schema:
    """The Arrow schema of decoded rows, which is what the direct path writes."""
    return pa.schema([pa.field(c.name, arrow_type(data_type(c.spark_type))) for c in columns])


def read_csv(
    chunks: Iterable[bytes], columns: Sequence[MirrorColumn], batch_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows of `COPY ... TO STDOUT (FORMAT csv)` without a header, in batches of about `batch_bytes` of text.

    Args:
        chunks: the output, cut anywhere.

    Raises:
        MillstreamError: VALUE_UNSUPPORTED.
    """
    for block in _blocks(chunks, batch_bytes):
        yield decode_batch(columns, _parsed(block, len(columns)))


def _blocks(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Cut only between rows: after a newline that an even number of quotes precedes."""
    parts: list[bytes] = []
    length = 0
    for chunk in chunks:
        parts.append(chunk)
        length += len(chunk)
        if length >= size and chunk.endswith(b"\n"):
            block = b"".join(parts)
            if block.count(b'"') % 2 == 0:
                yield block
                parts, length = [], 0
            else:
                parts = [block]
    if length:
        yield b"".join(parts)


def _parsed(block: bytes, width: int) -> list[pa.ChunkedArray]:
    names = [str(i) for i in range(width)]
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            # all in one block: a row must not be longer than a block
            read_options=csv.ReadOptions(column_names=names, block_size=len(block) + 1, use_threads=False),
            # an empty line is the NULL of a table with one column
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            # COPY writes NULL as nothing and an empty text as ""
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as e:
        raise MillstreamError(
            Code.VALUE_UNSUPPORTED,
            f"a row's text cannot be read: {e}",
            hint="a database with the encoding SQL_ASCII may hold texts that are not UTF-8",
        ) from e
    return list(table.columns)


def _strings(texts: Texts) -> pa.StringArray:
    if isinstance(texts, pa.ChunkedArray):
        return texts.combine_chunks() if texts.num_chunks != 1 else texts.chunk(0)
    return texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())


def _decoded(column: MirrorColumn, texts: pa.StringArray) -> pa.Array:
    try:
        return _converted(texts, column.pg_type, column.spark_type)
    except ArrayTextError as e:
        raise MillstreamError(
            Code.VALUE_UNSUPPORTED,
            f"{_named(column)} has the array {_shown(e.text)}, and only arrays of one dimension with a lower "
            "bound of 1 have a counterpart in Spark",
            hint="keep other arrays as jsonb",
        ) from None
    except (pa.ArrowInvalid, UnfitError):
        text = _first_unfit(column, texts)
    raise MillstreamError(
        Code.VALUE_UNSUPPORTED,
        f"{_named(column)} has the value {_shown(text)}, which Spark's {column.spark_type.upper()} cannot hold",
        hint=_hint(column, text),
    )


def _converted(texts: pa.StringArray, pg_type: str, spark_type: str) -> pa.Array:
    if spark_type.startswith("array<"):
        element_type = spark_type.removeprefix("array<").removesuffix(">")
        elements, offsets = split_arrays(texts)
        values = _converted(elements, pg_type.removesuffix("[]"), element_type)
        return pa.ListArray.from_arrays(
            offsets, values, type=arrow_type(data_type(spark_type)), mask=texts.is_null() if texts.null_count else None
        )
    convert = _CONVERSIONS.get(spark_type)
    if convert is not None:
        return convert(texts)
    if spark_type == "string":
        return _string(texts, pg_type)
    if spark_type.startswith("decimal("):
        return decimals(texts, arrow_type(data_type(spark_type)))
    if spark_type in ("float", "double"):
        return floats(texts, arrow_type(data_type(spark_type)))
    return pc.cast(texts, arrow_type(data_type(spark_type)))  # Arrow refuses integers and dates out of range


def _string(texts: pa.StringArray, pg_type: str) -> pa.StringArray:
    if pg_type.startswith(("character(", "bpchar")) or pg_type == "character":
        return pc.utf8_rtrim(texts, " ")  # PostgreSQL ignores the blanks that pad char(n)
    if pg_type.startswith("numeric"):
        return without_trailing_zeros(texts)  # 1.50 = 1.5 in PostgreSQL
    return texts


def _boolean(texts: pa.StringArray) -> pa.BooleanArray:
    is_true = pc.is_in(texts, pa.array(["t", "true"]))
    is_false = pc.is_in(texts, pa.array(["f", "false"]))
    values = pc.if_else(pc.or_(is_true, is_false), is_true, pa.scalar(None, pa.bool_()))
    if values.null_count != texts.null_count:
        raise UnfitError
    return values


def _binary(texts: pa.StringArray) -> pa.BinaryArray:
    """Decode all values at once: the hexadecimal digits of a column are one text."""
    if not pc.all(pc.starts_with(texts, r"\x"), min_count=0).as_py():
        raise UnfitError
    digits = pc.utf8_slice_codeunits(texts.fill_null(r"\x"), 2)
    _, offsets_buffer, data = digits.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[digits.offset : digits.offset + len(digits) + 1]
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    try:
        values = binascii.unhexlify(data[first:last] if data is not None else b"")
    except binascii.Error:
        raise UnfitError from None
    starts = pa.py_buffer(((offsets - first) // 2).astype(np.int32))
    decoded = pa.Array.from_buffers(pa.binary(), len(texts), [None, starts, pa.py_buffer(values)])
    return pc.if_else(texts.is_valid(), decoded, pa.scalar(None, pa.binary())) if texts.null_count else decoded


_CONVERSIONS: dict[str, Callable[[pa.StringArray], pa.Array]] = {"boolean": _boolean, "binary": _binary}


def _first_unfit(column: MirrorColumn, texts: pa.StringArray) -> str:
    """Find the first value that fails by bisection: the column failed as a whole, so one half of it fails."""
    while len(texts) > 1:
        half = len(texts) // 2
        try:
            _converted(texts.slice(0, half), column.pg_type, column.spark_type)
        except (pa.ArrowInvalid, UnfitError):
            texts = texts.slice(0, half)
        else:
            texts = texts.slice(half)
    return str(texts[0].as_py())


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _named(column: MirrorColumn) -> str:
    return f"column {column.name} of {column.table}" if column.table else f"column {column.name}"


def _hint(column: MirrorColumn, text: str) -> str:
    if "decimal" in column.spark_type:
        return _wider_range(column, text)
    if "date" in column.spark_type or "timestamp" in column.spark_type:
        return "dates in Spark go from 0001-01-01 to 9999-12-31: use NULL where there is no date, or correct the value"
    return "correct the value, or leave the column out of the query"


def _wider_range(column: MirrorColumn, text: str) -> str:
    """The hint to declare a range for a `numeric` column that holds the value, if there is one."""
    range_ = fitting_range(text)
    if range_ is None or not takes_range(column.pg_type):
        return "correct the value: a DECIMAL in Spark has up to 38 digits, and neither NaN nor infinity"
    name = f"{column.table}.{postgres_name(column.name)}"
    return (
        f"declare a range that holds it, such as {range_.upper()}, when attaching the database: "
        f"`millstream attach NAME ADDRESS --numeric '{name}={range_}'`, "
        f"or ATTACH POSTGRES '…' AS … NUMERIC ({name} AS {range_.upper()})"
    )
