"""Comparisons, patterns, BETWEEN, IN, IS, and `op ANY | ALL (array or subquery)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from millstream.sql.parse import bare_query
from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce, compared, unify
from millstream.sql.postgres.functions import json as json_functions
from millstream.sql.postgres.functions.arrays import quantified
from millstream.sql.postgres.patterns import similar_to_java, to_java
from millstream.sql.postgres.refusals import RefusalError, refuse_comparison, refused, wrong
from millstream.sql.postgres.values import Value, text_literal

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_NEGATED = {"negate"}
SUB, COLUMN = "__ms_q", "__ms_v"
"""A subquery that is put into another one, and its column: names no table or column of the user's has."""


def compare(operator: str, left: Value, right: Value) -> Value:
    """`left operator right`."""
    if left.items or right.items:
        return _rows(operator, left, right)
    if t.INTERVAL in (left.type, right.type):
        one, two = (coerce(v, t.INTERVAL).interval for v in (left, right))
        assert one is not None
        assert two is not None
        return Value(f"({one.span} {operator} {two.span})", t.BOOLEAN)
    if left.type.is_integer and right.type.is_integer:  # both compare these by value
        return Value(f"({left.sql} {operator} {right.sql})", t.BOOLEAN)
    (a, b), type_ = compared(left, right)
    refuse_comparison(type_)
    if type_.name == "record" or type_.name not in t.KNOWN:
        raise RefusalError(f"a comparison of {type_}")
    _refuse_order(operator, type_)
    if type_.element is not None and operator not in {"=", "<>"}:
        raise RefusalError(f"{type_} {operator} {type_}", "Spark sorts NULLs inside of arrays before other elements")
    return Value(f"({a.sql} {operator} {b.sql})", t.BOOLEAN)


def _refuse_order(operator: str, type_: t.Type) -> None:
    if type_.name == "enum" and operator not in {"=", "<>"}:
        raise RefusalError(f"{type_} {operator} {type_}", "an enum is ordered as it was declared: use CASE, or ::text")


def _rows(operator: str, left: Value, right: Value) -> Value:
    if len(left.items) != len(right.items):
        raise RefusalError("a comparison of rows of different lengths")
    pairs = list(zip(left.items, right.items, strict=True))
    if operator in {"=", "<>"}:
        word = " AND " if operator == "=" else " OR "
        return Value(f"({word.join(compare(operator, a, b).sql for a, b in pairs)})", t.BOOLEAN)
    strict = operator[0]
    branches = []
    for i, (a, b) in enumerate(pairs):
        last = operator if i == len(pairs) - 1 else strict
        equal = [compare("=", x, y).sql for x, y in pairs[:i]]
        branches.append("(" + " AND ".join([*equal, compare(last, a, b).sql]) + ")")
    return Value(f"({' OR '.join(branches)})", t.BOOLEAN)


def _comparison(self: Expressions, node: exp.Binary) -> Value:
    found = _quantifier(node)
    if found is None:
        return compare(_OPERATORS[type(node)], self.translate(node.this), self.translate(node.expression))
    left, operator = self.translate(node.this), _OPERATORS[type(node)]
    operand, every = found
    if isinstance(operand, exp.Query):
        return _three_valued(self, operator, left, operand, every)
    refuse_comparison(left.type)
    _refuse_order(operator, left.type)
    return quantified(operator, left, self.translate(operand), every=every)


def _distinct(self: Expressions, node: exp.Binary) -> Value:
    left, right = self.translate(node.this), self.translate(node.expression)
    if left.items or right.items or t.INTERVAL in (left.type, right.type):
        raise RefusalError("IS DISTINCT FROM of rows or intervals")
    (a, b), type_ = compared(left, right)
    refuse_comparison(type_)
    same = f"({a.sql} <=> {b.sql})"
    return Value(same if isinstance(node, exp.NullSafeEQ) else f"(NOT {same})", t.BOOLEAN)


def _between(self: Expressions, node: exp.Between) -> Value:
    value, low, high = (self.translate(node.args[k]) for k in ("this", "low", "high"))

    def within(a: Value, b: Value) -> str:
        return f"({compare('>=', value, a).sql} AND {compare('<=', value, b).sql})"

    test = within(low, high)
    if node.args.get("symmetric"):
        test = f"({test} OR {within(high, low)})"
    return _maybe_not(node, test)


