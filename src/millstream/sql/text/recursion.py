"""Splits texts with `WITH RECURSIVE ... UNION`, which Spark parses but does not run, into queries that it runs.

As in `table_exchange`, the text is cut and reassembled, not printed from a tree, so that it stays what the user wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from sqlglot import Token, TokenType, exp
from sqlglot.dialects import Spark

from millstream import naming
from millstream.errors import MillstreamError
from millstream.naming import quote
from millstream.sql.lowering.recursion import references
from millstream.sql.parse import parse_query
from millstream.sql.refusals.unsupported import unsupported

FRONTIER = f"{naming.RESERVED_PREFIX}last_found"
"""The table that the step of a loop reads in place of the recursion."""


@dataclass(frozen=True, slots=True)
class TextLoop:
    """A recursion with UNION: `base` returns the first rows, `step` derives more from `FRONTIER`; `found` holds all."""

    base: str
    step: str
    found: str


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a common table expression and its query are in the text, and where the two branches of its UNION meet.

    `ends` is the span of the words `UNION DISTINCT`; None unless the expression is a recursion with UNION.
    """

    start: int
    opened: int
    closed: int
    ends: tuple[int, int] | None


def with_union_all(text: str) -> str:
    """The text with UNION ALL in place of each recursion's UNION, so that Spark can determine its types or errors.

    >>> with_union_all("WITH RECURSIVE r AS (SELECT 1 AS n UNION SELECT n FROM r) SELECT n FROM r UNION SELECT 2")
    'WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r) SELECT n FROM r UNION SELECT 2'
    """
    try:
        cuts = [cut for with_ in _recursive(text) for cut in _cuts(text, with_)]
    except MillstreamError:
        return text  # the parser cannot parse it
    for start, end in sorted((cut.ends for cut in cuts if cut.ends is not None), reverse=True):
        text = f"{text[:start]}UNION ALL{text[end:]}"
    return text


def unrolled(text: str) -> tuple[tuple[TextLoop, ...], str]:
    """The loops to run, in this order, and the query over their results, to run after them.

    Raises:
        MillstreamError: UNSUPPORTED_SQL if such a recursion is in a subquery.
    """
    loops: list[TextLoop] = []
    for with_ in _recursive(text):
        cuts = _cuts(text, with_)
        if all(cut.ends is None for cut in cuts):
            continue
        if not isinstance(with_.parent, exp.Query) or with_.parent.parent is not None:
            raise unsupported("a recursion with UNION in a subquery", with_, text, "move it to the WITH at the top")
        before = ""  # the expressions so far; loops are replaced by their results
        rest, behind = text[: cuts[0].start], cuts[0].start
        for cut in cuts:
            rest += text[behind : cut.start]
            definition = text[cut.start : cut.closed + 1]
            if cut.ends is not None:
                found = f"{naming.RESERVED_PREFIX}found_{len(loops) + 1}"
                named = text[cut.start : cut.opened + 1]
                itself = f"{named}SELECT * FROM {quote(FRONTIER)})"
                base, step = text[cut.opened + 1 : cut.ends[0]], text[cut.ends[1] : cut.closed]
                with_base = f"WITH RECURSIVE {before}\n" if before else ""
                with_step = f"WITH RECURSIVE {before}, {itself}\n" if before else f"WITH RECURSIVE {itself}\n"
                loops.append(TextLoop(with_base + base.strip(), with_step + step.strip(), found))
                definition = f"{named}SELECT * FROM {quote(found)})"
            before += f", {definition}" if before else definition
            rest, behind = rest + definition, cut.closed + 1
        text = rest + text[behind:]
    return tuple(loops), text


def _recursive(text: str) -> list[exp.With]:
    if "recursive" not in text.lower():
        return []  # most texts; they need not be parsed again
    return [with_ for with_ in parse_query(text).find_all(exp.With) if with_.args.get("recursive")]


def _cuts(text: str, with_: exp.With) -> list[_Cut]:
    tokens = Spark().tokenize(text)
    places = {token.start: position for position, token in enumerate(tokens)}
    return [_cut(cte, tokens, places[cte.args["alias"].this.meta["start"]]) for cte in with_.expressions]


def _cut(cte: exp.CTE, tokens: list[Token], position: int) -> _Cut:
    start = tokens[position].start
    position += 1
    if cte.args["alias"].columns:
        position = _closing(tokens, position) + 1
    while tokens[position].token_type is not TokenType.L_PAREN:  # AS, MATERIALIZED
        position += 1
    closing = _closing(tokens, position)
    is_loop = isinstance(cte.this, exp.Union) and cte.this.args.get("distinct") and any(references(cte.this, cte.alias))
    ends = _last_union(tokens[position + 1 : closing]) if is_loop else None
    return _Cut(start, tokens[position].start, tokens[closing].start, ends)


def _last_union(tokens: list[Token]) -> tuple[int, int] | None:
    """The last UNION outside parentheses: set operations associate to the left."""
    depth, found = 0, None
    for token, following in pairwise(tokens):
        depth += _deeper(token)
        if depth == 0 and token.token_type is TokenType.UNION:
            found = (token.start, (following if following.token_type is TokenType.DISTINCT else token).end + 1)
    return found


def _closing(tokens: list[Token], position: int) -> int:
    """The index of the parenthesis that closes the one at a position."""
    depth = 0
    for index in range(position, len(tokens)):
        depth += _deeper(tokens[index])
        if depth == 0:
            return index
    raise ValueError("the parser has seen a closing parenthesis")


def _deeper(token: Token) -> int:
    return (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
