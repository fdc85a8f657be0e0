"""The window that follows OVER: PARTITION BY, ORDER BY and frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from millstream.sql.postgres.names import folded
from millstream.sql.postgres.ordering import Key, keys_of
from millstream.sql.postgres.refusals import RefusalError, refuse_unequal, wrong
from millstream.sql.postgres.spark_builders import NULL, Node, fn, number, whole_number

if TYPE_CHECKING:
    from millstream.sql.postgres.expressions import Expressions


@dataclass(frozen=True, slots=True)
class Over:
    """The window of a call."""

    partition: tuple[Node, ...]
    order: tuple[Node, ...]
    frame: exp.WindowSpec | None

    def of(self, node: Node) -> exp.Window:
        """`node OVER (PARTITION BY ... ORDER BY ... frame)`."""
        order = exp.Order(expressions=list(self.order)) if self.order else None
        return exp.Window(this=node, partition_by=list(self.partition), order=order, spec=self.frame, over="OVER")


def over(self: Expressions, node: exp.Window, *, needs_order: bool) -> tuple[Over, list[Key]]:
    """The window that follows OVER, and its sort keys; named windows are expanded.

    Args:
        needs_order: Spark requires an ORDER BY here; without one, all rows are equal.
    """
    partition, order, spec = _written_out(self, node)
    values = [self.scalar(p) for p in partition]
    refuse_unequal((v.type for v in values), "PARTITION BY")
    keys = keys_of(self, order.expressions) if order is not None else []
    listed: list[Node] = [key.tree for key in keys]
    if not keys and needs_order:
        listed = [NULL]
    frame = _frame(self, spec) if spec is not None else None
    return Over(tuple(v.tree for v in values), tuple(listed), frame), keys


def _written_out(self: Expressions, node: exp.Window) -> tuple[list[exp.Expr], exp.Order | None, exp.WindowSpec | None]:
    """PARTITION BY, ORDER BY and frame of a window, its own or those of the named windows it is based on."""
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


def _frame(self: Expressions, spec: exp.WindowSpec) -> exp.WindowSpec:
    kind = spec.args.get("kind")
    if kind not in {"ROWS", "RANGE"}:
        raise RefusalError(f"a frame of {kind}", "use ROWS or RANGE")
    if spec.args.get("exclude"):
        raise RefusalError(f"EXCLUDE {spec.args['exclude'].name} of a frame")
    start, start_side = _bound(self, spec.args.get("start"), spec.args.get("start_side"))
    end = spec.args.get("end")
    last, last_side = _bound(self, end, spec.args.get("end_side")) if end is not None else (_CURRENT_ROW, None)
    return exp.WindowSpec(kind=kind, start=start, start_side=start_side, end=last, end_side=last_side)


_CURRENT_ROW = "CURRENT ROW"


def _bound(self: Expressions, bound: object, side: object) -> tuple[Node | str, object]:
    if isinstance(bound, str):
        return bound, None if bound == _CURRENT_ROW else side
    if not isinstance(bound, exp.Expr):
        raise RefusalError("this bound of a frame")
    value = self.translate(bound)
    if value.interval is not None:
        by = value.interval
        months, days, micros = (whole_number(part) for part in (by.months, by.days, by.micros))
        if months != 0 or days is None or micros is None:
            raise RefusalError("a frame of months", "use days")
        return fn("MAKE_DT_INTERVAL", number(days), 0, 0, number(str(micros / 1_000_000))), side
    if not isinstance(value.constant, int):
        raise RefusalError("a bound of a frame that is not a constant")
    return value.tree, side
