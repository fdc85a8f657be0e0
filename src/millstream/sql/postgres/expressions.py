"""Scalar expressions: one rule for each kind of node; all other kinds are refused.

A rule may raise a refusal without a position; `translate` adds the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from sqlglot import exp

from millstream.sql.postgres import call_rules, comparisons, nested_rules, operators, scalar_rules, subquery_tests
from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce
from millstream.sql.postgres.functions import call
from millstream.sql.postgres.literals import unknown_literal
from millstream.sql.postgres.names import Item, Output, Scope
from millstream.sql.postgres.refusals import RefusalError, refused, wrong
from millstream.sql.postgres.spark_builders import FALSE, TRUE, Node, and_, or_, struct
from millstream.sql.postgres.typed_expressions import NULL_VALUE, Value


class Queries(Protocol):
    """What expressions need from the translator of queries."""

    sql: str
    notices: list[str]

    def subquery(self, node: exp.Expr, outer: Scope) -> tuple[exp.Query, tuple[Output, ...]]:
        """A query inside an expression, translated to Spark, and its columns."""


class Expressions:
    """Translates the expressions of one SELECT.

    Args:
        windows: the definitions of its WINDOW clause.
    """

    def __init__(self, queries: Queries, scope: Scope, windows: dict[str, exp.Window] | None = None) -> None:
        self.queries = queries
        self.scope = scope
        self.windows = windows or {}

    @property
    def visible(self) -> Scope:
        """The scope whose columns `*` stands for."""
        return self.scope

    def listed(self, value: Value, _: exp.Expr) -> Value:
        """A column that `*` stands for, as an item of the select list."""
        return value

    def translate(self, node: exp.Expr) -> Value:
        """An expression, translated to Spark, with its type.

        Raises:
            MillstreamError: UNSUPPORTED_SQL, UNKNOWN_COLUMN, QUERY_INVALID.
        """
        entry = _RULES.get(type(node))
        if entry is None:
            raise refused(_named(node), node, self.queries.sql)
        rule, known = entry
        for name, value in node.args.items():
            if name not in known and value not in (None, False, [], ""):
                raise refused(f"{name.strip('_').upper()} of {_named(node)}", node, self.queries.sql)
        try:
            return rule(self, node)
        except RefusalError as e:
            raise refused(e.what, node, self.queries.sql, e.hint) from e

    def scalar(self, node: exp.Expr) -> Value:
        """An expression that can be a column's value: not an interval, not a row."""
        value = self.translate(node)
        if value.interval is not None:
            hint = "use EXTRACT(EPOCH FROM ...) to get a number: Delta tables cannot hold intervals"
            raise refused("an interval as a column", node, self.queries.sql, hint)
        if value.items:
            fields = [(f"f{i + 1}", v) for i, v in enumerate(value.items)]
            types = tuple((field, v.type) for field, v in fields)
            return Value(struct((field, v.tree) for field, v in fields), t.Type("record", fields=types))
        return value

    def condition(self, node: exp.Expr, *, is_conjunct: bool = True) -> Node:
        """A condition of WHERE, HAVING or ON, where NULL counts as false.

        Args:
            is_conjunct: it is not under an OR.
        """
        if isinstance(node, exp.And):
            return and_(*(self.condition(n, is_conjunct=is_conjunct) for n in (node.this, node.expression)))
        if isinstance(node, exp.Or):
            return or_(*(self.condition(n, is_conjunct=False) for n in (node.this, node.expression)))
        if isinstance(node, exp.Paren):
            return self.condition(node.this, is_conjunct=is_conjunct)
        found = subquery_tests.filtering_subquery(self, node, is_conjunct=is_conjunct)
        if found is not None:
            return found
        return self.boolean(node)

    def boolean(self, node: exp.Expr) -> Node:
        """An expression that must be a boolean."""
        value = self.translate(node)
        try:
            return coerce(value, t.BOOLEAN).tree
        except RefusalError as e:
            raise wrong(f"{value.type} where a condition is needed", node, self.queries.sql) from e

    def refuse_twin(self, name: str, items: Iterable[Item]) -> None:
        """Refuse a column if another column of its table has the same name in another case."""
        if any(item.has_twin(name) for item in items):
            hint = "rename one of them, or read a view that does"
            raise RefusalError(f"the column {name} next to one whose name differs only in case", hint)


