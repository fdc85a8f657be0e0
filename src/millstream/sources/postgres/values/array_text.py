"""Splits PostgreSQL's texts of arrays, e.g. `{1,NULL,"a \\"b\\""}`, a whole column at once."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",{}]+)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class ArrayTextError(Exception):
    """An array of several dimensions, or one that does not start at 1."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def split_arrays(texts: pa.StringArray) -> tuple[pa.StringArray, pa.Array]:
    """The texts of all elements one after the other, and where each array begins; a NULL array is empty.

    Raises:
        ArrayTextError: other dimensions or bounds.
    """
    given = texts.fill_null("{}")
    if pc.any(pc.match_substring(given, '"')).as_py():
        return _split_quoted(given)
    # nothing is quoted, so no element holds a comma or a brace
    is_flat = pc.match_substring_regex(given, r"^\{[^{}]*\}$")
    _refuse_first(given, is_flat)
    inner = pc.utf8_slice_codeunits(given, 1, -1)
    lists = pc.split_pattern(inner, ",")
    is_empty = pc.equal(inner, "")
    counts = pc.if_else(is_empty, pa.scalar(0, pa.int32()), pc.list_value_length(lists))
    elements = pc.list_flatten(lists)
    if pc.any(is_empty).as_py():  # '' was split into one empty text
        elements = elements.filter(pc.not_equal(elements, ""))
    elements = pc.if_else(pc.equal(elements, "NULL"), pa.scalar(None, pa.string()), elements)
    return elements, _offsets(counts)


def _split_quoted(texts: pa.StringArray) -> tuple[pa.StringArray, pa.Array]:
    elements: list[str | None] = []
    counts: list[int] = []
    for text in texts.to_pylist():
        before = len(elements)
        if not text.startswith("{") or text.startswith("{{"):
            raise ArrayTextError(text)
        for found in _ELEMENT.finditer(text, 1, len(text) - 1):
            quoted, plain = found.groups()
            if plain is None:
                elements.append(_ESCAPED.sub(r"\1", quoted) if "\\" in quoted else quoted)
            else:
                elements.append(None if plain == "NULL" else plain)
        counts.append(len(elements) - before)
    return pa.array(elements, pa.string()), _offsets(pa.array(counts, pa.int32()))


def _refuse_first(texts: pa.StringArray, is_fine: pa.BooleanArray) -> None:
    if not pc.all(is_fine, min_count=0).as_py():
        raise ArrayTextError(str(texts.filter(pc.invert(is_fine))[0].as_py()))


def _offsets(counts: pa.Array) -> pa.Array:
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
