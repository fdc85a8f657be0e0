"""Functions of strings."""

from __future__ import annotations

import re
import sys

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import as_text
from millstream.sql.postgres.functions.registry import function, simple
from millstream.sql.postgres.patterns import (
    groups_of,
    has_optional_group,
    may_match_nothing,
    replacement_to_java,
    to_java,
)
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.types import array_of
from millstream.sql.postgres.values import ITEM, Value, at_least, at_most, cast, fail_unless, text_literal

simple(
    t.TEXT,
    "text",
    lower="LOWER({0})",
    upper="UPPER({0})",
    reverse="REVERSE({0})",
    md5="MD5({0})",
)
simple(
    t.INTEGER,
    "text",
    length="LENGTH({0})",
    char_length="LENGTH({0})",
    character_length="LENGTH({0})",
    octet_length="OCTET_LENGTH({0})",
    bit_length="BIT_LENGTH({0})",
    ascii="ASCII({0})",
)
simple(t.TEXT, "text text text", replace="REPLACE({0}, {1}, {2})", translate="TRANSLATE({0}, {1}, {2})")
simple(t.BOOLEAN, "text text", starts_with="STARTSWITH({0}, {1})")
simple(t.INTEGER, "text text", strpos="LOCATE({1}, {0})")
simple(t.TEXT, "text integer", repeat="REPEAT({0}, {1})")


@function("initcap", "text")
def _initcap(x: Value) -> Value:
    words = f"REGEXP_EXTRACT_ALL(LOWER({x.sql}), '([\\\\p{{L}}\\\\p{{N}}]+|[^\\\\p{{L}}\\\\p{{N}}]+)', 1)"
    return Value(
        f"ARRAY_JOIN(TRANSFORM({words}, {ITEM} -> CONCAT(UPPER(SUBSTRING({ITEM}, 1, 1)), SUBSTRING({ITEM}, 2))), '')",
        t.TEXT,
    )


@function("chr", "integer")
def _chr(x: Value) -> Value:
    if not isinstance(x.constant, int) or x.constant < 1:
        raise RefusalError("chr of what is not a positive constant")
    if x.constant > sys.maxunicode or 0xD800 <= x.constant <= 0xDFFF:
        raise RefusalError(f"chr({x.constant})", "Unicode has no such character")
    return Value(text_literal(chr(x.constant)), t.TEXT, constant=chr(x.constant))


@function("substr substring", "text any integer?")
def substring(x: Value, start: Value, length: Value | None = None) -> Value:
    """By position and length; a position before the string counts into the length. Or by a regular expression."""
    if not start.type.is_integer:
        return _by_pattern(x, start, length)
    if isinstance(start.constant, int) and start.constant >= 1:
        first, missing = start.sql, "0"
    else:
        first, missing = at_least(start.sql, "1"), at_most(f"({start.sql} - 1)", "0")
    if length is None:
        return Value(f"SUBSTRING({x.sql}, {first})", t.TEXT)
    if isinstance(length.constant, int) and length.constant < 0:
        raise RefusalError("substring of a negative length", "PostgreSQL refuses it too")
    size = length.sql if missing == "0" else at_least(f"({length.sql} + {missing})", "0")
    result = f"SUBSTRING({x.sql}, {first}, {size})"
    if length.constant is None:
        given = f"{length.sql} >= 0 OR {length.sql} IS NULL OR {x.sql} IS NULL OR {start.sql} IS NULL"
        result = fail_unless(given, result, "negative substring length", cast(length.sql, t.TEXT))
    return Value(result, t.TEXT)


def _by_pattern(x: Value, pattern: Value, length: Value | None) -> Value:
    if not isinstance(pattern.constant, str) or length is not None:
        raise RefusalError("substring by a pattern that is not a constant")
    java = to_java(pattern.constant, extracts=True)
    group = min(groups_of(pattern.constant), 1)
    if group and has_optional_group(pattern.constant):
        raise RefusalError(f"the regular expression {pattern.constant!r} (a group that may be left out)")
    found = f"REGEXP_EXTRACT({x.sql}, {text_literal(java)}, {group})"
    return Value(f"CASE WHEN {x.sql} RLIKE {text_literal(java)} THEN {found} END", t.TEXT)


