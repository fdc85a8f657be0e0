"""Rules for arrays, JSON and subqueries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.functions import arrays, json_building
from millstream.sql.postgres.functions import json as json_functions
from millstream.sql.postgres.refusals import RefusalError, wrong
from millstream.sql.postgres.spark_builders import exists as exists_in
from millstream.sql.postgres.typed_expressions import Value

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions


def array(self: Expressions, node: exp.Array) -> Value:
    """ARRAY[...]."""
    if len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Query):
        raise RefusalError("ARRAY(SELECT ...)", "use array_agg in a subquery")
    return arrays.constructor([self.translate(e) for e in node.expressions])


def subscript(self: Expressions, node: exp.Bracket) -> Value:
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


def overlaps(self: Expressions, node: exp.ArrayOverlaps) -> Value:
    """`&&`."""
    left, right = self.translate(node.this), self.translate(node.expression)
    return arrays.overlaps(left, right)


def contains(self: Expressions, node: exp.Binary) -> Value:
    """`@>` and `<@`, of arrays and of jsonb."""
    left, right = self.translate(node.this), self.translate(node.expression)
    if isinstance(node, exp.ArrayContainedBy):
        left, right = right, left
    if left.type.element is not None or right.type.element is not None:
        return arrays.contains(left, right)
    return json_functions.contains(left, right)


def json_arrow(self: Expressions, node: exp.Binary) -> Value:
    """`->` and `->>`."""
    found = json_functions.step(self.translate(node.this), self.translate(node.expression))
    return json_functions.text_of(found) if isinstance(node, exp.JSONExtractScalar) else found


def json_path(self: Expressions, node: exp.Binary) -> Value:
    """`#>` and `#>>`."""
    found = json_functions.steps(self.translate(node.this), self.translate(node.expression))
    return json_functions.text_of(found) if isinstance(node, exp.JSONBExtractScalar) else found


def json_key(self: Expressions, node: exp.Binary) -> Value:
    """`?`, `?|`, `?&`."""
    how = {exp.JSONBContainsTopKey: "?", exp.JSONBContainsAnyTopKeys: "?|", exp.JSONBContainsAllTopKeys: "?&"}
    return json_functions.has_key(how[type(node)], self.translate(node.this), self.translate(node.expression))


def json_object(self: Expressions, node: exp.JSONObject) -> Value:
    """JSON_OBJECT('key' : value, ...)."""
    pairs = [(self.translate(p.this), self.translate(p.expression)) for p in node.expressions]
    absent = json_building.is_absent(node, default=False)
    return json_building.sql_object(pairs, json_building.returning(node), absent=absent)


def json_array(self: Expressions, node: exp.JSONArray) -> Value:
    """JSON_ARRAY(value, ...)."""
    items = [self.translate(e) for e in node.expressions]
    absent = json_building.is_absent(node, default=True)
    return json_building.sql_array(items, json_building.returning(node), absent=absent)


def scalar_subquery(self: Expressions, node: exp.Subquery) -> Value:
    """(SELECT ...)."""
    query, columns = self.queries.subquery(node.this, self.scope)
    if len(columns) != 1:
        raise wrong("a subquery must have one column here", node, self.queries.sql)
    return Value(exp.Subquery(this=query), columns[0].type)


def exists(self: Expressions, node: exp.Exists) -> Value:
    """EXISTS (SELECT ...)."""
    query, _ = self.queries.subquery(node.this, self.scope)
    return Value(exists_in(query), t.BOOLEAN)
