"""Patterns of SIMILAR TO and of regular expressions, as Java's regular expressions.

Letters are those of Unicode, digits are 0 to 9. PostgreSQL's `.` also matches a newline, and its `$` only the very end.
Where several matches are possible, PostgreSQL takes the longest and Java the first that works. That does not change
whether there is a match, but what is replaced or extracted. There, `|` and lazy quantifiers are refused, and so is a
repeated group after a repeated character that it can begin with.
"""

from __future__ import annotations

import re

from millstream.sql.postgres.refusals import RefusalError

_CLASSES = {
    "alpha": r"\p{Alpha}",
    "digit": "0-9",
    "alnum": r"\p{Alnum}",
    "upper": r"\p{Upper}",
    "lower": r"\p{Lower}",
    "space": r"\s",
    "punct": r"\p{IsPunctuation}$+<=>\^`|~",
    "blank": r"\p{Blank}",
    "cntrl": r"\p{Cntrl}",
    "graph": r"\p{Graph}",
    "print": r"\p{Print}",
    "xdigit": r"\p{XDigit}",
}
# Escapes that mean the same to PostgreSQL and Java.
_ESCAPES = set("wWsSntrf") | set(".*+?()[]{}|^$\\/-&'\"@#%!:;,<>=~_ ")


def to_java(pattern: str, *, ignore_case: bool = False, extracts: bool = False) -> str:
    """A PostgreSQL regular expression, translated to Java.

    Args:
        extracts: what is matched matters, not only whether there is a match.
    """
    if pattern.startswith("***") or re.match(r"\(\?[a-z]+\)", pattern):
        raise _refused(pattern, "options at its start")
    out: list[str] = []
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if char == "\\":
            piece, i = _escape(pattern, i)
        elif char == "[":
            piece, i = _bracket(pattern, i)
        elif pattern.startswith("(?", i) and not pattern.startswith("(?:", i):
            raise _refused(pattern, "(?...)")
        elif extracts and (
            char == "|" or (char == "?" and i and pattern[i - 1] in "*+?}" and not _escaped(pattern, i - 1))
        ):
            raise _refused(pattern, "| or a lazy quantifier, where the match itself is used")
        else:
            piece, i = {"$": r"\z"}.get(char, char), i + 1
        out.append(piece)
    java = "".join(out)
    if extracts and _is_greedy_too_early(java):
        raise _refused(pattern, "a repeated group that can begin like what is repeated before it")
    return ("(?isU)" if ignore_case else "(?sU)") + java


def _escaped(pattern: str, i: int) -> bool:
    return i > 0 and pattern[i - 1] == "\\"


def _escape(pattern: str, i: int, *, in_bracket: bool = False) -> tuple[str, int]:
    following = pattern[i + 1 : i + 2]
    if following == "d":
        return "0-9" if in_bracket else "[0-9]", i + 2
    if following == "D" and not in_bracket:
        return "[^0-9]", i + 2
    if following == "y" and not in_bracket:
        return r"\b", i + 2
    if following == "Y":
        return r"\B", i + 2
    if following == "A":
        return r"\A", i + 2
    if following == "Z":
        return r"\z", i + 2
    if following == "m":
        return r"\b(?=\w)", i + 2
    if following == "M":
        return r"\b(?<=\w)", i + 2
    if following.isdigit() and following != "0":
        return f"\\{following}", i + 2
    if following not in _ESCAPES:
        raise _refused(pattern, f"\\{following}")
    return f"\\{following}", i + 2


def _bracket(pattern: str, i: int) -> tuple[str, int]:
    start = i
    out = "["
    i += 1
    if pattern[i : i + 1] == "^":
        out += "^"
        i += 1
    first = True
    while i < len(pattern):
        if pattern[i] == "]" and not first:
            return out + "]", i + 1
        first = False
        if found := re.match(r"\[:(\w+):\]", pattern[i:]):
            if found.group(1) not in _CLASSES:
                raise _refused(pattern, found.group())
            out += _CLASSES[found.group(1)]
            i += found.end()
        elif pattern[i] == "\\":
            piece, i = _escape(pattern, i, in_bracket=True)
            out += piece
        elif pattern[i] == "[":
            if pattern[i + 1 : i + 2] in {".", "="}:
                raise _refused(pattern, "a collating element")
            out += r"\["
            i += 1
        else:
            out += "\\" + pattern[i] if pattern[i] in "&]^" else pattern[i]
            i += 1
    raise _refused(pattern[start:], "[ without ]")


def groups_of(pattern: str) -> int:
    """The number of capturing groups.

    >>> groups_of(r"(a)(?:b)\\(([)(])")
    2
    """
    bare = re.sub(r"\\.", "", pattern)
    bare = re.sub(r"\[\^?\]?[^\]]*\]", "", bare)
    return len(re.findall(r"\((?!\?)", bare))


