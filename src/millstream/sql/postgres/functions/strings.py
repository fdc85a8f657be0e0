"""Functions of strings."""

from __future__ import annotations

import re
import sys

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import as_text
from millstream.sql.postgres.functions import regexps
from millstream.sql.postgres.functions.registry import function, simple
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import (
    FALSE,
    ITEM,
    TRUE,
    ZERO,
    Node,
    array,
    at_least,
    at_most,
    cases,
    each,
    fn,
    in_,
    is_not_null,
    is_null,
    op,
    or_,
    text,
    trim,
    when,
)
from millstream.sql.postgres.spark_casts import cast, fail_unless
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import array_of

simple(t.TEXT, "text", lower="LOWER", upper="UPPER", reverse="REVERSE", md5="MD5")
simple(
    t.INTEGER,
    "text",
    length="LENGTH",
    char_length="LENGTH",
    character_length="LENGTH",
    octet_length="OCTET_LENGTH",
    bit_length="BIT_LENGTH",
    ascii="ASCII",
)
simple(t.TEXT, "text text text", replace="REPLACE", translate="TRANSLATE")
simple(t.BOOLEAN, "text text", starts_with="STARTSWITH")
simple(t.TEXT, "text integer", repeat="REPEAT")


@function("strpos", "text text")
def _strpos(x: Value, part: Value) -> Value:
    return Value(fn("LOCATE", part.tree, x.tree), t.INTEGER)


@function("initcap", "text")
def _initcap(x: Value) -> Value:
    pattern = r"([\p{L}\p{N}]+|[^\p{L}\p{N}]+)"
    words = fn("REGEXP_EXTRACT_ALL", fn("LOWER", x.tree), text(pattern), 1)
    capital = fn("CONCAT", fn("UPPER", fn("SUBSTRING", ITEM, 1, 1)), fn("SUBSTRING", ITEM, 2))
    return Value(fn("ARRAY_JOIN", each(words, capital), text("")), t.TEXT)


@function("chr", "integer")
def _chr(x: Value) -> Value:
    if not isinstance(x.constant, int) or x.constant < 1:
        raise RefusalError("chr of anything but a positive constant")
    if x.constant > sys.maxunicode or 0xD800 <= x.constant <= 0xDFFF:
        raise RefusalError(f"chr({x.constant})", "Unicode has no such character")
    return Value(text(chr(x.constant)), t.TEXT, constant=chr(x.constant))


@function("substr substring", "text any integer?")
def substring(x: Value, start: Value, length: Value | None = None) -> Value:
    """By position and length, where positions before the string count in the length; or by a regular expression."""
    if not start.type.is_integer:
        return regexps.by_pattern(x, start, length)
    first: Node = start.tree
    missing: Node = ZERO
    if not isinstance(start.constant, int) or start.constant < 1:
        first, missing = at_least(start.tree, 1), at_most(op(start.tree, "-", 1), 0)
    if length is None:
        return Value(fn("SUBSTRING", x.tree, first), t.TEXT)
    if isinstance(length.constant, int) and length.constant < 0:
        raise RefusalError("substring with a negative length", "PostgreSQL refuses it too")
    size = length.tree if missing is ZERO else at_least(op(length.tree, "+", missing), 0)
    result: Node = fn("SUBSTRING", x.tree, first, size)
    if length.constant is None:
        has_null = [is_null(v.tree) for v in (length, x, start)]
        is_given = or_(op(length.tree, ">=", 0), *has_null)
        result = fail_unless(is_given, result, "negative substring length", cast(length.tree, t.TEXT))
    return Value(result, t.TEXT)


@function("left", "text integer")
def _left(x: Value, n: Value) -> Value:
    size = n.tree
    if not isinstance(n.constant, int) or n.constant < 0:
        size = when(op(n.tree, "<", 0), _without(x, n), n.tree)
    return Value(fn("SUBSTRING", x.tree, 1, size), t.TEXT)


def _without(x: Value, n: Value) -> Node:
    """The number of characters that remain for a negative `n`."""
    return at_least(op(fn("LENGTH", x.tree), "+", n.tree), 0)


@function("right", "text integer")
def _right(x: Value, n: Value) -> Value:
    length = fn("LENGTH", x.tree)
    size = when(op(n.tree, "<", 0), _without(x, n), at_most(n.tree, length))
    return Value(fn("SUBSTRING", x.tree, op(op(length, "-", size), "+", 1), size), t.TEXT)


