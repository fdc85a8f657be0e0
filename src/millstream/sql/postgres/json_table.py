"""JSON_TABLE: rows and columns by paths, in the lax mode of SQL's JSON paths.

A key looks into the elements of an array, and what is no array counts as an array of one. A path therefore leads to a
list of items, each of which still has its marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.casts import coerce, type_named
from millstream.sql.postgres.functions.json_marks import (
    BARE,
    STRING,
    as_json,
    bound,
    found_in,
    is_marked,
    path_text,
    root_of,
)
from millstream.sql.postgres.names import Output, folded
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.series import Series
from millstream.sql.postgres.values import ITEM, OTHER, PLACE, JsonPlace, Value, text_literal

Steps = list[str | int]


def json_table(node: exp.JSONTable, translate: Callable[[exp.Expr], Value]) -> Series:
    """JSON_TABLE(json, '$.path[*]' COLUMNS (...)): columns by simple paths; what is missing or does not fit is NULL."""
    for clause in ("error_handling", "empty_handling", "passing"):
        if node.args.get(clause):
            raise RefusalError(f"JSON_TABLE with {clause.split('_')[0].upper()} ...")
    path = _steps(node.args.get("path"))
    schema = node.args["schema"]
    columns: list[Output] = []
    fields: list[str] = []
    for definition in schema.expressions:
        column, text = _column(definition, translate)
        columns.append(column)
        fields.append(f"'{column.name}', {text}")
    value = translate(node.this)
    place = value.place or JsonPlace(root_of(value), ())
    array = _items(f"FILTER(ARRAY({found_in(place)}), {ITEM} -> {ITEM} IS NOT NULL)", path)
    body = f"TRANSFORM({array}, ({OTHER}, {PLACE}) -> NAMED_STRUCT({', '.join(fields)}))"
    return Series(body, tuple(columns), is_struct=True)


def _items(items: str, path: Steps) -> str:
    """What a path leads to from each of some items."""
    for step in path:
        listed = f"FROM_JSON({ITEM}, 'ARRAY<STRING>')"
        is_array = f"STARTSWITH({ITEM}, '[')"
        unwrapped = f"FLATTEN(TRANSFORM({items}, {ITEM} -> CASE WHEN {is_array} THEN {listed} ELSE ARRAY({ITEM}) END))"
        if step == "*":
            items = unwrapped
            continue
        if isinstance(step, int):
            single = f" WHEN NOT {is_array} THEN {ITEM}" if step == 0 else ""
            found = f"TRANSFORM({items}, {ITEM} -> CASE WHEN {is_array} THEN GET({listed}, {step}){single} END)"
        else:
            found = f"TRANSFORM({unwrapped}, {ITEM} -> GET_JSON_OBJECT({ITEM}, {text_literal(path_text((step,)))}))"
        items = f"FILTER({found}, {ITEM} -> {ITEM} IS NOT NULL)"
    return items


def _column(node: exp.Expr, translate: Callable[[exp.Expr], Value]) -> tuple[Output, str]:
    if not isinstance(node, exp.JSONColumnDef) or node.args.get("nested_schema"):
        raise RefusalError("NESTED PATH of JSON_TABLE")
    name = folded(node.this)
    if not re.fullmatch(r"\w+", name):
        raise RefusalError(f"the column name {name!r} in JSON_TABLE")
    if node.args.get("ordinality"):
        return Output(name, t.INTEGER), f"CAST({PLACE} + 1 AS INT)"
    kind = node.args.get("kind")
    if not isinstance(kind, exp.DataType):
        raise RefusalError("a column of JSON_TABLE of that form")
    type_ = type_named(kind)
    if not (type_.is_number or type_.is_json or type_ in {t.TEXT, t.BOOLEAN}):
        raise RefusalError(f"a column of type {type_} in JSON_TABLE", "take it as text and cast it")
    if kind.this is exp.DType.VARCHAR and kind.expressions:
        hint = "take it as text: what is too long is an error, and NULL"
        raise RefusalError(f"a column of type {kind.sql(dialect='postgres').lower()} in JSON_TABLE", hint)
    given = node.args.get("path")
    found = _items(f"ARRAY({OTHER})", _steps(given) if isinstance(given, exp.Expr) else [name])
    empty, error = (_otherwise(node, event, type_, translate) for event in ("empty", "error"))
    if node.args.get("exists"):
        return Output(name, type_), f"CAST(SIZE({found}) > 0 AS {type_.spark})"
    if type_.is_json or node.args.get("format_json"):
        if {empty, error} != {"NULL"} or not (type_.is_json or type_ == t.TEXT):
            raise RefusalError("a column of JSON_TABLE of that form")
        return Output(name, type_), bound(_only(found, "NULL"), as_json(ITEM))
    return Output(name, type_), _scalar(_only(found, "'[]'"), type_, empty, error)


def _only(items: str, several: str) -> str:
    """The item, if there is one; `several` stands for more than one."""
    return bound(items, f"CASE SIZE({ITEM}) WHEN 0 THEN NULL WHEN 1 THEN GET({ITEM}, 0) ELSE {several} END")


def _scalar(found: str, type_: t.Type, empty: str, error: str) -> str:
    """What JSON_VALUE makes of what was found.

    Args:
        empty: the value if nothing was found.
        error: the value if an object or array was found, or what does not fit.
    """
    r, text = ITEM, f"SUBSTRING({ITEM}, 2)"
    bare = text
    if type_ == t.TEXT:  # PostgreSQL's of a boolean is t or f
        bare = f"CASE {text} WHEN 'true' THEN 't' WHEN 'false' THEN 'f' ELSE {text} END"
    scalar = f"CASE WHEN {is_marked(r, BARE)} THEN {bare} WHEN {is_marked(r, STRING)} THEN {text} END"
    cases = f"WHEN {r} = {text_literal(BARE + 'null')} THEN NULL"
    if empty != "NULL":
        cases = f"WHEN {r} IS NULL THEN {empty} {cases}"
    elif error != "NULL":
        cases = f"WHEN {r} IS NULL THEN NULL {cases}"
    value = _read(scalar, type_)
    return bound(found, f"CASE {cases} ELSE {value if error == 'NULL' else f'COALESCE({value}, {error})'} END")


def _read(text: str, type_: t.Type) -> str:
    if type_ == t.TEXT:
        return text
    if type_.is_integer:
        whole = f"TRY_CAST({text} AS DECIMAL(38, 18))"
        text = f"CASE WHEN {whole} = ROUND({whole}, 0) THEN {whole} END"
    return f"TRY_CAST({text} AS {type_.spark})"


def _otherwise(node: exp.JSONColumnDef, event: str, type_: t.Type, translate: Callable[[exp.Expr], Value]) -> str:
    """The value that ON EMPTY or ON ERROR asks for."""
    given = node.args.get(event)
    if isinstance(given, exp.Expr):
        return coerce(translate(given), type_).sql
    if given and not given.startswith("FALSE" if node.args.get("exists") else "NULL"):
        raise RefusalError(f"{given} in JSON_TABLE", "give a DEFAULT")
    return "NULL"


def _steps(path: exp.Expr | None) -> Steps:
    """`$.a[*].b[0]` in steps."""
    text = path.name if path is not None else "$"
    body = text.strip().removeprefix("lax ").strip()
    out: Steps = []
    position = 1
    if not body.startswith("$"):
        raise RefusalError(f"the JSON path {text!r}", "only lax paths of $.key, [0] and [*] are known")
    for found in re.finditer(r'\.(\w+)|\."([^"]+)"|\[(\*|\d+)\]', body):
        if found.start() != position:
            break
        position = found.end()
        index = found.group(3)
        out.append("*" if index == "*" else int(index) if index else found.group(1) or found.group(2))
    if position != len(body):
        raise RefusalError(f"the JSON path {text!r}", "only $.key, [0] and [*] are known")
    return out