def _in(self: Expressions, node: exp.In) -> Value:
    left = self.translate(node.this)
    query = node.args.get("query")
    if query is not None:
        return _maybe_not(node, _in_value(self, left, bare_query(query)))
    values = [self.translate(e) for e in node.expressions]
    types = {v.type for v in (left, *values)}
    if left.items or t.INTERVAL in types:
        return _maybe_not(node, _any_equal(left, values))
    if t.REAL in types and len(types) > 1:
        return _maybe_not(node, _among_reals(left, list(zip(node.expressions, values, strict=True))))
    items, type_ = unify([left, *values])
    refuse_comparison(type_)
    return _maybe_not(node, f"({items[0].sql} IN ({', '.join(v.sql for v in items[1:])}))")


def _any_equal(left: Value, values: list[Value]) -> str:
    return f"({' OR '.join(compare('=', left, v).sql for v in values)})"


def _among_reals(left: Value, values: list[tuple[exp.Expr, Value]]) -> str:
    """Several constants are an array of the type they have in common with the left side; others stand for themselves.

    So a real is IN (0.1, 0.2), where it can be neither = 0.1 nor = 0.2.
    """
    constants = [v for node, v in values if node.find(exp.Column, exp.Query) is None]
    if len(constants) < 2:
        return _any_equal(left, [v for _, v in values])
    others = [v for node, v in values if node.find(exp.Column, exp.Query) is not None]
    (_, *items), type_ = unify([left, *constants])
    (one, _), common = compared(left, Value("", type_))
    found = f"({one.sql} IN ({', '.join(coerce(i, common).sql for i in items)}))"
    return f"({found} OR {_any_equal(left, others)})" if others else found


def _in_query(self: Expressions, left: Value, query: exp.Expr, negated: bool = False) -> str:
    text, columns = self.queries.subquery(query, self.scope)
    operands = left.items or (left,)
    if len(columns) != len(operands):
        raise wrong(f"IN compares {len(operands)} with {len(columns)} columns", query, self.queries.sql)
    lefts, casts = [], []
    for i, (operand, column) in enumerate(zip(operands, columns, strict=True)):
        (a, b), type_ = compared(operand, Value(f"__ms_c{i}", column.type))
        refuse_comparison(type_)
        lefts.append(a.sql)
        casts.append(b.sql)
    names = [f"__ms_c{i}" for i in range(len(columns))]
    if casts != names:
        items = ", ".join(f"{c} AS {n}" for c, n in zip(casts, names, strict=True))
        text = f"SELECT {items} FROM ({text}) AS {SUB}({', '.join(names)})"
    shown = lefts[0] if len(lefts) == 1 else f"({', '.join(lefts)})"
    return f"({shown} {'NOT IN' if negated else 'IN'} ({text}))"


def _in_value(self: Expressions, left: Value, query: exp.Expr) -> str:
    """IN as a value: Spark's is never unknown there."""
    if left.items:
        raise RefusalError("(a, b) IN (SELECT ...) as a value", "use EXISTS, or put it into WHERE")
    found = _in_query(self, left, query)
    text, _ = self.queries.subquery(query, self.scope)
    counted = f"FROM ({text}) AS {SUB}({COLUMN})"
    nulls = f"(SELECT COUNT(*) - COUNT({COLUMN}) {counted})"
    unknown = f"(SELECT COUNT(*) {counted}) > 0 AND ({left.sql} IS NULL OR {nulls} > 0)"
    return f"CASE WHEN {found} THEN TRUE WHEN {unknown} THEN NULL ELSE FALSE END"


def _is(self: Expressions, node: exp.Is) -> Value:
    value = self.translate(node.this)
    if value.items:
        raise RefusalError("IS of a row", "ask for each of its columns")
    if isinstance(node.expression, exp.JSON):
        kind = str(node.expression.args.get("this") or "")
        text = value if value.type.is_json else coerce(value, t.TEXT)
        return _maybe_not(node, json_functions.is_json(text, kind, unique=bool(node.expression.args.get("with_"))))
    if isinstance(node.expression, exp.Null):
        if value.interval is not None:
            return _maybe_not(node, f"({value.interval.span} IS NULL)")
        return _maybe_not(node, f"({value.sql} IS NULL)")
    if not isinstance(node.expression, exp.Boolean):
        raise RefusalError(f"IS {node.expression.sql(dialect='postgres')}")
    word = "TRUE" if node.expression.this else "FALSE"
    return _maybe_not(node, f"({coerce(value, t.BOOLEAN).sql} IS {word})")


