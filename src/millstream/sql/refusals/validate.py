"""Checks on the lowered tree: every expression is a deterministic function of one row, every column comparable.

Spark itself decides: it does not allow an aggregate, a generator or a non-deterministic function in a join condition.
So putting an expression into such a condition detects them, even for functions that are unknown here.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from millstream.errors import Code, MillstreamError
from millstream.ops import Aggregate, Relation, Table, Window, walk
from millstream.ops.clock import reads_clock
from millstream.sql.refusals.unsupported import unsupported, volatile
from millstream.sql.result_types import empty
from millstream.sql.sources import Analyzer
from millstream.sql.window_calls import scalar_parts

# Spark treats these as deterministic, because they are fixed within one query.
CURRENT_TIME = (
    exp.CurrentDate,
    exp.CurrentDatetime,
    exp.CurrentTime,
    exp.CurrentTimestamp,
    exp.Localtime,
    exp.Localtimestamp,
)
CURRENT_TIME_NAMES = {
    "curdate",
    "current_date",
    "current_time",
    "current_timestamp",
    "localtimestamp",
    "now",
    "unix_timestamp",
}
# Functions of the session, of chance, or of the place that a row is read from, not of the row.
CONTEXT_NAMES = {
    "current_user",
    "user",
    "session_user",
    "current_catalog",
    "current_database",
    "current_schema",
    "current_timezone",
    "version",
    "input_file_name",
    "input_file_block_start",
    "input_file_block_length",
    "monotonically_increasing_id",
    "spark_partition_id",
    "uuid",
    "rand",
    "random",
    "randn",
    "randstr",
    "uniform",
    "shuffle",
    "reflect",
    "java_method",
}


# Functions of the current time that are not computed from the data timestamp of a refresh.
_UNBOUND_TIME = (exp.CurrentDatetime, exp.CurrentTime, exp.Localtime)


def volatile_call(expression: exp.Expr) -> exp.Expr | None:
    """The first call, by name, whose result depends on more than its arguments and the time of a refresh."""
    return next((n for n in expression.walk() if isinstance(n, _UNBOUND_TIME) or _name(n) in CONTEXT_NAMES), None)


def is_current_time(node: exp.Expr) -> bool:
    """Whether a node is a function of the current time."""
    if isinstance(node, CURRENT_TIME):
        return True
    name = _name(node)
    return name in CURRENT_TIME_NAMES and (name != "unix_timestamp" or not node.args.get("this"))


def validate(relation: Relation, sql: str, analyzer: Analyzer) -> None:
    """Refuse expressions and types for which a delta would be wrong.

    Raises:
        MillstreamError: VOLATILE_FUNCTION, UNSUPPORTED_SQL or UNSUPPORTED_TYPE.
    """
    for node in walk(relation):
        if isinstance(node, Aggregate | Window) and any(reads_clock(i.expression) for i in node.calls):
            what, hint = "the current time as a parameter of an aggregate or window function", "write a constant"
            raise unsupported(what, node.calls[0].expression, sql, hint)
        calling = [e for e in _expressions(node) if isinstance(e, exp.Expression) and e.find(exp.Func)]
        if calling and not analyzer.is_scalar(_inputs(node), calling):
            culprit = next((e for e in calling if not analyzer.is_scalar(_inputs(node), [e])), calling[0])
            call = culprit.find(exp.Func) or culprit
            raise volatile(call.sql(dialect="spark"), call, sql)
    for column in relation.columns:
        if "map<" in column.type or column.type in {"variant", "void"}:
            raise MillstreamError(
                Code.UNSUPPORTED_TYPE,
                f"the column {column.name} has the type {column.type}, whose values cannot be compared",
                hint="cast it to STRING, or use REFRESH MODE FULL",
            )


def _inputs(node: Relation) -> exp.Query:
    """An empty relation with all columns that an operator's expressions may refer to."""
    columns = tuple(c for child in node.children for c in child.columns)
    query: exp.Query = empty(Table("inputs", columns)).this
    return query


def _expressions(node: Relation) -> Iterator[exp.Expr]:
    yield from node.expressions
    if isinstance(node, Window):
        for item in node.calls:
            assert isinstance(item.expression, exp.Window)
            yield from scalar_parts(item.expression)


def _name(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""
