"""Rows made from the values of a row: generators such as EXPLODE, in every clause that allows them.

Each becomes a `Repeat`, as often as the array has elements or the generator has rows, with the values picked by number.
So one operator is enough for all of them, and it handles each row separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from millstream.ops import Column, Item, Project, Relation, Repeat
from millstream.ops.expressions import ONE, ZERO, add_columns, cases, cast, col, compare, keep, subtract, when
from millstream.sql.lowering.context import Context
from millstream.sql.lowering.scope import Visible
from millstream.sql.refusals.unsupported import invalid, unsupported
from millstream.sql.result_types import typed

Bind = Callable[[exp.Expr], exp.Expr]

_NUMBER = "int"
_OUTER = "_outer"
_NAMES = ("explode", "posexplode", "inline", "stack")


@dataclass(frozen=True)
class Generator:
    """A call of a generator: its name without `_outer`, and whether a row without values becomes a row of NULLs."""

    name: str
    arguments: tuple[exp.Expr, ...]
    is_outer: bool


def generator_of(node: exp.Expr) -> Generator | None:
    """The generator that a node calls; None if it calls none that we know."""
    if not isinstance(node, exp.Func):
        return None
    name = (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower().lstrip("_")
    plain = name.removesuffix(_OUTER)
    arguments = node.expressions if isinstance(node, exp.Anonymous) else [node.this, *node.expressions]
    return Generator(plain, tuple(arguments), plain != name) if plain in _NAMES else None


def generated(
    relation: Relation, call: Generator, bind: Bind, context: Context, node: exp.Expr
) -> tuple[Relation, list[Visible]]:
    """The rows of a relation, each as often as the generator returns rows for it, and the columns it adds."""
    if call.name == "stack":
        return _stacked(relation, call, [bind(a) for a in call.arguments[1:]], context, node)
    if len(call.arguments) != 1:
        raise invalid(f"{call.name} takes one argument", node, context.sql)
    return _exploded(relation, call, bind(call.arguments[0]), context, node)


def _exploded(
    relation: Relation, call: Generator, argument: exp.Expr, context: Context, node: exp.Expr
) -> tuple[Relation, list[Visible]]:
    (described,) = typed(context.analyzer, relation, [argument])
    array, type_ = argument, described.type
    fields = ["col"]
    is_struct = call.name == "inline"
    if type_.startswith("map<"):
        array = exp.Anonymous(this="map_entries", expressions=[argument])
        (described,) = typed(context.analyzer, relation, [array])
        type_, fields, is_struct = described.type, ["key", "value"], True
    if not type_.startswith("array<"):
        raise invalid(f"{call.name} takes an array or a map, not {type_}", node, context.sql)
    if call.name == "inline":
        fields = _field_names(type_, context, node)
    fresh = context.namer.fresh
    values, number = Column(fresh("values"), type_), Column(fresh("number"), _NUMBER)
    with_values = Project(relation, add_columns(relation, [Item(array, values)]))
    size = _size(col(values.name))
    count: exp.Expr = when(compare(exp.GT, size, ZERO), size, ONE) if call.is_outer else size
    repeated = Repeat(with_values, count, number)
    element = exp.Bracket(this=col(values.name), expressions=[col(number.name)], offset=1, safe=False)
    picked: exp.Expr = when(compare(exp.GT, size, ZERO), element) if call.is_outer else element
    expressions = [picked]
    if is_struct:
        expressions = [exp.Dot(this=picked, expression=exp.to_identifier(f, quoted=True)) for f in fields]
    if call.name == "posexplode":
        position: exp.Expr = subtract(col(number.name), ONE)
        position = when(compare(exp.GT, size, ZERO), position) if call.is_outer else position
        expressions, fields = [cast(position, _NUMBER), *expressions], ["pos", *fields]
    return _with_columns(relation, repeated, expressions, fields, context)


def _stacked(
    relation: Relation, call: Generator, arguments: Sequence[exp.Expr], context: Context, node: exp.Expr
) -> tuple[Relation, list[Visible]]:
    """STACK(n, values...): n rows, the values in order, NULL where they run out."""
    rows = call.arguments[0] if call.arguments else None
    if not (isinstance(rows, exp.Literal) and rows.is_int and int(rows.name) > 0):
        raise unsupported("STACK with an expression for the number of rows", node, context.sql, "write a number")
    height = int(rows.name)
    width = -(-len(arguments) // height)
    number = Column(context.namer.fresh("number"), _NUMBER)
    expressions: list[exp.Expr] = []
    for position in range(width):
        column = arguments[position::width]
        branches = [
            (compare(exp.EQ, col(number.name), exp.Literal.number(n)), value) for n, value in enumerate(column, start=1)
        ]
        expressions.append(cases(*branches))
    repeated = Repeat(relation, rows, number)
    return _with_columns(relation, repeated, expressions, [f"col{n}" for n in range(width)], context)


def _with_columns(
    relation: Relation, repeated: Relation, expressions: Sequence[exp.Expr], names: Sequence[str], context: Context
) -> tuple[Relation, list[Visible]]:
    types = typed(context.analyzer, repeated, expressions)
    columns = [Column(context.namer.fresh(n), t.type) for n, t in zip(names, types, strict=True)]
    items = [Item(e, c) for e, c in zip(expressions, columns, strict=True)]
    result = Project(repeated, (*keep(relation.columns), *items))
    return result, [Visible(n, c) for n, c in zip(names, columns, strict=True)]


def _field_names(type_: str, context: Context, node: exp.Expr) -> list[str]:
    """The fields of an array of structs."""
    struct = exp.DataType.build(type_, dialect="spark").expressions[0]
    names = [f.name for f in struct.expressions]
    if not names:
        raise invalid(f"INLINE takes an array of structs, not {type_}", node, context.sql)
    return names


def _size(array: exp.Expr) -> exp.Expr:
    return exp.Coalesce(this=exp.ArraySize(this=array), expressions=[ZERO])
