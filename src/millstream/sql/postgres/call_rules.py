"""Rules for calls: by name, and with special syntax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres import aggregates
from millstream.sql.postgres import types as t
from millstream.sql.postgres.aggregate_calls import read
from millstream.sql.postgres.casts import coerce
from millstream.sql.postgres.conditionals import CONDITIONALS
from millstream.sql.postgres.functions import call, dates, json_building, strings
from millstream.sql.postgres.names import folded
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.scalar_rules import row
from millstream.sql.postgres.spark_builders import ONE, field, fn, quoted_name
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.typed_expressions import Value

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions


def function(self: Expressions, node: exp.Anonymous) -> Value:
    """A call by name."""
    called = folded(node.this) if isinstance(node.this, exp.Identifier) else str(node.this).lower()
    if aggregates.is_aggregate(called):
        return aggregate(self, node)
    if called == "make_interval":
        named = {
            a.this.name.lower(): self.translate(a.expression) for a in node.expressions if isinstance(a, exp.Kwarg)
        }
        return dates.make_interval([self.translate(a) for a in node.expressions if not isinstance(a, exp.Kwarg)], named)
    if called == "row":
        return row(self, exp.Tuple(expressions=node.expressions))
    if called == "grouping":
        return _grouping(self, node)
    args = [self.translate(a) for a in node.expressions]
    if called in CONDITIONALS:
        return CONDITIONALS[called](args)
    if called in json_building.BUILDERS:
        return json_building.BUILDERS[called](args)
    return call(called, args)


def _grouping(self: Expressions, node: exp.Anonymous) -> Value:
    flags = [cast(fn("GROUPING", self.translate(a).tree), t.INTEGER) for a in node.expressions]
    return aggregates.grouping_number(flags)


def qualified_function(self: Expressions, node: exp.Dot) -> Value:
    """pg_catalog.f(x), or a field of a composite value."""
    if isinstance(node.expression, exp.Anonymous):
        if folded(node.this) != "pg_catalog":
            raise RefusalError(f"the function {node.sql(dialect='postgres')}")
        return self.translate(node.expression)
    value = self.translate(node.this)
    title = folded(node.expression)
    found = next((type_ for n, type_ in value.type.fields if n.lower() == title), None)
    if found is None:
        raise RefusalError(f"the field {title} of {value.type}")
    return Value(field(value.tree, quoted_name(title)), found)


def aggregate(self: Expressions, node: exp.Expr) -> Value:
    """An aggregate or window function, with its clauses."""
    return aggregates.translate(read(self, node))


CURRENT: dict[type[exp.Expr], tuple[str, t.Type]] = {
    exp.CurrentDate: ("CURRENT_DATE", t.DATE),
    exp.CurrentTimestamp: ("CURRENT_TIMESTAMP", t.TIMESTAMPTZ),
    exp.Localtimestamp: ("LOCALTIMESTAMP", t.TIMESTAMP),
    exp.CurrentUser: ("CURRENT_USER", t.TEXT),
    exp.CurrentRole: ("CURRENT_USER", t.TEXT),
    exp.SessionUser: ("SESSION_USER", t.TEXT),
    exp.CurrentSchema: ("CURRENT_SCHEMA", t.TEXT),
    exp.CurrentCatalog: ("CURRENT_CATALOG", t.TEXT),
}
"""Spark's function for each keyword of the current time or session."""


def current(self: Expressions, node: exp.Expr) -> Value:
    """CURRENT_DATE and the other keywords of the current time or session."""
    if node.args.get("this") is not None:
        raise RefusalError("a precision of the current time", "round the result")
    function_name, type_ = CURRENT[type(node)]
    return Value(fn(function_name), type_)


def extract(self: Expressions, node: exp.Extract) -> Value:
    """EXTRACT(field FROM x)."""
    return dates.extract(node.this.name, self.translate(node.expression))


def at_time_zone(self: Expressions, node: exp.AtTimeZone) -> Value:
    """AT TIME ZONE."""
    return dates.at_time_zone(self.translate(node.this), self.translate(node.args["zone"]))


def trim(self: Expressions, node: exp.Trim) -> Value:
    """TRIM([side] [characters FROM] x)."""
    characters = coerce(self.translate(node.expression), t.TEXT) if node.expression else None
    return strings.trimmed(coerce(self.translate(node.this), t.TEXT), node.args.get("position") or "BOTH", characters)


def substring(self: Expressions, node: exp.Substring) -> Value:
    """SUBSTRING(x FROM a FOR b)."""
    start = node.args.get("start")
    begin = self.translate(start) if start is not None else Value(ONE, t.INTEGER, constant=1)
    length = node.args.get("length")
    return strings.substring(
        coerce(self.translate(node.this), t.TEXT), begin, self.translate(length) if length is not None else None
    )


def position(self: Expressions, node: exp.StrPosition) -> Value:
    """POSITION(a IN b)."""
    return call("strpos", [self.translate(node.this), self.translate(node.args["substr"])])


def overlay(self: Expressions, node: exp.Overlay) -> Value:
    """OVERLAY(x PLACING y FROM a FOR b)."""
    parts = [node.this, node.expression, node.args["from_"], node.args.get("for_")]
    values = [self.translate(p) for p in parts if p is not None]
    return strings.overlay(*(coerce(v, t.TEXT if i < 2 else t.INTEGER) for i, v in enumerate(values)))
