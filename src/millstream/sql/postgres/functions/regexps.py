"""Functions of regular expressions."""

from __future__ import annotations

import re

from millstream.sql.postgres import types as t
from millstream.sql.postgres.functions.registry import function
from millstream.sql.postgres.patterns import (
    groups_of,
    has_optional_group,
    may_match_nothing,
    replacement_to_java,
    to_java,
)
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import Node, array, fn, op, text, when
from millstream.sql.postgres.typed_expressions import Value
from millstream.sql.postgres.types import array_of


def by_pattern(x: Value, pattern: Value, length: Value | None) -> Value:
    """`substring(x from pattern)`: the first group of the first match, or the whole match."""
    if not isinstance(pattern.constant, str) or length is not None:
        raise RefusalError("substring by a pattern that is not a constant")
    java = to_java(pattern.constant, extracts=True)
    group = min(groups_of(pattern.constant), 1)
    if group and has_optional_group(pattern.constant):
        raise RefusalError(f"the regular expression {pattern.constant!r} (a group that may be left out)")
    return Value(_extracted(x, java, group), t.TEXT)


def _extracted(x: Value, java: str, group: int) -> Node:
    """The text of a group in the first match; NULL if there is no match."""
    return when(op(x.tree, "RLIKE", text(java)), fn("REGEXP_EXTRACT", x.tree, text(java), group))


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
        return Value(fn("REGEXP_REPLACE", x.tree, text(java), text(replacement)), t.TEXT)
    if re.search(r"\\[1-9]", source):
        raise RefusalError("regexp_replace of the first match with a pattern that refers to its own groups")
    options, body = java[: java.index(")") + 1], java[java.index(")") + 1 :]
    first = f"{options}\\A(.*?)({body})"
    replacement = "$1" + replacement_to_java(str(new.constant), shift=2)
    return Value(fn("REGEXP_REPLACE", x.tree, text(first), text(replacement)), t.TEXT)


@function("regexp_like", "text text! text!?")
def _regexp_like(x: Value, pattern: Value, flags: Value | None = None) -> Value:
    java = to_java(str(pattern.constant), ignore_case="i" in _flags(flags, "i"))
    return Value(op(x.tree, "RLIKE", text(java)), t.BOOLEAN)


@function("regexp_count", "text text!")
def _regexp_count(x: Value, pattern: Value) -> Value:
    return Value(fn("REGEXP_COUNT", x.tree, text(to_java(str(pattern.constant), extracts=True))), t.INTEGER)


@function("regexp_substr", "text text!")
def _regexp_substr(x: Value, pattern: Value) -> Value:
    return Value(_extracted(x, to_java(str(pattern.constant), extracts=True), 0), t.TEXT)


@function("regexp_match", "text text!")
def _regexp_match(x: Value, pattern: Value) -> Value:
    source = str(pattern.constant)
    java, count = text(to_java(source, extracts=True)), groups_of(source)
    if count and has_optional_group(source):
        raise RefusalError(f"the regular expression {source!r} (a group that may be left out)")
    parts = [fn("REGEXP_EXTRACT", x.tree, java, i) for i in (range(1, count + 1) if count else [0])]
    return Value(when(op(x.tree, "RLIKE", java), array(*parts)), array_of(t.TEXT))


@function("regexp_split_to_array", "text text!")
def _regexp_split(x: Value, pattern: Value) -> Value:
    if may_match_nothing(str(pattern.constant)):
        what = f"splitting by the regular expression {pattern.constant!r}, which may match nothing"
        raise RefusalError(what, "write it so that it matches a character, e.g. with + instead of *")
    java = to_java(str(pattern.constant), extracts=True)
    return Value(fn("SPLIT", x.tree, text(java), -1), array_of(t.TEXT))