@function("left", "text integer")
def _left(x: Value, n: Value) -> Value:
    if isinstance(n.constant, int) and n.constant >= 0:
        return Value(f"SUBSTRING({x.sql}, 1, {n.sql})", t.TEXT)
    size = f"CASE WHEN {n.sql} < 0 THEN {_without(x, n)} ELSE {n.sql} END"
    return Value(f"SUBSTRING({x.sql}, 1, {size})", t.TEXT)


def _without(x: Value, n: Value) -> str:
    """How many characters a negative `n` leaves."""
    return at_least(f"(LENGTH({x.sql}) + {n.sql})", "0")


@function("right", "text integer")
def _right(x: Value, n: Value) -> Value:
    size = f"CASE WHEN {n.sql} < 0 THEN {_without(x, n)} ELSE {at_most(n.sql, f'LENGTH({x.sql})')} END"
    return Value(f"SUBSTRING({x.sql}, LENGTH({x.sql}) - {size} + 1, {size})", t.TEXT)


def _pad(name: str, x: Value, n: Value, fill: Value | None) -> Value:
    filler = fill.sql if fill is not None else "' '"
    size = at_least(n.sql, "0")
    padded = f"{name}({x.sql}, {size}, {filler})"
    if fill is not None and fill.constant != "" and isinstance(fill.constant, str):
        return Value(padded, t.TEXT)
    if fill is None:
        return Value(padded, t.TEXT)
    return Value(f"CASE WHEN {filler} = '' THEN SUBSTRING({x.sql}, 1, {size}) ELSE {padded} END", t.TEXT)


@function("lpad", "text integer text?")
def _lpad(x: Value, n: Value, fill: Value | None = None) -> Value:
    return _pad("LPAD", x, n, fill)


@function("rpad", "text integer text?")
def _rpad(x: Value, n: Value, fill: Value | None = None) -> Value:
    return _pad("RPAD", x, n, fill)


def trimmed(x: Value, side: str, characters: Value | None) -> Value:
    """TRIM of any side; without characters, of spaces."""
    which = characters.sql if characters is not None else "' '"
    return Value(f"TRIM({side} {which} FROM {x.sql})", t.TEXT)


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
    found = f"SPLIT_PART({x.sql}, {separator.sql}, {n.sql})"
    if isinstance(separator.constant, str) and separator.constant:
        return Value(found, t.TEXT)
    whole = f"CASE WHEN {n.sql} IN (1, -1) THEN {x.sql} ELSE '' END"
    return Value(f"CASE WHEN {separator.sql} = '' THEN {whole} ELSE {found} END", t.TEXT)


@function("overlay", "text text integer integer?")
def overlay(x: Value, new: Value, start: Value, length: Value | None = None) -> Value:
    """OVERLAY(x PLACING new FROM start FOR length)."""
    if not isinstance(start.constant, int) or start.constant < 1:
        raise RefusalError("overlay from a position that is not a positive constant")
    size = length.sql if length is not None else f"LENGTH({new.sql})"
    tail = f"SUBSTRING({x.sql}, {at_least(f'({start.sql} + {size})', '1')})"
    return Value(f"CONCAT(SUBSTRING({x.sql}, 1, {start.constant - 1}), {new.sql}, {tail})", t.TEXT)


# Joining


def shown(x: Value) -> str:
    """What CONCAT and FORMAT make of a value: its text, `t` and `f` for a boolean."""
    if x.type == t.BOOLEAN:
        return f"CASE {x.sql} WHEN TRUE THEN 't' WHEN FALSE THEN 'f' END"
    return as_text(x).sql


@function("concat", "any any*")
def _concat(*args: Value) -> Value:
    return Value(f"CONCAT({', '.join(_or_empty(a) for a in args)})", t.TEXT)


def _or_empty(x: Value) -> str:
    return x.sql if isinstance(x.constant, str) else f"COALESCE({shown(x)}, '')"


@function("concat_ws", "text any any*")
def _concat_ws(separator: Value, *args: Value) -> Value:
    return Value(f"CONCAT_WS({separator.sql}, {', '.join(shown(a) for a in args)})", t.TEXT)


@function("format", "text! any*")
def _format(pattern: Value, *args: Value) -> Value:
    pieces: list[str] = []
    rest = iter(args)
    for piece in re.split(r"(%.)", str(pattern.constant), flags=re.DOTALL):
        if piece == "%%":
            pieces.append("'%'")
        elif piece == "%s":
            argument = next(rest, None)
            if argument is None:
                raise RefusalError("format with fewer arguments than places")
            pieces.append(_or_empty(argument))
        elif piece.startswith("%"):
            raise RefusalError(f"{piece} in format", "only %s and %% are known")
        elif piece:
            pieces.append(text_literal(piece))
    return Value(f"CONCAT({', '.join(pieces)})" if pieces else "''", t.TEXT)


