"""`||` and the bitwise operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import as_text, coerce, unify
from millstream.sql.postgres.functions import arrays, call
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import Node, fn, op
from millstream.sql.postgres.spark_builders import complement as bitwise_not
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import Value

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions


def concatenation(self: Expressions, node: exp.DPipe) -> Value:
    """`||`: of arrays if one side is one, else of texts; NULL with a NULL text."""
    left, right = self.translate(node.this), self.translate(node.expression)
    if left.type.is_json or right.type.is_json:
        raise RefusalError("|| of json", "build the object with jsonb_build_object")
    if left.type.element is not None or right.type.element is not None:
        return _of_arrays(left, right)
    texts = {"text", "unknown"}
    if left.type.name not in texts and right.type.name not in texts:
        raise RefusalError(f"{left.type} || {right.type}", "cast one side to text")
    return Value(fn("CONCAT", as_text(left).tree, as_text(right).tree), t.TEXT)


def _of_arrays(left: Value, right: Value) -> Value:
    """Next to an array, a literal or NULL without a type is also an array; anything else is an element."""
    if left.type.element is None and left.type.name != "unknown":
        return call("array_prepend", [left, right])
    if right.type.element is None and right.type.name != "unknown":
        return call("array_append", [left, right])
    return arrays.concatenate(left, right)


def bits(self: Expressions, node: exp.Binary) -> Value:
    """`& | #`, and shifts."""
    left, right = self.translate(node.this), self.translate(node.expression)
    if not left.type.is_integer or not right.type.is_integer:
        raise RefusalError(f"bits of {left.type} and {right.type}")
    if isinstance(node, exp.BitwiseLeftShift | exp.BitwiseRightShift):
        name = "SHIFTLEFT" if isinstance(node, exp.BitwiseLeftShift) else "SHIFTRIGHT"
        return _shifted(name, left, coerce(right, t.INTEGER))
    (a, b), type_ = unify([left, right])
    sign = {exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^"}[type(node)]
    return Value(op(a.tree, sign, b.tree), type_)


def _shifted(name: str, x: Value, by: Value) -> Value:
    shifted: Node = fn(name, x.tree, by.tree)
    if x.type != t.SMALLINT:
        return Value(shifted, x.type)
    kept = fn("SHIFTRIGHT", fn("SHIFTLEFT", shifted, 16), 16)  # Spark returns an INT: cut it to 16 bits
    return Value(cast(kept, t.SMALLINT), t.SMALLINT)


def complement(self: Expressions, node: exp.BitwiseNot) -> Value:
    """`~ x`."""
    value = self.translate(node.this)
    if not value.type.is_integer:
        raise RefusalError(f"~ {value.type}")
    return Value(bitwise_not(value.tree), value.type)