def _pad(name: str, x: Value, n: Value, fill: Value | None) -> Value:
    filler = fill.tree if fill is not None else text(" ")
    size = at_least(n.tree, 0)
    padded = fn(name, x.tree, size, filler)
    if fill is None or (isinstance(fill.constant, str) and fill.constant):
        return Value(padded, t.TEXT)
    return Value(when(op(filler, "=", text("")), fn("SUBSTRING", x.tree, 1, size), padded), t.TEXT)


@function("lpad", "text integer text?")
def _lpad(x: Value, n: Value, fill: Value | None = None) -> Value:
    return _pad("LPAD", x, n, fill)


@function("rpad", "text integer text?")
def _rpad(x: Value, n: Value, fill: Value | None = None) -> Value:
    return _pad("RPAD", x, n, fill)


def trimmed(x: Value, side: str, characters: Value | None) -> Value:
    """TRIM on any side; without characters, it removes spaces."""
    return Value(trim(side, characters.tree if characters is not None else text(" "), x.tree), t.TEXT)


@function("btrim trim", "text text?")
def _btrim(x: Value, characters: Value | None = None) -> Value:
    return trimmed(x, "BOTH", characters)


@function("ltrim", "text text?")
def _ltrim(x: Value, characters: Value | None = None) -> Value:
    return trimmed(x, "LEADING", characters)


@function("rtrim", "text text?")
def _rtrim(x: Value, characters: Value | None = None) -> Value:
    return trimmed(x, "TRAILING", characters)


@function("split_part", "text text integer")
def _split_part(x: Value, separator: Value, n: Value) -> Value:
    found = fn("SPLIT_PART", x.tree, separator.tree, n.tree)
    if isinstance(separator.constant, str) and separator.constant:
        return Value(found, t.TEXT)
    whole = when(in_(n.tree, (1, -1)), x.tree, text(""))
    return Value(when(op(separator.tree, "=", text("")), whole, found), t.TEXT)


@function("overlay", "text text integer integer?")
def overlay(x: Value, new: Value, start: Value, length: Value | None = None) -> Value:
    """OVERLAY(x PLACING new FROM start FOR length)."""
    if not isinstance(start.constant, int) or start.constant < 1:
        raise RefusalError("overlay from a position that is not a positive constant")
    size = length.tree if length is not None else fn("LENGTH", new.tree)
    tail = fn("SUBSTRING", x.tree, at_least(op(start.tree, "+", size), 1))
    return Value(fn("CONCAT", fn("SUBSTRING", x.tree, 1, start.constant - 1), new.tree, tail), t.TEXT)


# Joining


def shown(x: Value) -> Node:
    """The text that CONCAT and FORMAT use for a value: `t` and `f` for a boolean."""
    if x.type == t.BOOLEAN:
        return cases((TRUE, text("t")), (FALSE, text("f")), of=x.tree)
    return as_text(x).tree


@function("concat", "any any*")
def _concat(*args: Value) -> Value:
    return Value(fn("CONCAT", *(_or_empty(a) for a in args)), t.TEXT)


def _or_empty(x: Value) -> Node:
    return x.tree if isinstance(x.constant, str) else fn("COALESCE", shown(x), text(""))


@function("concat_ws", "text any any*")
def _concat_ws(separator: Value, *args: Value) -> Value:
    return Value(fn("CONCAT_WS", separator.tree, *(shown(a) for a in args)), t.TEXT)


@function("format", "text! any*")
def _format(pattern: Value, *args: Value) -> Value:
    pieces: list[Node] = []
    rest = iter(args)
    for piece in re.split(r"(%.)", str(pattern.constant), flags=re.DOTALL):
        if piece == "%%":
            pieces.append(text("%"))
        elif piece == "%s":
            argument = next(rest, None)
            if argument is None:
                raise RefusalError("format with fewer arguments than placeholders")
            pieces.append(_or_empty(argument))
        elif piece.startswith("%"):
            raise RefusalError(f"{piece} in format", "only %s and %% are supported")
        elif piece:
            pieces.append(text(piece))
    return Value(fn("CONCAT", *pieces) if pieces else text(""), t.TEXT)


@function("string_to_array", "text text! text?")
def _string_to_array(x: Value, separator: Value, null_text: Value | None = None) -> Value:
    mark = str(separator.constant)
    parts = fn("SPLIT", x.tree, text(_verbatim(mark)), -1) if mark else array(x.tree)
    if null_text is not None:
        parts = each(parts, fn("NULLIF", ITEM, null_text.tree))
    texts = array_of(t.TEXT)
    return Value(cases((op(x.tree, "=", text("")), cast(array(), texts)), (is_not_null(x.tree), parts)), texts)


def _verbatim(words: str) -> str:
    """A regular expression for exactly that text."""
    return re.sub(r"([\\.*+?()\[\]{}|^$])", r"\\\1", words)
