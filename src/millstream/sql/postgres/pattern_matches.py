"""LIKE, SIMILAR TO and regular expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce
from millstream.sql.postgres.functions.arrays import quantified
from millstream.sql.postgres.operands import maybe_not, quantifier
from millstream.sql.postgres.patterns import similar_to_java, to_java
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import Node, op, text

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions
    from millstream.sql.postgres.typed_expressions import Value


def like(self: Expressions, node: exp.Binary, escape_by: str = "\\") -> Value:
    """`x LIKE pattern`, and ILIKE."""
    word = "ILIKE" if isinstance(node, exp.ILike) else "LIKE"
    value = coerce(self.translate(node.this), t.TEXT)
    found = quantifier(node)
    if found is not None:
        operand, every = found
        if isinstance(operand, exp.Query):
            raise RefusalError(f"{word} ANY (SELECT ...)", "use EXISTS")
        negated = bool(node.args.get("negate"))  # NOT applies to each pattern, not to the whole test
        return quantified(word, value, self.translate(operand), every=every, negated=negated)
    pattern = coerce(self.translate(node.expression), t.TEXT)
    wanted: Node = pattern.tree
    if isinstance(pattern.constant, str):
        wanted = text(_like_pattern(pattern.constant, escape_by))
    elif escape_by != "\\":
        raise RefusalError(f"{word} ... ESCAPE with a pattern that is not a constant")
    return maybe_not(node, op(value.tree, word, wanted))


def _like_pattern(pattern: str, escape: str) -> str:
    """The pattern with backslashes before wildcards only: Spark refuses them before other characters."""
    out, i = "", 0
    while i < len(pattern):
        char = pattern[i]
        if escape and char == escape:
            i += 1
            if i == len(pattern):
                raise RefusalError(f"the pattern {pattern!r}, which ends with its escape character")
            out += "\\" + pattern[i] if pattern[i] in "%_\\" else pattern[i]
        else:
            out += "\\\\" if char == "\\" else char
        i += 1
    return out


def escape(self: Expressions, node: exp.Escape) -> Value:
    """`x LIKE pattern ESCAPE character`."""
    character = node.expression.name if isinstance(node.expression, exp.Literal) else None
    if character is None or len(character) > 1 or not isinstance(node.this, exp.Like | exp.ILike):
        raise RefusalError("this ESCAPE")
    return like(self, node.this, character)


def regexp(self: Expressions, node: exp.Binary) -> Value:
    """`x ~ pattern`, and `~*`."""
    value, pattern = self.translate(node.this), self.translate(node.expression)
    if not isinstance(pattern.constant, str):
        raise RefusalError("a regular expression that is not a constant")
    java = to_java(pattern.constant, ignore_case=isinstance(node, exp.RegexpILike))
    return maybe_not(node, op(coerce(value, t.TEXT).tree, "RLIKE", text(java)))


def similar(self: Expressions, node: exp.SimilarTo) -> Value:
    """`x SIMILAR TO pattern`."""
    value, pattern = self.translate(node.this), self.translate(node.expression)
    if not isinstance(pattern.constant, str):
        raise RefusalError("SIMILAR TO a pattern that is not a constant")
    return maybe_not(node, op(coerce(value, t.TEXT).tree, "RLIKE", text(similar_to_java(pattern.constant))))
