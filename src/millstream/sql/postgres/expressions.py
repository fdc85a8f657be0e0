"""Scalar expressions: one rule for each kind of node, and no other kind.

A rule may leave a refusal without a place; `translate` adds the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from sqlglot import exp

from millstream.errors import Code
from millstream.naming import quote
from millstream.sql.postgres import aggregates, comparisons, operators
from millstream.sql.postgres import types as t
from millstream.sql.postgres.arithmetic import binary, negate
from millstream.sql.postgres.casts import coerce, convert, shorten, type_named, unify
from millstream.sql.postgres.conditionals import CONDITIONALS
from millstream.sql.postgres.constants import parse_interval
from millstream.sql.postgres.functions import arrays, call
from millstream.sql.postgres.functions import json as json_functions
from millstream.sql.postgres.functions.dates import at_time_zone, extract, make_interval
from millstream.sql.postgres.functions.numbers import power
from millstream.sql.postgres.functions.strings import overlay, substring, trimmed
from millstream.sql.postgres.names import Item, Output, Scope, folded
from millstream.sql.postgres.refusals import RefusalError, refused, wrong
from millstream.sql.postgres.values import NULL, Value, cast, interval, number_literal, unknown_literal


class Queries(Protocol):
    """What expressions need of the translator of queries."""

    sql: str
    notices: list[str]

    def subquery(self, node: exp.Expr, outer: Scope) -> tuple[str, tuple[Output, ...]]:
        """A query inside of an expression, as Spark's text, and its columns."""


