"""What stands behind OVER."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres.names import folded
from millstream.sql.postgres.ordering import Key, keys_of, ordered
from millstream.sql.postgres.refusals import RefusalError, refuse_unequal, wrong

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions


def over(self: Expressions, node: exp.Window, *, needs_order: bool) -> tuple[str, list[Key]]:
    """`(PARTITION BY ... ORDER BY ... frame)`, and the keys of its order; named windows are written out.

    Args:
        needs_order: Spark wants an ORDER BY here; without one all rows are equal.
    """
    partition, order, spec = _written_out(self, node)
    parts = []
    if partition:
        values = [self.scalar(p) for p in partition]
        refuse_unequal((v.type for v in values), "PARTITION BY")
        parts.append("PARTITION BY " + ", ".join(v.sql for v in values))
    keys = keys_of(self, order.expressions) if order is not None else []
    if keys:
        parts.append("ORDER BY " + ordered(keys))
    elif needs_order:
        parts.append("ORDER BY NULL")
    if spec is not None:
        parts.append(_frame(self, spec))
    return f"({' '.join(parts)})", keys


def _written_out(self: Expressions, node: exp.Window) -> tuple[list[exp.Expr], exp.Order | None, exp.WindowSpec | None]:
    """PARTITION BY, ORDER BY and frame of a window, whichever of the windows it is built on has them."""
    partition: list[exp.Expr] = []
    order, spec = None, None
    passed: set[str] = set()
    while True:
        partition = list(node.args.get("partition_by") or []) + partition
        order, spec = node.args.get("order") or order, node.args.get("spec") or spec
        name = node.args.get("alias")
        if name is None:
            return partition, order, spec
        base = self.windows.get(folded(name))
        if base is None or folded(name) in passed:
            raise wrong(f"there is no window {name.name}", node, self.queries.sql)
        passed.add(folded(name))
        node = base


def _frame(self: Expressions, spec: exp.WindowSpec) -> str:
    kind = spec.args.get("kind")
    if kind not in {"ROWS", "RANGE"}:
        raise RefusalError(f"a frame of {kind}", "use ROWS or RANGE")
    if spec.args.get("exclude"):
        raise RefusalError(f"EXCLUDE {spec.args['exclude'].name} of a frame")
    start = _bound(self, spec.args.get("start"), spec.args.get("start_side"))
    end = spec.args.get("end")
    last = _bound(self, end, spec.args.get("end_side")) if end is not None else "CURRENT ROW"
    return f"{kind} BETWEEN {start} AND {last}"


def _bound(self: Expressions, bound: object, side: object) -> str:
    if isinstance(bound, str):
        return bound if bound == "CURRENT ROW" else f"{bound} {side}"
    if not isinstance(bound, exp.Expr):
        raise RefusalError("this bound of a frame")
    value = self.translate(bound)
    if value.interval is not None:
        by = value.interval
        if by.months != "0" or not (by.days + by.micros).replace("-", "").isdigit():
            raise RefusalError("a frame of months", "use days")
        return f"MAKE_DT_INTERVAL({by.days}, 0, 0, {int(by.micros) / 1_000_000}) {side}"
    if not isinstance(value.constant, int):
        raise RefusalError("a bound of a frame that is not a constant")
    return f"{value.sql} {side}"
