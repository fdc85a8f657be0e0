"""Refuses words that the parser skipped: a word that is in no node cannot be translated.

A registry of nodes (`nodes`) cannot see a clause that leaves no trace in the tree. So every word, string and number of
the text must be in the tree, in the text that the tree is printed as, or on the list of words without a meaning. This
errs on the safe side: a word that is only spelled differently is refused too, until it is on the list.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import sqlglot
from sqlglot import TokenType, exp

from millstream.errors import Code, MillstreamError, Position
from millstream.sql.postgres.dialect import tokens_of
from millstream.sql.postgres.refusals import DOCS

_WORD = re.compile(r"\w+")
_STRINGS = {TokenType.STRING, TokenType.NATIONAL_STRING, TokenType.HEREDOC_STRING, TokenType.RAW_STRING,
            TokenType.BYTE_STRING, TokenType.UNICODE_STRING}  # fmt: skip

# Names of types; a cast to an unknown type is refused anyway.
_TYPES = {
    "BIGINT", "BOOL", "BOOLEAN", "BPCHAR", "BYTEA", "CHAR", "CHARACTER", "DATE", "DEC", "DECIMAL", "DOUBLE", "FLOAT",
    "FLOAT4", "FLOAT8", "INT", "INT2", "INT4", "INT8", "INTEGER", "INTERVAL", "JSON", "JSONB", "NAME", "NUMERIC",
    "PRECISION", "REAL", "SMALLINT", "TEXT", "TIME", "TIMESTAMP", "TIMESTAMPTZ", "TIMETZ", "UUID", "VARCHAR", "VARYING",
}  # fmt: skip
# Words that mean nothing, or are printed differently, with the words they may follow; None: any word.
_SILENT: dict[str, set[str] | None] = {
    "ALL": {"SELECT", "(", "LIMIT"},
    "ARRAY": _TYPES,
    "ISNULL": None,
    "NOTNULL": None,
    "ROW": None,  # in OFFSET and FETCH
    "ROWS": None,
    "SOME": None,
    "UNKNOWN": {"IS", "NOT"},
    "WITH": {"TIME", "TIMESTAMP", ")"},
    "WITHOUT": {"TIME", "TIMESTAMP", ")"},
    "ZONE": {"TIME"},
}
# The words that a node or an argument is written with, where they differ from its name.
_WRITTEN = {
    "jsonarrayagg": ("JSON_ARRAYAGG",),
    "jsonobjectagg": ("JSON_OBJECTAGG",),
    "jsonkeyvalue": ("VALUE",),
    "ordered": ("ASC", "NULLS", "FIRST", "LAST"),
    "return_type": ("RETURNING",),
    "empty": ("DEFAULT", "ON"),
    "error": ("DEFAULT", "ON"),
}


def refuse_unread(text: str, tree: exp.Expr) -> None:
    """Refuse a text that has words missing from the tree.

    Raises:
        MillstreamError: UNSUPPORTED_SQL.
    """
    left = _in(tree)
    before = ""
    for token in tokens_of(text):
        for word in _words(token):
            if left[word] > 0:
                left[word] -= 1
            elif not _is_silent(word, before):
                raise MillstreamError(
                    Code.UNSUPPORTED_SQL,
                    f"{text[token.start : token.end + 1]} is not understood here",
                    position=Position(token.line, max(1, token.col - (token.end - token.start)), len(token.text)),
                    sql=text,
                    hint=DOCS,
                )
            before = word
        before = token.text.upper() if not _WORD.search(token.text) else before


def _is_silent(word: str, before: str) -> bool:
    behind = _SILENT.get(word, set())
    return behind is None or before in behind or word in _TYPES


def _words(token: sqlglot.Token) -> Iterator[str]:
    """The words of a token as they are counted: names and keywords in capitals, strings and numbers as they are."""
    if token.token_type in _STRINGS:
        yield f"'{token.text}'"
    elif token.token_type is TokenType.NUMBER:
        yield _number(token.text)
    else:
        yield from _WORD.findall(token.text.upper())


def _number(text: str) -> str:
    return text.lower().replace("_", "").strip("0").rstrip(".") or "0"


def _in(tree: exp.Expr) -> Counter[str]:
    """The words of a tree: of its leaves and clauses, or of its printed text, with the greater count of the two."""
    printed: Counter[str] = Counter()
    for token in tokens_of(tree.sql(dialect="postgres", comments=False)):
        printed.update(_words(token))
    held: Counter[str] = Counter()
    for node in tree.walk():
        held.update((node.key.upper(), *_WRITTEN.get(node.key, ())))
        if isinstance(node, exp.Func):
            held.update(name.upper() for name in node.sql_names())
        for argument, value in node.args.items():
            if value is not None and value is not False and value != []:
                held.update((*argument.upper().strip("_").split("_"), *_WRITTEN.get(argument, ())))
            if isinstance(value, str):
                held.update(_WORD.findall(value.upper()))
        if isinstance(node, exp.Literal | exp.National | exp.RawString | exp.ByteString):
            held[f"'{node.this}'" if not isinstance(node, exp.Literal) or node.is_string else _number(node.this)] += 1
    return printed | held
