"""The parts of a window call: its function, and the expressions that are computed for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

_WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_Rewrite = Callable[[exp.Expr], exp.Expr]


def function_of(window: exp.Window) -> exp.Expr:
    """The function that is called, without FILTER and IGNORE NULLS."""
    function: exp.Expr = window.this
    while isinstance(function, _WRAPPERS):
        function = function.this
    return function


def scalar_parts(window: exp.Window) -> Iterator[exp.Expr]:
    """The expressions that are computed for each row: arguments, FILTER, PARTITION BY, ORDER BY."""
    for node in window.this.walk():
        if isinstance(node, exp.Filter):
            yield node.expression.this
        elif isinstance(node, exp.WithinGroup):
            yield from (o.this for o in node.expression.expressions)
    yield from function_of(window).iter_expressions()
    yield from window.args.get("partition_by") or ()
    yield from (o.this for o in order_of(window))


def order_of(window: exp.Window) -> list[exp.Ordered]:
    """The ORDER BY."""
    order = window.args.get("order")
    return order.expressions if order else []


def map_parts(window: exp.Window, rewrite: _Rewrite) -> exp.Window:
    """The same call over rewritten expressions."""
    result = exp.Window(
        this=_mapped_call(window.this, rewrite),
        partition_by=[rewrite(e) for e in window.args.get("partition_by") or ()],
        over=window.args.get("over"),
    )
    if ordered := order_of(window):
        keys = [exp.Ordered(**{**o.args, "this": rewrite(o.this)}) for o in ordered]
        result.set("order", exp.Order(expressions=keys))
    if spec := window.args.get("spec"):
        result.set("spec", spec.copy())
    return result


def _mapped_call(call: exp.Expr, rewrite: _Rewrite) -> exp.Expr:
    if isinstance(call, exp.Filter):
        condition = exp.Where(this=rewrite(call.expression.this))
        return exp.Filter(this=_mapped_call(call.this, rewrite), expression=condition)
    if isinstance(call, exp.WithinGroup):
        keys = [exp.Ordered(**{**o.args, "this": rewrite(o.this)}) for o in call.expression.expressions]
        return exp.WithinGroup(this=_mapped_call(call.this, rewrite), expression=exp.Order(expressions=keys))
    if isinstance(call, _WRAPPERS):
        return type(call)(this=_mapped_call(call.this, rewrite))
    result = call.copy()
    for name, value in list(call.args.items()):
        if isinstance(value, exp.Expr):
            result.set(name, value if isinstance(value, exp.Star) else rewrite(value))
        elif isinstance(value, list):
            result.set(name, [rewrite(v) if isinstance(v, exp.Expr) else v for v in value])
    return result
