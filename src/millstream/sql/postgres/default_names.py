"""The names that PostgreSQL gives to columns without an alias."""

from __future__ import annotations

from sqlglot import exp

from millstream.sql.postgres.names import folded

_TYPES = {
    exp.DType.SMALLINT: "int2",
    exp.DType.INT: "int4",
    exp.DType.BIGINT: "int8",
    exp.DType.FLOAT: "float4",
    exp.DType.DOUBLE: "float8",
    exp.DType.DECIMAL: "numeric",
    exp.DType.BOOLEAN: "bool",
    exp.DType.CHAR: "bpchar",
}
_NODES: dict[type[exp.Expr], str] = {
    exp.Exists: "exists",
    exp.Array: "array",
    exp.Extract: "extract",
    exp.Substring: "substring",
    exp.StrPosition: "position",
    exp.Overlay: "overlay",
    exp.GroupConcat: "string_agg",
    exp.JSONObject: "json_object",
    exp.JSONObjectAgg: "json_objectagg",
    exp.JSONArray: "json_array",
    exp.JSONArrayAgg: "json_arrayagg",
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
    exp.Localtimestamp: "localtimestamp",
    exp.CurrentUser: "current_user",
    exp.CurrentRole: "current_role",
    exp.SessionUser: "session_user",
    exp.CurrentSchema: "current_schema",
    exp.CurrentCatalog: "current_catalog",
    exp.AtTimeZone: "timezone",
    exp.Interval: "interval",
    exp.Tuple: "row",
    exp.Boolean: "bool",
}
_TRIMS = {"LEADING": "ltrim", "TRAILING": "rtrim"}
NONE = "?column?"


def default_name(node: exp.Expr) -> str:
    """The name of an output column.

    >>> from millstream.sql.postgres.dialect import parse_postgres
    >>> [default_name(e) for e in parse_postgres("SELECT T.Id, count(*), a + 1, x::int, 1::bigint").selects]
    ['id', 'count', '?column?', 'x', 'int8']
    """
    return _found(node)[0]


def _found(node: exp.Expr) -> tuple[str, bool]:
    """The name, and whether it takes precedence over the name of an enclosing cast."""
    if isinstance(node, exp.Column):
        return folded(node.this), True
    if isinstance(node, exp.Dot):
        if isinstance(node.expression, exp.Anonymous):
            return _found(node.expression)
        return folded(node.expression), True
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower(), True
    if isinstance(node, exp.Window | exp.Filter | exp.WithinGroup | exp.Paren | exp.Collate | exp.Bracket):
        return _found(node.this)
    if isinstance(node, exp.Cast):
        name, is_strong = _found(node.this)
        if is_strong:
            return name, True
        kind = node.to.this
        return _TYPES.get(kind, str(getattr(kind, "value", kind)).lower()), False
    if isinstance(node, exp.Case):
        default = node.args.get("default")
        name, is_strong = _found(default) if default is not None else (NONE, False)
        return (name, True) if is_strong else ("case", False)
    if isinstance(node, exp.Trim):
        return _TRIMS.get(str(node.args.get("position") or ""), "btrim"), True
    if isinstance(node, exp.Subquery):
        inner = node.this.selects[0] if isinstance(node.this, exp.Query) and node.this.selects else None
        if inner is None:
            return NONE, False
        return (folded(inner.args["alias"]), True) if isinstance(inner, exp.Alias) else _found(inner)
    if type(node) in _NODES:
        return _NODES[type(node)], not isinstance(node, exp.Boolean | exp.Interval)
    return NONE, False