class Expressions:
    """Translates the expressions of one SELECT.

    Args:
        windows: the definitions of its WINDOW clause.
        aliases: what a name in ORDER BY or GROUP BY may mean besides a column.
    """

    def __init__(self, queries: Queries, scope: Scope, windows: dict[str, exp.Window] | None = None) -> None:
        self.queries = queries
        self.scope = scope
        self.windows = windows or {}

    @property
    def visible(self) -> Scope:
        """Whose columns `*` means."""
        return self.scope

    def listed(self, value: Value, _: exp.Expr) -> Value:
        """A column that `*` means, as the select list has it."""
        return value

    def translate(self, node: exp.Expr) -> Value:
        """An expression as a fragment of Spark's SQL.

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
        """An expression that is a column's value: no interval, no row."""
        value = self.translate(node)
        if value.interval is not None:
            hint = "use EXTRACT(EPOCH FROM ...) to get a number: Delta tables cannot hold intervals"
            raise refused("an interval as a column", node, self.queries.sql, hint)
        if value.items:
            fields = ", ".join(f"'f{i + 1}', {v.sql}" for i, v in enumerate(value.items))
            types = tuple((f"f{i + 1}", v.type) for i, v in enumerate(value.items))
            return Value(f"NAMED_STRUCT({fields})", t.Type("record", fields=types))
        return value

    def condition(self, node: exp.Expr, *, is_conjunct: bool = True) -> str:
        """A condition of WHERE, HAVING or ON, where unknown is as good as false.

        Args:
            is_conjunct: it is not under an OR.
        """
        if isinstance(node, exp.And):
            parts = (self.condition(n, is_conjunct=is_conjunct) for n in (node.this, node.expression))
            return f"({' AND '.join(parts)})"
        if isinstance(node, exp.Or):
            return f"({' OR '.join(self.condition(n, is_conjunct=False) for n in (node.this, node.expression))})"
        if isinstance(node, exp.Paren):
            return self.condition(node.this, is_conjunct=is_conjunct)
        found = comparisons.filtering_subquery(self, node, is_conjunct=is_conjunct)
        if found is not None:
            return found
        return self.boolean(node)

    def boolean(self, node: exp.Expr) -> str:
        """An expression that must be a boolean."""
        value = self.translate(node)
        try:
            return coerce(value, t.BOOLEAN).sql
        except RefusalError as e:
            raise wrong(f"{value.type} where a condition is needed", node, self.queries.sql) from e

    # Names and literals

    def column(self, node: exp.Column) -> Value:
        """A column of this query or of one around it."""
        if isinstance(node.this, exp.Star):
            raise RefusalError("* in this place")
        name, table = folded(node.this), folded(node.args.get("table")) or None
        path = [folded(part) for part in node.parts[:-2]]
        scope: Scope | None = self.scope
        passed: list[Scope] = []
        while scope is not None:
            if table is None:
                found = [value for column, value in scope.unqualified() if column == name]
            else:
                found = [item.value(column) for item, column in scope.candidates(name, table, path)]
            if len(found) > 1:
                raise wrong(f"the column {name} is ambiguous", node, self.queries.sql, hint="qualify it by its table")
            if found:
                self.refuse_twin(name, [i for i in scope.items if table in (None, i.name)])
                for inner in passed:
                    inner.is_correlated = True
                return found[0]
            whole = self._whole_item(name, scope) if table is None else None
            if whole is not None:
                return whole
            passed.append(scope)
            scope = scope.outer
        shown = ".".join((*path, table, name)) if table else name
        raise wrong(f"there is no column {shown}", node, self.queries.sql, Code.UNKNOWN_COLUMN)

    def refuse_twin(self, name: str, items: Iterable[Item]) -> None:
        """Refuse a column whose name another one of its table has in another case."""
        if any(item.has_twin(name) for item in items):
            hint = "rename one of them, or read a view that does"
            raise RefusalError(f"the column {name} beside one whose name differs only by case", hint)

    def _whole_item(self, name: str, scope: Scope) -> Value | None:
        item = next((i for i in scope.items if i.name == name), None)
        if item is None:
            return None
        if item.is_scalar and len(item.columns) == 1:
            return item.value(item.columns[0])
        raise RefusalError(f"the whole row {name}", "name its columns")

    def literal(self, node: exp.Literal) -> Value:
        """A string or a number."""
        if node.is_string:
            return unknown_literal(node.this)
        found = number_literal(node.this)
        if found is None:
            raise RefusalError(f"the number {node.this}", "Spark's DECIMAL has 38 digits")
        return found

    def escape_string(self, node: exp.ByteString) -> Value:
        """E'...': the tokenizer has read the escapes it knows."""
        if "\\" in node.this:
            raise RefusalError("an escape string with such escapes", "write the character itself")
        return unknown_literal(node.this)

    def interval(self, node: exp.Interval) -> Value:
        """INTERVAL '...' [unit]."""
        if not isinstance(node.this, exp.Literal):
            raise RefusalError("an interval that is not a literal", "multiply: n * interval '1 day'")
        unit = node.args.get("unit")
        if unit is not None and not isinstance(unit, exp.Var):
            raise RefusalError(f"INTERVAL ... {unit.sql(dialect='postgres')}", "write the unit into the string")
        months, days, micros = parse_interval(node.this.name, unit.name if unit is not None else None)
        return interval(str(months), str(days), str(micros))

    # Operators

    def arithmetic(self, node: exp.Binary) -> Value:
        """`+ - * / %`."""
        left, right = self.translate(node.this), self.translate(node.expression)
        operator = _ARITHMETIC[type(node)]
        if operator == "-" and left.type.name == "jsonb":
            raise RefusalError("jsonb - ...", "select the keys you want instead")
        return binary(operator, left, right)

    def power(self, node: exp.Pow) -> Value:
        """`^`."""
        left, right = self.translate(node.this), self.translate(node.expression)
        return power(left, right)

    def negation(self, node: exp.Neg) -> Value:
        """`- x`."""
        return negate(self.translate(node.this))

    def logic(self, node: exp.Connector) -> Value:
        """AND, OR."""
        word = "AND" if isinstance(node, exp.And) else "OR"
        return Value(f"({self.boolean(node.this)} {word} {self.boolean(node.expression)})", t.BOOLEAN)

    def not_(self, node: exp.Not) -> Value:
        """NOT."""
        return Value(f"(NOT {self.boolean(node.this)})", t.BOOLEAN)

    def paren(self, node: exp.Paren) -> Value:
        """(...)."""
        return self.translate(node.this)

    def row(self, node: exp.Tuple) -> Value:
        """(a, b): only compared, or put into a column as a composite value."""
        items = tuple(self.translate(e) for e in node.expressions)
        return Value("", t.Type("record"), items=items)

    # Conditional expressions

    def case(self, node: exp.Case) -> Value:
        """CASE, searched or simple."""
        conditions = []
        for branch in node.args["ifs"]:
            if node.this is None:
                conditions.append(self.boolean(branch.this))
            else:
                test = comparisons.compare("=", self.translate(node.this), self.translate(branch.this))
                conditions.append(test.sql)
        results = [self.translate(b.args["true"]) for b in node.args["ifs"]]
        default = node.args.get("default")
        results.append(self.translate(default) if default is not None else NULL)
        values, type_ = unify(results)
        whens = " ".join(f"WHEN {c} THEN {v.sql}" for c, v in zip(conditions, values, strict=False))
        return Value(f"CASE {whens} ELSE {values[-1].sql} END", type_)

    def cast(self, node: exp.Cast) -> Value:
        """`x::type`."""
        target = type_named(node.to)
        if target.element is not None and isinstance(node.this, exp.Array) and not node.this.expressions:
            return Value(cast("ARRAY()", target), target)
        value = self.translate(node.this)
        if target == t.JSONB and value.type in (t.TEXT, t.JSON) and not isinstance(value.constant, str):
            note = f"a {value.type} cast to jsonb is taken as it is: keys are not sorted, equal keys not removed"
            if note not in self.queries.notices:
                self.queries.notices.append(note)
            if value.type == t.JSON and _is_looked_into(node):
                return value.of(t.JSONB)
        result = convert(value, target)
        sizes = [int(p.name) for p in node.to.expressions if isinstance(p, exp.DataTypeParam)]
        if node.to.this is exp.DType.VARCHAR and sizes:
            return shorten(result, sizes[0])
        return result

    def collate(self, node: exp.Collate) -> Value:
        """COLLATE "C", which is how Spark compares anyway."""
        name = node.expression.name
        if name not in {"C", "POSIX", "ucs_basic", "default"}:
            raise RefusalError(f'COLLATE "{name}"', 'texts are compared by their bytes, as COLLATE "C" does')
        return self.translate(node.this)

    # Calls

    def function(self, node: exp.Anonymous) -> Value:
        """A call by name."""
        name = folded(node.this) if isinstance(node.this, exp.Identifier) else str(node.this).lower()
        if aggregates.is_aggregate(name):
            return self.aggregate(node)
        if name == "make_interval":
            named = {
                a.this.name.lower(): self.translate(a.expression) for a in node.expressions if isinstance(a, exp.Kwarg)
            }
            return make_interval([self.translate(a) for a in node.expressions if not isinstance(a, exp.Kwarg)], named)
        if name == "row":
            return self.row(exp.Tuple(expressions=node.expressions))
        if name == "grouping":
            return self._grouping(node)
        args = [self.translate(a) for a in node.expressions]
        if name in CONDITIONALS:
            return CONDITIONALS[name](args)
        if name in json_functions.BUILDERS:
            return json_functions.BUILDERS[name](args)
        return call(name, args)

    def _grouping(self, node: exp.Anonymous) -> Value:
        args = [self.translate(a).sql for a in node.expressions]
        if len(args) == 1:
            return Value(f"CAST(GROUPING({args[0]}) AS INT)", t.INTEGER)
        bits = [f"CAST(GROUPING({a}) AS INT) * {2 ** (len(args) - 1 - i)}" for i, a in enumerate(args)]
        return Value(f"({' + '.join(bits)})", t.INTEGER)

    def qualified_function(self, node: exp.Dot) -> Value:
        """pg_catalog.f(x), or a field of a composite value."""
        if isinstance(node.expression, exp.Anonymous):
            if folded(node.this) != "pg_catalog":
                raise RefusalError(f"the function {node.sql(dialect='postgres')}")
            return self.translate(node.expression)
        value = self.translate(node.this)
        name = folded(node.expression)
        found = next((type_ for n, type_ in value.type.fields if n.lower() == name), None)
        if found is None:
            raise RefusalError(f"the field {name} of {value.type}")
        return Value(f"{value.sql}.{quote(name)}", found)

    def aggregate(self, node: exp.Expr) -> Value:
        """An aggregate or window function, with whatever clauses it has."""
        return aggregates.translate(self, aggregates.read(self, node))

    def current(self, node: exp.Expr) -> Value:
        """CURRENT_DATE and its kin."""
        if node.args.get("this") is not None:
            raise RefusalError("a precision of the current time", "round the result")
        text, type_ = _CURRENT[type(node)]
        return Value(text, type_)

    def extract(self, node: exp.Extract) -> Value:
        """EXTRACT(field FROM x)."""
        return extract(node.this.name, self.translate(node.expression))

    def at_time_zone(self, node: exp.AtTimeZone) -> Value:
        """AT TIME ZONE."""
        return at_time_zone(self.translate(node.this), self.translate(node.args["zone"]))

    def trim(self, node: exp.Trim) -> Value:
        """TRIM([side] [characters FROM] x)."""
        characters = coerce(self.translate(node.expression), t.TEXT) if node.expression else None
        return trimmed(coerce(self.translate(node.this), t.TEXT), node.args.get("position") or "BOTH", characters)

    def substring(self, node: exp.Substring) -> Value:
        """SUBSTRING(x FROM a FOR b)."""
        start = node.args.get("start")
        begin = self.translate(start) if start is not None else Value("1", t.INTEGER, constant=1)
        length = node.args.get("length")
        return substring(
            coerce(self.translate(node.this), t.TEXT), begin, self.translate(length) if length is not None else None
        )

    def position(self, node: exp.StrPosition) -> Value:
        """POSITION(a IN b)."""
        return call("strpos", [self.translate(node.this), self.translate(node.args["substr"])])

    def overlay(self, node: exp.Overlay) -> Value:
        """OVERLAY(x PLACING y FROM a FOR b)."""
        parts = [node.this, node.expression, node.args["from_"], node.args.get("for_")]
        values = [self.translate(p) for p in parts if p is not None]
        return overlay(*(coerce(v, t.TEXT if i < 2 else t.INTEGER) for i, v in enumerate(values)))

    # Arrays, subqueries, JSON

    def array(self, node: exp.Array) -> Value:
        """ARRAY[...]."""
        if len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Query):
            raise RefusalError("ARRAY(SELECT ...)", "use array_agg in a subquery")
        return arrays.constructor([self.translate(e) for e in node.expressions])

    def subscript(self, node: exp.Bracket) -> Value:
        """array[1], array[1:2]."""
        array = self.translate(node.this)
        index = node.expressions[0]
        if len(node.expressions) != 1 or array.type.element is None:
            raise RefusalError(f"a subscript of {array.type}")
        if not isinstance(index, exp.Slice):
            return arrays.subscript(array, self.translate(index))
        if index.this is None or index.expression is None:
            raise RefusalError("a slice without both bounds")
        return arrays.slice_of(array, self.translate(index.this), self.translate(index.expression))

    def overlaps(self, node: exp.ArrayOverlaps) -> Value:
        """`&&`."""
        left, right = self.translate(node.this), self.translate(node.expression)
        return arrays.overlaps(left, right)

    def contains(self, node: exp.Binary) -> Value:
        """`@>` and `<@`, of arrays and of jsonb."""
        left, right = self.translate(node.this), self.translate(node.expression)
        if isinstance(node, exp.ArrayContainedBy):
            left, right = right, left
        if left.type.element is not None or right.type.element is not None:
            return arrays.contains(left, right)
        return json_functions.contains(left, right)

    def json_arrow(self, node: exp.Binary) -> Value:
        """`->` and `->>`."""
        found = json_functions.step(self.translate(node.this), self.translate(node.expression))
        return json_functions.text_of(found) if isinstance(node, exp.JSONExtractScalar) else found

    def json_path(self, node: exp.Binary) -> Value:
        """`#>` and `#>>`."""
        found = json_functions.steps(self.translate(node.this), self.translate(node.expression))
        return json_functions.text_of(found) if isinstance(node, exp.JSONBExtractScalar) else found

    def json_key(self, node: exp.Binary) -> Value:
        """`?`, `?|`, `?&`."""
        how = {exp.JSONBContainsTopKey: "?", exp.JSONBContainsAnyTopKeys: "?|", exp.JSONBContainsAllTopKeys: "?&"}
        return json_functions.has_key(how[type(node)], self.translate(node.this), self.translate(node.expression))

    def json_object(self, node: exp.JSONObject) -> Value:
        """JSON_OBJECT('key' : value, ...)."""
        pairs = [(self.translate(p.this), self.translate(p.expression)) for p in node.expressions]
        absent = json_functions.is_absent(node, default=False)
        return json_functions.sql_object(pairs, json_functions.returning(node), absent=absent)

    def json_array(self, node: exp.JSONArray) -> Value:
        """JSON_ARRAY(value, ...)."""
        items = [self.translate(e) for e in node.expressions]
        absent = json_functions.is_absent(node, default=True)
        return json_functions.sql_array(items, json_functions.returning(node), absent=absent)

    def scalar_subquery(self, node: exp.Subquery) -> Value:
        """(SELECT ...)."""
        text, columns = self.queries.subquery(node.this, self.scope)
        if len(columns) != 1:
            raise wrong("a subquery must have one column here", node, self.queries.sql)
        return Value(f"({text})", columns[0].type)

    def exists(self, node: exp.Exists) -> Value:
        """EXISTS (SELECT ...)."""
        text, _ = self.queries.subquery(node.this, self.scope)
        return Value(f"(EXISTS ({text}))", t.BOOLEAN)


