"""Encodes rows as lines for COPY: exact texts, column by column, or an error that names the column."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import Code, MillstreamError
from millstream.sinks.postgres.types import is_list

NULL = "\\N"
_QUOTE = '"'
_TOO_FAR = "<value out of range"  # what Arrow prints for a date whose year it cannot represent


def lines_of(rows: pa.Table, columns: list[str]) -> list[str]:
    """Each row as a line of COPY's text format, without the line break; equal rows have equal lines.

    Raises:
        MillstreamError: SERVE_FAILED for a value that PostgreSQL cannot hold.
    """
    if not columns:
        return [""] * rows.num_rows
    texts = [_escaped(_text(rows[name].combine_chunks(), name), rows.schema.field(name).type) for name in columns]
    joined = pc.binary_join_element_wise(*texts, "\t", null_handling="replace", null_replacement=NULL)
    return [str(line) for line in joined.to_pylist()]


def _escaped(texts: pa.StringArray, arrow: pa.DataType) -> pa.StringArray:
    if not (
        pa.types.is_nested(arrow) or pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or _is_bytes(arrow)
    ):
        return texts
    for char, escape in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        texts = pc.replace_substring(texts, char, escape)
    return texts


def _text(values: pa.Array, name: str) -> pa.StringArray:
    """The text PostgreSQL reads a value from."""
    arrow = values.type
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        _refuse_nul(pc.any(pc.match_substring(values, "\0")).as_py(), name)
        return values.cast(pa.string())
    if _is_bytes(arrow):
        return _each(values, lambda v: "\\x" + v.hex(), name)
    if pa.types.is_date(arrow) or pa.types.is_timestamp(arrow):
        return _dated(values.cast(pa.string()), name)
    if is_list(arrow) and not pa.types.is_nested(arrow.value_type):
        return _arrays(values, name)
    if pa.types.is_nested(arrow):
        return _each(values, lambda v: _json(v, arrow, name), name)
    return values.cast(pa.string())


def _is_bytes(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow))


def _dated(texts: pa.StringArray, name: str) -> pa.StringArray:
    if pc.any(pc.starts_with(texts, _TOO_FAR)).as_py():
        raise _refused(name, "a date or time too far in the past or future to be written as text")
    before_christ = pc.or_(pc.starts_with(texts, "-"), pc.starts_with(texts, "0000-"))
    if not pc.any(before_christ).as_py():
        return texts
    return pa.array([None if t is None else _before_christ(t) for t in texts.to_pylist()], pa.string())


def _before_christ(text: str) -> str:
    """Arrow counts years through zero, PostgreSQL does not: year 0 is 1 BC."""
    if not text.startswith(("-", "0000-")):
        return text
    year, rest = text.removeprefix("-").split("-", 1)
    return f"{int(year) + 1:04d}-{rest} BC"


def _arrays(values: pa.Array, name: str) -> pa.StringArray:
    """One-dimensional array literals; every element is quoted, so that none reads as NULL or as a brace."""
    elements = _text(values.flatten(), name)
    for char, escape in (("\\", "\\\\"), ('"', '\\"')):
        elements = pc.replace_substring(elements, char, escape)
    quoted = pc.binary_join_element_wise('"', elements, '"', "").fill_null("NULL").to_pylist()
    sizes, texts, at = pc.list_value_length(values).to_pylist(), [], 0
    for size in sizes:
        texts.append(None if size is None else "{" + ",".join(quoted[at : at + size]) + "}")
        at += size or 0
    return pa.array(texts, pa.string())


def _each(values: pa.Array, convert: Callable[[Any], str], name: str) -> pa.StringArray:
    try:
        return pa.array([None if v is None else convert(v) for v in values.to_pylist()], pa.string())
    except (ValueError, OverflowError) as e:  # Python's dates end with the year 9999
        raise _refused(name, f"a value that cannot be written as text: {e}") from e


def _json(value: Any, arrow: pa.DataType, name: str) -> str:
    """A value of a struct, map or nested array as JSON; values that JSON has no type for are strings."""
    if value is None:
        return "null"
    if pa.types.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        return "{" + ",".join(f"{_quoted(f.name, name)}:{_json(value[f.name], f.type, name)}" for f in fields) + "}"
    if pa.types.is_map(arrow):
        pairs = [(_json(k, arrow.key_type, name), _json(v, arrow.item_type, name)) for k, v in value]
        return "{" + ",".join(f"{k if k.startswith(_QUOTE) else _quoted(k, name)}:{v}" for k, v in pairs) + "}"
    if is_list(arrow):
        return "[" + ",".join(_json(v, arrow.value_type, name) for v in value) + "]"
    match value:
        case str():
            return _quoted(value, name)
        case Decimal():
            return f"{value:f}"
        case float() if not math.isfinite(value):
            return _quoted(str(value), name)
        case float() if pa.types.is_float32(arrow):  # the digits of a float, not those of the double that holds it
            return str(np.float32(value))
        case bytes():
            return _quoted(base64.b64encode(value).decode(), name)
        case dt.date():
            return _quoted(value.isoformat(), name)
    return json.dumps(value)


def _quoted(text: str, name: str) -> str:
    _refuse_nul("\0" in text, name)
    return json.dumps(text, ensure_ascii=False)


def _refuse_nul(found: bool | None, name: str) -> None:
    if found:
        raise _refused(name, "a NUL character, which PostgreSQL's text cannot hold")


def _refused(name: str, what: str) -> MillstreamError:
    return MillstreamError(
        Code.SERVE_FAILED, f"the column {name} has {what}", hint=f"correct the data, or convert {name} in the query"
    )