def has_optional_group(pattern: str) -> bool:
    """Whether a group may be left out of a match."""
    return bool(re.search(r"\)[?*{]", re.sub(r"\\.", "", pattern)))


_ATOM = r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|[^\\()\[\]?*+{}|]"
_TOKEN = re.compile(rf"\(\?:|\(|\)|[?*+]|\{{\d+(?:,\d*)?\}}|{_ATOM}", re.DOTALL)
_SAMPLE = [chr(c) for c in range(9, 256)] + ["ß", "Ω", "中", "٣"]
"""Characters for testing what an atom matches."""


def may_match_nothing(pattern: str) -> bool:
    """Whether a PostgreSQL regular expression can match between two characters.

    >>> may_match_nothing(r"\\s*"), may_match_nothing(r"\\y"), may_match_nothing("a+,?")
    (True, True, False)
    """
    bare = _as_python(re.sub(r"\\[myMYAZ]|[\^$](?![^\[]*\])", "", pattern))
    try:
        return re.fullmatch(bare, "") is not None
    except re.error:
        return True


def _as_python(pattern: str) -> str:
    """The pattern for Python's `re`, close enough for the tests here: Unicode's classes become word characters."""
    named = re.sub(r"\[:(\w+):\]", lambda m: {"digit": "0-9", "space": r"\s"}.get(m.group(1), r"\w"), pattern)
    return re.sub(r"\\p\{(\w+)\}", lambda m: "!-/:-@" if m.group(1) == "IsPunctuation" else r"\w", named).replace(
        "\\z", ""
    )


def _is_greedy_too_early(java: str) -> bool:
    """Whether a repetition may take a character with which the repeated group after it could begin a longer match."""
    tokens = _TOKEN.findall(java)
    opened: list[int] = []
    for i, token in enumerate(tokens):
        if token.startswith("(") and len(token) in {1, 3}:
            opened.append(i)
        elif token == ")" and opened:
            start = opened.pop()
            repeated = i + 1 < len(tokens) and tokens[i + 1][0] in "?*+{"
            if repeated and i - start > 2 and _follows_alike(tokens, start):
                return True
    return False


def _follows_alike(tokens: list[str], start: int) -> bool:
    before, first = start - 1, start + 1
    while before >= 0 and tokens[before] in {"(", "(?:", ")"}:
        before -= 1
    while first < len(tokens) and tokens[first] in {"(", "(?:"}:
        first += 1
    if before < 1 or tokens[before][0] not in "?*+{" or tokens[before - 1] == ")":
        return before >= 1 and tokens[before][0] in "?*+{"
    one, two = _as_python(tokens[before - 1]), _as_python(tokens[first])
    try:
        return any(re.fullmatch(one, c, re.DOTALL) and re.fullmatch(two, c, re.DOTALL) for c in _SAMPLE)
    except re.error:
        return True


def similar_to_java(pattern: str) -> str:
    """SIMILAR TO: the whole text, `%` and `_` as in LIKE, and `| * + ? {} () []`."""
    out = []
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if char == "\\":
            piece, i = _escape(pattern, i)
            out.append(piece)
            continue
        if char == "[":
            piece, i = _bracket(pattern, i)
            out.append(piece)
            continue
        out.append({"%": ".*", "_": ".", ".": r"\.", "^": r"\^", "$": r"\$"}.get(char, char))
        i += 1
    return f"(?sU)\\A(?:{''.join(out)})\\z"


def replacement_to_java(text: str, shift: int = 0) -> str:
    r"""A replacement: `\1` and `\&` become `$1` and `$0`, with numbers increased by `shift`.

    >>> replacement_to_java(r"<\1> costs $5")
    '<$1> costs \\$5'
    """
    out, i = [], 0
    while i < len(text):
        two = text[i : i + 2]
        if two[0] == "\\" and two[1:].isdigit():
            if two[1] == "0":
                raise RefusalError("\\0 in a replacement", "write \\&")
            if text[i + 2 : i + 3].isdigit():
                raise RefusalError(f"{two} before a digit in a replacement")
            out.append(f"${int(two[1]) + shift}")
            i += 2
        elif two == "\\&":
            out.append(f"${shift}")  # the last of the groups added around the pattern is the whole match
            i += 2
        elif two == "\\\\":
            out.append("\\\\")
            i += 2
        else:
            out.append("\\" + text[i] if text[i] in "$\\" else text[i])
            i += 1
    return "".join(out)


def _refused(pattern: str, what: str) -> RefusalError:
    return RefusalError(f"the regular expression {pattern!r} ({what})", "write it without that")
