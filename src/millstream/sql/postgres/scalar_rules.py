"""Rules for names, literals, operators, CASE and casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.errors import Code
from millstream.sql.postgres import arithmetic, operands
from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import convert, shorten, unify
from millstream.sql.postgres.constants import parse_interval
from millstream.sql.postgres.functions import numbers
from millstream.sql.postgres.literals import number_literal, unknown_literal
from millstream.sql.postgres.names import folded
from millstream.sql.postgres.refusals import RefusalError, wrong
from millstream.sql.postgres.spark_builders import Node, and_, array, cases, not_, or_
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.type_names import type_named
from millstream.sql.postgres.typed_expressions import NULL_VALUE, Value, constant_interval, row_of

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions
    from millstream.sql.postgres.names import Scope

# Names and literals


def column(self: Expressions, node: exp.Column) -> Value:
    """A column of this query or of an outer one."""
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
            raise wrong(f"the column {name} is ambiguous", node, self.queries.sql, hint="qualify it with its table")
        if found:
            self.refuse_twin(name, [i for i in scope.items if table in (None, i.name)])
            for inner in passed:
                inner.is_correlated = True
            return found[0]
        whole = _whole_item(name, scope) if table is None else None
        if whole is not None:
            return whole
        passed.append(scope)
        scope = scope.outer
    shown = ".".join((*path, table, name)) if table else name
    raise wrong(f"there is no column {shown}", node, self.queries.sql, Code.UNKNOWN_COLUMN)


def _whole_item(name: str, scope: Scope) -> Value | None:
    item = next((i for i in scope.items if i.name == name), None)
    if item is None:
        return None
    if item.is_scalar and len(item.columns) == 1:
        return item.value(item.columns[0])
    raise RefusalError(f"the whole row {name}", "name its columns")


def literal(self: Expressions, node: exp.Literal) -> Value:
    """A string or a number."""
    if node.is_string:
        return unknown_literal(node.this)
    found = number_literal(node.this)
    if found is None:
        raise RefusalError(f"the number {node.this}", "Spark's DECIMAL has 38 digits")
    return found


def escape_string(self: Expressions, node: exp.ByteString) -> Value:
    """E'...': the tokenizer has resolved the escapes it knows."""
    if "\\" in node.this:
        raise RefusalError("an escape string with such escapes", "write the character itself")
    return unknown_literal(node.this)


def interval(self: Expressions, node: exp.Interval) -> Value:
    """INTERVAL '...' [unit]."""
    if not isinstance(node.this, exp.Literal):
        raise RefusalError("an interval that is not a literal", "multiply: n * interval '1 day'")
    unit = node.args.get("unit")
    if unit is not None and not isinstance(unit, exp.Var):
        raise RefusalError(f"INTERVAL ... {unit.sql(dialect='postgres')}", "write the unit into the string")
    return constant_interval(parse_interval(node.this.name, unit.name if unit is not None else None))


# Operators

OPERATORS: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}


def arithmetical(self: Expressions, node: exp.Binary) -> Value:
    """`+ - * / %`."""
    left, right = self.translate(node.this), self.translate(node.expression)
    operator = OPERATORS[type(node)]
    if operator == "-" and left.type.name == "jsonb":
        raise RefusalError("jsonb - ...", "select the keys you want instead")
    return arithmetic.binary(operator, left, right)


def power(self: Expressions, node: exp.Pow) -> Value:
    """`^`."""
    left, right = self.translate(node.this), self.translate(node.expression)
    return numbers.power(left, right)


def negation(self: Expressions, node: exp.Neg) -> Value:
    """`- x`."""
    return arithmetic.negate(self.translate(node.this))


def logic(self: Expressions, node: exp.Connector) -> Value:
    """AND, OR."""
    connect = and_ if isinstance(node, exp.And) else or_
    return Value(connect(self.boolean(node.this), self.boolean(node.expression)), t.BOOLEAN)


def negated(self: Expressions, node: exp.Not) -> Value:
    """NOT."""
    return Value(not_(self.boolean(node.this)), t.BOOLEAN)


def paren(self: Expressions, node: exp.Paren) -> Value:
    """(...)."""
    return self.translate(node.this)


def row(self: Expressions, node: exp.Tuple) -> Value:
    """(a, b): can only be compared, or stored in a column as a composite value."""
    items = tuple(self.translate(e) for e in node.expressions)
    return row_of(items)


# Conditional expressions and casts


def case(self: Expressions, node: exp.Case) -> Value:
    """CASE, searched or simple."""
    conditions: list[Node] = []
    for branch in node.args["ifs"]:
        if node.this is None:
            conditions.append(self.boolean(branch.this))
        else:
            test = operands.compare("=", self.translate(node.this), self.translate(branch.this))
            conditions.append(test.tree)
    results = [self.translate(b.args["true"]) for b in node.args["ifs"]]
    default = node.args.get("default")
    results.append(self.translate(default) if default is not None else NULL_VALUE)
    values, type_ = unify(results)
    branches = [(c, v.tree) for c, v in zip(conditions, values[:-1], strict=True)]
    return Value(cases(*branches, otherwise=values[-1].tree), type_)


def cast_to(self: Expressions, node: exp.Cast) -> Value:
    """`x::type`."""
    target = type_named(node.to)
    if target.element is not None and isinstance(node.this, exp.Array) and not node.this.expressions:
        return Value(cast(array(), target), target)
    value = self.translate(node.this)
    if target == t.JSONB and value.type in (t.TEXT, t.JSON) and not isinstance(value.constant, str):
        note = f"a {value.type} cast to jsonb is left as it is: keys are not sorted, equal keys not removed"
        if note not in self.queries.notices:
            self.queries.notices.append(note)
        if value.type == t.JSON and _is_looked_into(node):
            return value.of(t.JSONB)
    result = convert(value, target)
    sizes = [int(p.name) for p in node.to.expressions if isinstance(p, exp.DataTypeParam)]
    if node.to.this is exp.DType.VARCHAR and sizes:
        return shorten(result, sizes[0])
    return result


def collate(self: Expressions, node: exp.Collate) -> Value:
    """COLLATE "C", which is Spark's order anyway."""
    name = node.expression.name
    if name not in {"C", "POSIX", "ucs_basic", "default"}:
        raise RefusalError(f'COLLATE "{name}"', 'texts are compared by their bytes, as COLLATE "C" does')
    return self.translate(node.this)


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
    """Whether only parts of a json value are used, so that its key order and spaces do not matter."""
    parent = node.parent
    while isinstance(parent, exp.Paren):
        node, parent = parent, parent.parent
    if isinstance(parent, exp.Anonymous):
        return str(parent.this).lower() in _LOOKING_NAMES
    return isinstance(parent, _LOOKING) and parent.this is node