def _named(node: exp.Expr) -> str:
    text = node.sql(dialect="postgres", comments=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


_TWO = {"this", "expression"}
_RULES: dict[type[exp.Expr], tuple[Callable[..., Value], set[str]]] = {
    exp.Column: (scalar_rules.column, {"this", "table", "db", "catalog"}),
    exp.Literal: (scalar_rules.literal, {"this", "is_string"}),
    exp.ByteString: (scalar_rules.escape_string, {"this"}),
    exp.RawString: (lambda _, n: unknown_literal(n.this), {"this"}),
    exp.National: (lambda _, n: unknown_literal(n.this), {"this"}),
    exp.Null: (lambda _, n: NULL_VALUE, set()),
    exp.Boolean: (lambda _, n: Value(TRUE if n.this else FALSE, t.BOOLEAN), {"this"}),
    exp.Interval: (scalar_rules.interval, {"this", "unit"}),
    exp.Pow: (scalar_rules.power, _TWO),
    exp.DPipe: (operators.concatenation, {*_TWO, "safe"}),
    exp.BitwiseNot: (operators.complement, {"this"}),
    exp.Neg: (scalar_rules.negation, {"this"}),
    exp.And: (scalar_rules.logic, _TWO),
    exp.Or: (scalar_rules.logic, _TWO),
    exp.Not: (scalar_rules.negated, {"this"}),
    exp.Paren: (scalar_rules.paren, {"this"}),
    exp.Tuple: (scalar_rules.row, {"expressions"}),
    exp.Case: (scalar_rules.case, {"this", "ifs", "default"}),
    exp.Cast: (scalar_rules.cast_to, {"this", "to"}),
    exp.Collate: (scalar_rules.collate, _TWO),
    exp.Anonymous: (call_rules.function, {"this", "expressions"}),
    exp.Dot: (call_rules.qualified_function, _TWO),
    exp.GroupConcat: (call_rules.aggregate, {"this", "separator"}),
    exp.JSONObjectAgg: (call_rules.aggregate, {"expressions", "null_handling", "return_type"}),
    exp.JSONArrayAgg: (call_rules.aggregate, {"this", "null_handling", "return_type"}),
    exp.Filter: (call_rules.aggregate, _TWO),
    exp.WithinGroup: (call_rules.aggregate, _TWO),
    exp.Window: (call_rules.aggregate, {"this", "partition_by", "order", "spec", "alias", "over", "first"}),
    exp.Extract: (call_rules.extract, _TWO),
    exp.AtTimeZone: (call_rules.at_time_zone, {"this", "zone"}),
    exp.Trim: (call_rules.trim, {"this", "expression", "position"}),
    exp.Substring: (call_rules.substring, {"this", "start", "length"}),
    exp.StrPosition: (call_rules.position, {"this", "substr"}),
    exp.Overlay: (call_rules.overlay, {"this", "expression", "from_", "for_"}),
    exp.Array: (nested_rules.array, {"expressions", "value_constructor"}),
    exp.Bracket: (nested_rules.subscript, {"this", "expressions", "offset"}),
    exp.StartsWith: (lambda self, n: call("starts_with", [self.translate(n.this), self.translate(n.expression)]), _TWO),
    exp.Sqrt: (lambda self, n: call("sqrt", [self.translate(n.this)]), {"this"}),
    exp.Cbrt: (lambda self, n: call("cbrt", [self.translate(n.this)]), {"this"}),
    exp.ArrayOverlaps: (nested_rules.overlaps, {*_TWO, "null_safe"}),
    exp.ArrayContainsAll: (nested_rules.contains, _TWO),
    exp.ArrayContainedBy: (nested_rules.contains, _TWO),
    exp.JSONExtract: (nested_rules.json_arrow, {*_TWO, "only_json_types"}),
    exp.JSONExtractScalar: (nested_rules.json_arrow, {*_TWO, "only_json_types"}),
    exp.JSONBExtract: (nested_rules.json_path, _TWO),
    exp.JSONBExtractScalar: (nested_rules.json_path, _TWO),
    exp.JSONBContainsTopKey: (nested_rules.json_key, _TWO),
    exp.JSONBContainsAnyTopKeys: (nested_rules.json_key, _TWO),
    exp.JSONBContainsAllTopKeys: (nested_rules.json_key, _TWO),
    exp.JSONObject: (nested_rules.json_object, {"expressions", "null_handling", "return_type"}),
    exp.JSONArray: (nested_rules.json_array, {"expressions", "null_handling", "return_type"}),
    exp.Subquery: (nested_rules.scalar_subquery, {"this"}),
    exp.Exists: (nested_rules.exists, {"this"}),
    **{kind: (scalar_rules.arithmetical, {*_TWO, "typed", "safe"}) for kind in scalar_rules.OPERATORS},
    **{kind: (call_rules.current, {"this"}) for kind in call_rules.CURRENT},
    **dict.fromkeys(
        (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift),
        (operators.bits, _TWO),
    ),
    **{kind: (comparisons.rule_of(kind), known) for kind, known in comparisons.KINDS.items()},
}
