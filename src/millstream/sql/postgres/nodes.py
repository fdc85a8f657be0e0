"""The nodes of a parsed text that the translation knows, with the arguments it looks at.

The rules of `expressions` translate the nodes that may occur in an expression. This list is wider: it has the nodes of
all clauses, and a node that is not on it cannot be part of a translated text.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from millstream.sql.postgres.refusals import refused
from millstream.sql.refusals.node_arguments import Arguments, Registry, Unhandled, arguments, unhandled

_MODIFIERS = (
    "match laterals joins connect pivots prewhere where group having qualify windows distribute sort cluster locks "
    "sample settings format options for_"
)
_OF_SETS = arguments("with_ this expression distinct order limit offset", f"by_name side kind on {_MODIFIERS}")
_TWO = arguments("this expression")
_ONE = arguments("this")
_NONE = arguments("")
_LIST = arguments("expressions")
_JSON_CLAUSES = arguments("expressions null_handling return_type", "unique_keys encoding")

QUERIES: Mapping[type[exp.Expr], Arguments] = {
    exp.Select: arguments(
        "with_ expressions distinct from_ joins laterals where group having windows order limit offset hint",
        "kind into operation_modifiers exclude match connect pivots prewhere qualify distribute sort cluster locks "
        "sample settings format options for_",
    ),
    exp.Union: _OF_SETS,
    exp.Intersect: _OF_SETS,
    exp.Except: _OF_SETS,
    exp.Subquery: arguments("this alias with_ joins order limit offset", _MODIFIERS.replace("joins ", "")),
    exp.Values: arguments("expressions alias", "order limit offset pivots"),
    exp.With: arguments("expressions recursive", "search cycle udfs"),
    exp.CTE: arguments("this alias materialized", "scalar key_expressions"),
    exp.From: _ONE,
    exp.Table: arguments(
        "this alias db catalog joins ordinality",
        "laterals pivots hints system_time version format pattern when only partition changes rows_from sample indexed",
    ),
    exp.TableAlias: arguments("this columns"),
    exp.ColumnDef: arguments("this", "kind constraints exists position default output"),
    exp.Join: arguments(
        "this on side kind using method", "global_ hint match_condition nearest directed expressions pivots"
    ),
    exp.Lateral: arguments("this view outer alias ordinality", "cross_apply"),
    exp.Unnest: arguments("expressions alias offset", "explode_array"),
    exp.Where: _ONE,
    exp.Group: arguments("expressions", "grouping_sets cube rollup totals", false_counts="all"),
    exp.GroupingSets: _LIST,
    exp.Rollup: _LIST,
    exp.Cube: _LIST,
    exp.Having: _ONE,
    exp.Distinct: arguments("expressions on"),
    exp.Order: arguments("this expressions", "siblings"),
    exp.Ordered: arguments("this desc nulls_first", "with_fill"),
    exp.Limit: arguments("expression", "this offset limit_options expressions"),
    exp.Offset: arguments("expression", "this expressions"),
    exp.Fetch: arguments("direction count limit_options"),
    exp.LimitOptions: arguments("percent rows with_ties"),
    exp.Hint: _LIST,  # PostgreSQL reads hints as comments
}
"""Queries and their clauses."""

EXPRESSIONS: Mapping[type[exp.Expr], Arguments] = {
    exp.Alias: arguments("this alias"),
    exp.Star: arguments("except_ replace rename", "ilike"),
    exp.Identifier: arguments("this quoted", "global_ temporary"),
    exp.Column: arguments("this table db catalog", "join_mark shadow"),
    exp.Dot: _TWO,
    exp.Literal: arguments("this is_string"),
    exp.ByteString: arguments("this", "is_bytes"),
    exp.RawString: _ONE,
    exp.National: _ONE,
    exp.Null: _NONE,
    exp.Boolean: _ONE,
    exp.Interval: arguments("this unit", "fraction_in_string"),
    exp.Var: _ONE,
    exp.Paren: _ONE,
    exp.Tuple: _LIST,
    exp.Array: arguments("expressions", "bracket_notation struct_name_inheritance value_constructor"),
    exp.Bracket: arguments("this expressions", "offset safe returns_list_for_maps json_access"),
    exp.Slice: arguments("this expression", "step"),
    exp.DataType: arguments("this expressions nested kind", "values nullable collate"),
    exp.DataTypeParam: arguments("this", "expression"),
    exp.Cast: arguments("this to", "format safe action default"),
    exp.Collate: _TWO,
    exp.Case: arguments("this ifs default"),
    exp.If: arguments("this true", "false"),
    exp.Anonymous: arguments("this expressions"),
    exp.Kwarg: _TWO,
    exp.Extract: _TWO,
    exp.AtTimeZone: arguments("this zone"),
    exp.Trim: arguments("this expression position", "collation"),
    exp.Substring: arguments("this start length", "zero_start"),
    exp.StrPosition: arguments("this substr", "position occurrence clamp_position"),
    exp.Overlay: arguments("this expression from_ for_"),
    exp.Neg: _ONE,
    exp.Not: _ONE,
    exp.BitwiseNot: _ONE,
    exp.Sqrt: _ONE,
    exp.Cbrt: _ONE,
    # the parser derives `safe` and `typed` from the dialect, not from the text
    exp.Div: arguments("this expression typed safe"),
    exp.DPipe: arguments("this expression safe"),
    exp.ArrayOverlaps: arguments("this expression", "null_safe"),
    exp.Exists: arguments("this", "expression"),
    exp.Any: _ONE,
    exp.All: _ONE,
    exp.In: arguments("this expressions query", "unnest field is_global"),
    exp.Between: arguments("this low high symmetric"),
    exp.Is: arguments("this expression negate"),
    exp.Like: arguments("this expression negate"),
    exp.ILike: arguments("this expression negate"),
    exp.RegexpLike: arguments("this expression", "flag full_match"),
    exp.RegexpILike: arguments("this expression", "flag"),
    exp.JSON: arguments("this with_ unique"),
    exp.JSONExtract: arguments(
        "this expression",
        "only_json_types expressions variant_extract json_query option quote on_condition requires_json emits",
    ),
    exp.JSONExtractScalar: arguments(
        "this expression", "only_json_types expressions json_type scalar_only json_subtype"
    ),
    exp.JSONObject: _JSON_CLAUSES,
    exp.JSONObjectAgg: _JSON_CLAUSES,
    exp.JSONArray: arguments("expressions null_handling return_type", "strict"),
    exp.JSONArrayAgg: arguments("this null_handling return_type", "order strict"),
    exp.JSONKeyValue: _TWO,
    exp.JSONTable: arguments("this schema path error_handling empty_handling"),
    exp.JSONSchema: _LIST,
    # our own parser adds the last three
    exp.JSONColumnDef: arguments("this kind path nested_schema ordinality format_json exists empty error"),
    exp.GroupConcat: arguments("this separator", "on_overflow"),
    exp.Filter: _TWO,
    exp.WithinGroup: _TWO,
    exp.Window: arguments("this partition_by order spec alias over", "first"),
    exp.WindowSpec: arguments("kind start start_side end end_side exclude"),
    exp.CurrentDate: _ONE,
    exp.CurrentTimestamp: arguments("this", "sysdate"),
    exp.Localtimestamp: _ONE,
    exp.CurrentUser: _ONE,
    exp.CurrentSchema: _ONE,
    **dict.fromkeys((exp.CurrentRole, exp.SessionUser, exp.CurrentCatalog), _NONE),
    **dict.fromkeys(
        (
            exp.Add, exp.Sub, exp.Mul, exp.Mod, exp.Pow, exp.And, exp.Or, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT,
            exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.SimilarTo, exp.Escape, exp.StartsWith, exp.ArrayContainsAll,
            exp.ArrayContainedBy, exp.JSONBExtract, exp.JSONBContainsTopKey, exp.JSONBContainsAnyTopKeys,
            exp.JSONBContainsAllTopKeys,
        ),
        _TWO,
    ),
    **dict.fromkeys((exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor), arguments("this expression", "padside")),
    **dict.fromkeys(
        (exp.BitwiseLeftShift, exp.BitwiseRightShift), arguments("this expression", "requires_int128")
    ),
    exp.JSONBExtractScalar: arguments("this expression", "json_type"),
}  # fmt: skip
"""Expressions and their parts."""

NODES: Registry = {**QUERIES, **EXPRESSIONS}

OWN = {exp.JSONColumnDef: {"exists", "empty", "error"}}
"""Arguments that only our own parser gives to a node."""

_NAMES: dict[tuple[type[exp.Expr], str], str] = {
    (exp.Select, "into"): "SELECT INTO",
    (exp.Select, "kind"): "SELECT AS",
    (exp.With, "search"): "SEARCH",
    (exp.With, "cycle"): "CYCLE",
    (exp.Group, "grouping_sets"): "GROUPING SETS after the keys",
    (exp.Group, "rollup"): "WITH ROLLUP",
    (exp.Group, "cube"): "WITH CUBE",
    (exp.Group, "totals"): "WITH TOTALS",
    (exp.ColumnDef, "kind"): "a column definition list",
    (exp.Limit, "limit_options"): "LIMIT ... PERCENT or WITH TIES",
    (exp.Limit, "expressions"): "LIMIT ... BY",
    (exp.Limit, "this"): "LIMIT after a query in parentheses here",
    (exp.Values, "order"): "VALUES ... ORDER BY",
    (exp.Values, "limit"): "VALUES ... LIMIT",
    (exp.Values, "offset"): "VALUES ... OFFSET",
}
_CLAUSES = {
    "locks": "FOR UPDATE",
    "sample": "TABLESAMPLE",
    "by_name": "BY NAME",
    "pivots": "PIVOT",
    "connect": "CONNECT BY",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "sort": "SORT BY",
    "match": "MATCH_RECOGNIZE",
    "rows_from": "ROWS FROM",
}
_HINTS = {
    "SEARCH": "add a column with the path or the depth to the recursion, and sort by it when you read the table",
    "CYCLE": "add a column with the path to the recursion, and stop where the path already contains the row",
    "GROUP BY DISTINCT": "write GROUPING SETS with each set once",
    "VALUES ... ORDER BY": "write SELECT ... FROM (VALUES ...)",
    "VALUES ... LIMIT": "write SELECT ... FROM (VALUES ...)",
}


def refuse_arguments(tree: exp.Expr, sql: str) -> None:
    """Refuse the clauses of a text that the translation does not look at.

    Raises:
        MillstreamError: UNSUPPORTED_SQL.
    """
    for found in unhandled(tree, NODES):
        name = _name(found)
        raise refused(name, found.place, sql, _HINTS.get(name))


def refuse_nodes(tree: exp.Expr, sql: str) -> None:
    """Refuse nodes of other kinds that remain after a text has been translated: no rule has looked at them.

    Raises:
        MillstreamError: UNSUPPORTED_SQL.
    """
    for node in tree.walk():
        if type(node) not in NODES:
            raise refused(node.sql(dialect="postgres", comments=False)[:60], node, sql)


def _name(found: Unhandled) -> str:
    kind, argument = type(found.node), found.argument
    if (kind, argument) == (exp.Group, "all"):
        return "GROUP BY ALL" if found.value else "GROUP BY DISTINCT"
    if (kind, argument) == (exp.With, "search") and isinstance(found.value, exp.RecursiveWithSearch):
        return "CYCLE" if str(found.value.args.get("kind")).upper() == "CYCLE" else "SEARCH"
    known = _NAMES.get((kind, argument)) or _CLAUSES.get(argument)
    if known is not None:
        return known
    word = argument.strip("_").replace("_", " ").upper()
    if isinstance(found.node, exp.Query | exp.Table):
        return word
    text = found.node.sql(dialect="postgres", comments=False)
    return f"{word} of {text if len(text) <= 60 else f'{text[:57]}...'}"