_LOOKING = (exp.JSONExtract, exp.JSONExtractScalar, exp.JSONBExtract, exp.JSONBExtractScalar, exp.JSONBContainsTopKey)
_LOOKING_NAMES = {
    "jsonb_array_elements",
    "jsonb_array_elements_text",
    "jsonb_array_length",
    "jsonb_each",
    "jsonb_each_text",
    "jsonb_extract_path",
    "jsonb_extract_path_text",
    "jsonb_object_keys",
    "jsonb_typeof",
}


def _is_looked_into(node: exp.Expr) -> bool:
    """Whether only parts of a json value are asked for, whose order and spaces do not show."""
    parent = node.parent
    while isinstance(parent, exp.Paren):
        node, parent = parent, parent.parent
    if isinstance(parent, exp.Anonymous):
        return str(parent.this).lower() in _LOOKING_NAMES
    return isinstance(parent, _LOOKING) and parent.this is node


def _named(node: exp.Expr) -> str:
    text = node.sql(dialect="postgres", comments=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_CURRENT: dict[type[exp.Expr], tuple[str, t.Type]] = {
    exp.CurrentDate: ("CURRENT_DATE()", t.DATE),
    exp.CurrentTimestamp: ("CURRENT_TIMESTAMP()", t.TIMESTAMPTZ),
    exp.Localtimestamp: ("LOCALTIMESTAMP()", t.TIMESTAMP),
    exp.CurrentUser: ("CURRENT_USER()", t.TEXT),
    exp.CurrentRole: ("CURRENT_USER()", t.TEXT),
    exp.SessionUser: ("SESSION_USER()", t.TEXT),
    exp.CurrentSchema: ("CURRENT_SCHEMA()", t.TEXT),
    exp.CurrentCatalog: ("CURRENT_CATALOG()", t.TEXT),
}
_TWO = {"this", "expression"}
_RULES: dict[type[exp.Expr], tuple[Callable[..., Value], set[str]]] = {
    exp.Column: (Expressions.column, {"this", "table", "db", "catalog"}),
    exp.Literal: (Expressions.literal, {"this", "is_string"}),
    exp.ByteString: (Expressions.escape_string, {"this"}),
    exp.RawString: (lambda _, n: unknown_literal(n.this), {"this"}),
    exp.National: (lambda _, n: unknown_literal(n.this), {"this"}),
    exp.Null: (lambda _, n: NULL, set()),
    exp.Boolean: (lambda _, n: Value("TRUE" if n.this else "FALSE", t.BOOLEAN), {"this"}),
    exp.Interval: (Expressions.interval, {"this", "unit"}),
    exp.Pow: (Expressions.power, _TWO),
    exp.DPipe: (operators.concatenation, {*_TWO, "safe"}),
    exp.BitwiseNot: (operators.complement, {"this"}),
    exp.Neg: (Expressions.negation, {"this"}),
    exp.And: (Expressions.logic, _TWO),
    exp.Or: (Expressions.logic, _TWO),
    exp.Not: (Expressions.not_, {"this"}),
    exp.Paren: (Expressions.paren, {"this"}),
    exp.Tuple: (Expressions.row, {"expressions"}),
    exp.Case: (Expressions.case, {"this", "ifs", "default"}),
    exp.Cast: (Expressions.cast, {"this", "to"}),
    exp.Collate: (Expressions.collate, _TWO),
    exp.Anonymous: (Expressions.function, {"this", "expressions"}),
    exp.Dot: (Expressions.qualified_function, _TWO),
    exp.GroupConcat: (Expressions.aggregate, {"this", "separator"}),
    exp.JSONObjectAgg: (Expressions.aggregate, {"expressions", "null_handling", "return_type"}),
    exp.JSONArrayAgg: (Expressions.aggregate, {"this", "null_handling", "return_type"}),
    exp.Filter: (Expressions.aggregate, _TWO),
    exp.WithinGroup: (Expressions.aggregate, _TWO),
    exp.Window: (Expressions.aggregate, {"this", "partition_by", "order", "spec", "alias", "over", "first"}),
    exp.Extract: (Expressions.extract, _TWO),
    exp.AtTimeZone: (Expressions.at_time_zone, {"this", "zone"}),
    exp.Trim: (Expressions.trim, {"this", "expression", "position"}),
    exp.Substring: (Expressions.substring, {"this", "start", "length"}),
    exp.StrPosition: (Expressions.position, {"this", "substr"}),
    exp.Overlay: (Expressions.overlay, {"this", "expression", "from_", "for_"}),
    exp.Array: (Expressions.array, {"expressions", "value_constructor"}),
    exp.Bracket: (Expressions.subscript, {"this", "expressions", "offset"}),
    exp.StartsWith: (lambda self, n: call("starts_with", [self.translate(n.this), self.translate(n.expression)]), _TWO),
    exp.Sqrt: (lambda self, n: call("sqrt", [self.translate(n.this)]), {"this"}),
    exp.Cbrt: (lambda self, n: call("cbrt", [self.translate(n.this)]), {"this"}),
    exp.ArrayOverlaps: (Expressions.overlaps, {*_TWO, "null_safe"}),
    exp.ArrayContainsAll: (Expressions.contains, _TWO),
    exp.ArrayContainedBy: (Expressions.contains, _TWO),
    exp.JSONExtract: (Expressions.json_arrow, {*_TWO, "only_json_types"}),
    exp.JSONExtractScalar: (Expressions.json_arrow, {*_TWO, "only_json_types"}),
    exp.JSONBExtract: (Expressions.json_path, _TWO),
    exp.JSONBExtractScalar: (Expressions.json_path, _TWO),
    exp.JSONBContainsTopKey: (Expressions.json_key, _TWO),
    exp.JSONBContainsAnyTopKeys: (Expressions.json_key, _TWO),
    exp.JSONBContainsAllTopKeys: (Expressions.json_key, _TWO),
    exp.JSONObject: (Expressions.json_object, {"expressions", "null_handling", "return_type"}),
    exp.JSONArray: (Expressions.json_array, {"expressions", "null_handling", "return_type"}),
    exp.Subquery: (Expressions.scalar_subquery, {"this"}),
    exp.Exists: (Expressions.exists, {"this"}),
    **{kind: (Expressions.arithmetic, {*_TWO, "typed", "safe"}) for kind in _ARITHMETIC},
    **{kind: (Expressions.current, {"this"}) for kind in _CURRENT},
    **dict.fromkeys(
        (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift),
        (operators.bits, _TWO),
    ),
    **{kind: (comparisons.rule_of(kind), known) for kind, known in comparisons.KINDS.items()},
}
