"""Give rows that an ORDER BY leaves equal one fixed order, so that every evaluation of a window gives the same result.

The order continues with all other columns of the rows. Rows that are equal in these as well are the same row twice, so
that it makes no difference which of them is first. This runs after unused columns are dropped, and does not change
functions whose result is the same for all equal rows (RANK, sums over a RANGE).
"""

from __future__ import annotations

from sqlglot import exp

from millstream.errors import Code, MillstreamError
from millstream.ops import Column, Item, Relation, Window, transform
from millstream.ops.expressions import col
from millstream.sql.lowering.windows import ORDERED_BY_ROW, frame_ends, frame_kind, is_open
from millstream.sql.window_calls import function_of, order_of

_WHOLE = {"start": "UNBOUNDED", "start_side": "PRECEDING", "end": "UNBOUNDED", "end_side": "FOLLOWING"}


def fix_order(relation: Relation) -> Relation:
    """The same query with a fixed order for window calls whose result is open."""

    def fixed(node: Relation) -> Relation:
        if not isinstance(node, Window):
            return node
        return Window(node.input, node.partition, tuple(_fixed(item, node.input) for item in node.calls))

    return transform(relation, fixed)


def _fixed(item: Item, rows: Relation) -> Item:
    window = item.expression
    assert isinstance(window, exp.Window)
    if not is_open(window):
        return item
    window = window.copy()
    order, keys = order_of(window), window.args.get("partition_by") or []
    if _ends_among_equals(window):
        # all equal rows are in the frame: the last of them is the last of those with the same keys
        keys, order = [*keys, *(o.this for o in order)], []
        window.set("partition_by", [k.copy() for k in keys])
    decided = {e.name for e in (*keys, *(o.this for o in order)) if isinstance(e, exp.Column)}
    more = [exp.Ordered(this=col(c.name), nulls_first=True) for c in rows.columns if c.name not in decided]
    for column in rows.columns:
        _require_order(column)
    if not order and not isinstance(function_of(window), ORDERED_BY_ROW) and frame_kind(window) != "ROWS":
        window.set("spec", exp.WindowSpec(kind="ROWS", **_WHOLE))
    if order or more:
        window.set("order", exp.Order(expressions=[*(o.copy() for o in order), *more]))
    return Item(window, item.column)


def _ends_among_equals(window: exp.Window) -> bool:
    is_last = isinstance(function_of(window), exp.LastValue)
    return is_last and frame_kind(window) != "ROWS" and frame_ends(window)[1] == "CURRENT ROW"


def _require_order(column: Column) -> None:
    if "map<" in column.type or "variant" in column.type:
        raise MillstreamError(
            Code.UNSUPPORTED_TYPE,
            f"rows with a column of the type {column.type} have no order, which a window function needs",
            hint="leave the column out, or cast it to STRING",
        )
