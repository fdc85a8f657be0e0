"""JSON_TABLE: rows and columns by paths, in the lax mode of SQL's JSON paths.

A key step looks into the elements of an array, and a value that is not an array counts as an array of one. So a path
leads to a list of items, each of which still has its marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce
from millstream.sql.postgres.functions.json_marks import (
    BARE,
    STRING,
    as_json,
    found_in,
    path_text,
    root_of,
    starts_with,
    strings_in,
    unmarked,
)
from millstream.sql.postgres.names import Output, folded
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.set_returning import Series
from millstream.sql.postgres.spark_builders import (
    ITEM,
    NULL,
    OTHER,
    PLACE,
    Node,
    array,
    cases,
    each,
    fn,
    is_not_null,
    is_null,
    kept,
    lambda_,
    let,
    not_,
    op,
    struct,
    text,
    when,
)
from millstream.sql.postgres.spark_casts import cast, try_cast
from millstream.sql.postgres.type_names import type_named
from millstream.sql.postgres.typed_expressions import JsonPlace, Value

Steps = list[str | int]


def json_table(node: exp.JSONTable, translate: Callable[[exp.Expr], Value]) -> Series:
    """JSON_TABLE(json, '$.path[*]' COLUMNS (...)): columns by simple paths; missing and unfit values are NULL."""
    for clause in ("error_handling", "empty_handling", "passing"):
        if node.args.get(clause):
            raise RefusalError(f"JSON_TABLE with {clause.split('_')[0].upper()} ...")
    path = _steps(node.args.get("path"))
    schema = node.args["schema"]
    columns: list[Output] = []
    fields: list[tuple[str, Node]] = []
    for definition in schema.expressions:
        column, found = _column(definition, translate)
        columns.append(column)
        fields.append((column.name, found))
    value = translate(node.this)
    place = value.place or JsonPlace(root_of(value), ())
    rows = _items(kept(array(found_in(place)), is_not_null(ITEM)), path)
    body = fn("TRANSFORM", rows, lambda_(struct(fields), OTHER, PLACE))
    return Series(body, tuple(columns), is_struct=True)


def _items(items: Node, path: Steps) -> Node:
    """The items that a path leads to from each of the given items."""
    listed, is_array = strings_in(ITEM), starts_with(ITEM, "[")
    for step in path:
        unwrapped = fn("FLATTEN", each(items, when(is_array, listed, array(ITEM))))
        if step == "*":
            items = unwrapped
            continue
        if isinstance(step, int):
            single = [(not_(is_array), ITEM)] if step == 0 else []
            found = each(items, cases((is_array, fn("GET", listed, step)), *single))
        else:
            found = each(unwrapped, fn("GET_JSON_OBJECT", ITEM, text(path_text((step,)))))
        items = kept(found, is_not_null(ITEM))
    return items


def _column(node: exp.Expr, translate: Callable[[exp.Expr], Value]) -> tuple[Output, Node]:
    if not isinstance(node, exp.JSONColumnDef) or node.args.get("nested_schema"):
        raise RefusalError("NESTED PATH of JSON_TABLE")
    name = folded(node.this)
    if not re.fullmatch(r"\w+", name):
        raise RefusalError(f"the column name {name!r} in JSON_TABLE")
    if node.args.get("ordinality"):
        return Output(name, t.INTEGER), cast(op(PLACE, "+", 1), t.INTEGER)
    kind = node.args.get("kind")
    if not isinstance(kind, exp.DataType):
        raise RefusalError("a column of JSON_TABLE of that form")
    type_ = type_named(kind)
    if not (type_.is_number or type_.is_json or type_ in {t.TEXT, t.BOOLEAN}):
        raise RefusalError(f"a column of type {type_} in JSON_TABLE", "take it as text and cast it")
    if kind.this is exp.DType.VARCHAR and kind.expressions:
        hint = "take it as text: a value that is too long is an error, and so becomes NULL"
        raise RefusalError(f"a column of type {kind.sql(dialect='postgres').lower()} in JSON_TABLE", hint)
    given = node.args.get("path")
    found = _items(array(OTHER), _steps(given) if isinstance(given, exp.Expr) else [name])
    empty, error = (_otherwise(node, event, type_, translate) for event in ("empty", "error"))
    if node.args.get("exists"):
        return Output(name, type_), cast(op(fn("SIZE", found), ">", 0), type_)
    if type_.is_json or node.args.get("format_json"):
        if not (empty is error is NULL) or not (type_.is_json or type_ == t.TEXT):
            raise RefusalError("a column of JSON_TABLE of that form")
        return Output(name, type_), let(_only(found, NULL), as_json(ITEM))
    return Output(name, type_), _scalar(_only(found, text("[]")), type_, empty, error)


def _only(items: Node, several: Node) -> Node:
    """The item, if there is one; `several` if there are more."""
    return let(items, cases((0, NULL), (1, fn("GET", ITEM, 0)), of=fn("SIZE", ITEM), otherwise=several))


def _scalar(found: Node, type_: t.Type, empty: Node, error: Node) -> Node:
    """The item that was found, as JSON_VALUE returns it.

    Args:
        empty: the value if nothing was found.
        error: the value if an object, an array or a value of another type was found.
    """
    bare: Node = unmarked(ITEM)
    if type_ == t.TEXT:  # PostgreSQL prints a boolean as t or f
        bare = cases((text("true"), text("t")), (text("false"), text("f")), of=bare, otherwise=bare)
    scalar = cases((starts_with(ITEM, BARE), bare), (starts_with(ITEM, STRING), unmarked(ITEM)))
    branches: list[tuple[Node, Node]] = [(op(ITEM, "=", text(f"{BARE}null")), NULL)]
    if empty is not NULL or error is not NULL:
        branches.insert(0, (is_null(ITEM), empty))
    value = _read(scalar, type_)
    return let(found, cases(*branches, otherwise=value if error is NULL else fn("COALESCE", value, error)))


def _read(shown: Node, type_: t.Type) -> Node:
    if type_ == t.TEXT:
        return shown
    if type_.is_integer:
        exact = try_cast(shown, t.numeric(t.MAX_DIGITS, t.DEFAULT_SCALE))
        shown = when(op(exact, "=", fn("ROUND", exact, 0)), exact)
    return try_cast(shown, type_)


def _otherwise(node: exp.JSONColumnDef, event: str, type_: t.Type, translate: Callable[[exp.Expr], Value]) -> Node:
    """The value that ON EMPTY or ON ERROR specifies."""
    given = node.args.get(event)
    if isinstance(given, exp.Expr):
        return coerce(translate(given), type_).tree
    if given and not given.startswith("FALSE" if node.args.get("exists") else "NULL"):
        raise RefusalError(f"{given} in JSON_TABLE", "give a DEFAULT")
    return NULL


def _steps(path: exp.Expr | None) -> Steps:
    """The steps of a path like `$.a[*].b[0]`."""
    written = path.name if path is not None else "$"
    body = written.strip().removeprefix("lax ").strip()
    out: Steps = []
    position = 1
    if not body.startswith("$"):
        raise RefusalError(f"the JSON path {written!r}", "only lax paths of $.key, [0] and [*] are supported")
    for found in re.finditer(r'\.(\w+)|\."([^"]+)"|\[(\*|\d+)\]', body):
        if found.start() != position:
            break
        position = found.end()
        index = found.group(3)
        out.append("*" if index == "*" else int(index) if index else found.group(1) or found.group(2))
    if position != len(body):
        raise RefusalError(f"the JSON path {written!r}", "only $.key, [0] and [*] are supported")
    return out