def _maybe_not(node: exp.Expr, test: str) -> Value:
    return Value(f"(NOT {test})" if node.args.get("negate") else test, t.BOOLEAN)


# Patterns


def _like(self: Expressions, node: exp.Binary, escape: str = "\\") -> Value:
    word = "ILIKE" if isinstance(node, exp.ILike) else "LIKE"
    text = coerce(self.translate(node.this), t.TEXT)
    found = _quantifier(node)
    if found is not None:
        operand, every = found
        if isinstance(operand, exp.Query):
            raise RefusalError(f"{word} ANY (SELECT ...)", "use EXISTS")
        operator = f"NOT {word}" if node.args.get("negate") else word  # of each pattern, not of the whole test
        return quantified(operator, text, self.translate(operand), every=every)
    pattern = coerce(self.translate(node.expression), t.TEXT)
    if isinstance(pattern.constant, str):
        return _maybe_not(node, f"({text.sql} {word} {text_literal(_like_pattern(pattern.constant, escape))})")
    if escape != "\\":
        raise RefusalError(f"{word} ... ESCAPE with a pattern that is not a constant")
    return _maybe_not(node, f"({text.sql} {word} {pattern.sql})")


def _like_pattern(pattern: str, escape: str) -> str:
    """With backslashes, before wildcards only: Spark refuses them before other characters."""
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


def _escape(self: Expressions, node: exp.Escape) -> Value:
    character = node.expression.name if isinstance(node.expression, exp.Literal) else None
    if character is None or len(character) > 1 or not isinstance(node.this, exp.Like | exp.ILike):
        raise RefusalError("this ESCAPE")
    return _like(self, node.this, character)


def _regexp(self: Expressions, node: exp.Binary) -> Value:
    text, pattern = self.translate(node.this), self.translate(node.expression)
    if not isinstance(pattern.constant, str):
        raise RefusalError("a regular expression that is not a constant")
    java = to_java(pattern.constant, ignore_case=isinstance(node, exp.RegexpILike))
    return _maybe_not(node, f"({coerce(text, t.TEXT).sql} RLIKE {text_literal(java)})")


def _similar(self: Expressions, node: exp.SimilarTo) -> Value:
    text, pattern = self.translate(node.this), self.translate(node.expression)
    if not isinstance(pattern.constant, str):
        raise RefusalError("SIMILAR TO a pattern that is not a constant")
    return _maybe_not(node, f"({coerce(text, t.TEXT).sql} RLIKE {text_literal(similar_to_java(pattern.constant))})")


# Quantifiers


def _quantifier(node: exp.Expr) -> tuple[exp.Expr, bool] | None:
    """The operand of ANY or ALL on the right side, and whether it is ALL."""
    right = node.args.get("expression")
    if isinstance(right, exp.Any | exp.All):
        operand = bare_query(right.this.unnest() if isinstance(right.this, exp.Paren) else right.this)
        return operand, isinstance(right, exp.All)
    if isinstance(right, exp.Anonymous) and str(right.this).upper() in {"ALL", "SOME", "ANY"} and right.expressions:
        operand = right.expressions[0]
        return bare_query(operand), str(right.this).upper() == "ALL"
    return None


def filtering_subquery(self: Expressions, node: exp.Expr, *, is_conjunct: bool) -> str | None:
    """`x IN (SELECT ...)` and `x op ANY | ALL (SELECT ...)` where unknown is as good as false: IN, EXISTS and their
    negations. None for everything else.
    """
    try:
        return _filtering_in(self, node, is_conjunct) or _filtering_quantifier(self, node, is_conjunct)
    except RefusalError as e:
        raise refused(e.what, node, self.queries.sql, e.hint) from e


def _filtering_in(self: Expressions, node: exp.Expr, is_conjunct: bool) -> str | None:
    """Under an OR, Spark takes a NOT IN for the negation of a test that is never unknown."""
    negated = isinstance(node, exp.Not)
    inner = node.this.unnest() if negated else node
    if not isinstance(inner, exp.In) or inner.args.get("query") is None or (negated and not is_conjunct):
        return None
    if inner.args.get("negate"):
        return None
    query = inner.args["query"]
    left = self.translate(inner.this)
    return _in_query(self, left, bare_query(query), negated=negated)