@function("string_to_array", "text text! text?")
def _string_to_array(x: Value, separator: Value, null_text: Value | None = None) -> Value:
    mark = str(separator.constant)
    parts = f"SPLIT({x.sql}, {text_literal(_verbatim(mark))}, -1)" if mark else f"ARRAY({x.sql})"
    if null_text is not None:
        parts = f"TRANSFORM({parts}, {ITEM} -> NULLIF({ITEM}, {null_text.sql}))"
    empty = cast("ARRAY()", array_of(t.TEXT))
    return Value(f"CASE WHEN {x.sql} = '' THEN {empty} WHEN {x.sql} IS NOT NULL THEN {parts} END", array_of(t.TEXT))


def _verbatim(text: str) -> str:
    """A regular expression for exactly that text."""
    return re.sub(r"([\\.*+?()\[\]{}|^$])", r"\\\1", text)


# Regular expressions


def _flags(flags: Value | None, known: str) -> str:
    letters = str(flags.constant) if flags is not None else ""
    if other := set(letters) - set(known):
        raise RefusalError(f"the flag {''.join(sorted(other))!r} of a regular expression")
    return letters


@function("regexp_replace", "text text! text! text!?")
def _regexp_replace(x: Value, pattern: Value, new: Value, flags: Value | None = None) -> Value:
    letters, source = _flags(flags, "gi"), str(pattern.constant)
    java = to_java(source, ignore_case="i" in letters, extracts=True)
    if "g" in letters:
        replacement = replacement_to_java(str(new.constant))
        return Value(f"REGEXP_REPLACE({x.sql}, {text_literal(java)}, {text_literal(replacement)})", t.TEXT)
    if re.search(r"\\[1-9]", source):
        raise RefusalError("regexp_replace of the first match by a pattern that refers to its own groups")
    options, body = java[: java.index(")") + 1], java[java.index(")") + 1 :]
    first = f"{options}\\A(.*?)({body})"
    replacement = "$1" + replacement_to_java(str(new.constant), shift=2)
    return Value(f"REGEXP_REPLACE({x.sql}, {text_literal(first)}, {text_literal(replacement)})", t.TEXT)


@function("regexp_like", "text text! text!?")
def _regexp_like(x: Value, pattern: Value, flags: Value | None = None) -> Value:
    java = to_java(str(pattern.constant), ignore_case="i" in _flags(flags, "i"))
    return Value(f"({x.sql} RLIKE {text_literal(java)})", t.BOOLEAN)


@function("regexp_count", "text text!")
def _regexp_count(x: Value, pattern: Value) -> Value:
    return Value(f"REGEXP_COUNT({x.sql}, {text_literal(to_java(str(pattern.constant), extracts=True))})", t.INTEGER)


@function("regexp_substr", "text text!")
def _regexp_substr(x: Value, pattern: Value) -> Value:
    java = text_literal(to_java(str(pattern.constant), extracts=True))
    return Value(f"CASE WHEN {x.sql} RLIKE {java} THEN REGEXP_EXTRACT({x.sql}, {java}, 0) END", t.TEXT)


@function("regexp_match", "text text!")
def _regexp_match(x: Value, pattern: Value) -> Value:
    source = str(pattern.constant)
    java, count = text_literal(to_java(source, extracts=True)), groups_of(source)
    if count and has_optional_group(source):
        raise RefusalError(f"the regular expression {source!r} (a group that may be left out)")
    parts = [f"REGEXP_EXTRACT({x.sql}, {java}, {i})" for i in (range(1, count + 1) if count else [0])]
    return Value(f"CASE WHEN {x.sql} RLIKE {java} THEN ARRAY({', '.join(parts)}) END", array_of(t.TEXT))


@function("regexp_split_to_array", "text text!")
def _regexp_split(x: Value, pattern: Value) -> Value:
    if may_match_nothing(str(pattern.constant)):
        what = f"splitting by the regular expression {pattern.constant!r}, which may match nothing"
        raise RefusalError(what, "write it so that it takes a character, with + for *")
    java = text_literal(to_java(str(pattern.constant), extracts=True))
    return Value(f"SPLIT({x.sql}, {java}, -1)", array_of(t.TEXT))