def _filtering_quantifier(self: Expressions, node: exp.Expr, is_conjunct: bool) -> str | None:
    found = _quantifier(node) if type(node) in _OPERATORS else None
    if found is None or not isinstance(found[0], exp.Query):
        return None
    left, operator, (query, every) = self.translate(node.this), _OPERATORS[type(node)], found
    if (operator, every) == ("<>", True) and not is_conjunct:
        return None
    if (operator, every) in {("=", False), ("<>", True)}:
        return _in_query(self, left, query, negated=every)
    text, columns = self.queries.subquery(query, self.scope)
    test = compare(operator, left, Value(f"{SUB}.{COLUMN}", columns[0].type)).sql
    source = f"SELECT 1 FROM ({text}) AS {SUB}({COLUMN})"
    return f"(NOT EXISTS ({source} WHERE {test} IS NOT TRUE))" if every else f"(EXISTS ({source} WHERE {test}))"


_EXTREMES = {
    ("<", False): ("MAX",),
    ("<=", False): ("MAX",),
    (">", False): ("MIN",),
    (">=", False): ("MIN",),
    ("<>", False): ("MIN", "MAX"),
    ("<", True): ("MIN",),
    ("<=", True): ("MIN",),
    (">", True): ("MAX",),
    (">=", True): ("MAX",),
    ("=", True): ("MIN", "MAX"),
}


def _three_valued(self: Expressions, operator: str, left: Value, query: exp.Expr, every: bool) -> Value:
    """The same anywhere else: by the least and the greatest value, and by how many are NULL."""
    if (operator, every) in {("=", False), ("<>", True)}:
        test = _in_value(self, left, query)
        return Value(f"(NOT {test})" if every else test, t.BOOLEAN)
    text, columns = self.queries.subquery(query, self.scope)
    if len(columns) != 1:
        raise wrong("ANY and ALL take a subquery of one column", query, self.queries.sql)

    def ask(what: str) -> str:
        return f"(SELECT {what} FROM ({text}) AS {SUB}({COLUMN}))"

    tests = [
        compare(operator, left, Value(ask(f"{name}({COLUMN})"), columns[0].type)).sql
        for name in _EXTREMES[operator, every]
    ]
    test = f"({(' AND ' if every else ' OR ').join(tests)})"
    count, nulls = ask("COUNT(*)"), ask(f"COUNT(*) - COUNT({COLUMN})")
    unknown = f"{left.sql} IS NULL OR {nulls} > 0"
    if every:
        branches = f"WHEN {count} = 0 THEN TRUE WHEN NOT {test} THEN FALSE WHEN {unknown} THEN NULL ELSE TRUE"
    else:
        branches = f"WHEN {count} = 0 THEN FALSE WHEN {test} THEN TRUE WHEN {unknown} THEN NULL ELSE FALSE"
    return Value(f"CASE {branches} END", t.BOOLEAN)


_TWO = {"this", "expression"}
_BY_KIND: dict[type[exp.Expr], tuple[Callable[..., Value], set[str]]] = {
    **dict.fromkeys(_OPERATORS, (_comparison, _TWO)),
    exp.NullSafeEQ: (_distinct, _TWO),
    exp.NullSafeNEQ: (_distinct, _TWO),
    exp.Between: (_between, {"this", "low", "high", "symmetric", *_NEGATED}),
    exp.In: (_in, {"this", "expressions", "query", *_NEGATED}),
    exp.Is: (_is, {*_TWO, *_NEGATED}),
    exp.Like: (_like, {*_TWO, *_NEGATED}),
    exp.ILike: (_like, {*_TWO, *_NEGATED}),
    exp.Escape: (_escape, _TWO),
    exp.RegexpLike: (_regexp, {*_TWO, *_NEGATED}),
    exp.RegexpILike: (_regexp, {*_TWO, *_NEGATED}),
    exp.SimilarTo: (_similar, {*_TWO, *_NEGATED}),
}
KINDS = {kind: known for kind, (_, known) in _BY_KIND.items()}


def rule_of(kind: type[exp.Expr]) -> Callable[[Any, Any], Value]:
    """The rule for a kind of comparison."""
    return _BY_KIND[kind][0]
