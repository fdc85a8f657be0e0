"""Queries that every refresh mode refuses: recomputing them would not make sense either."""

from __future__ import annotations

from sqlglot import exp

from millstream.errors import Code, MillstreamError, Position
from millstream.sql.parse import position_of, position_of_words
from millstream.sql.refusals.clock_literals import clock_literal_error, is_clock_literal
from millstream.sql.refusals.suggestions import SUGGESTIONS


def refuse_in_every_mode(tree: exp.Query, sql: str) -> None:
    """Refuse locks, random samples, fixed versions of tables, and words like 'today' for a date.

    Raises:
        MillstreamError: UNSUPPORTED_SQL or VOLATILE_FUNCTION.
    """
    for node in tree.walk():
        if locks := node.args.get("locks"):
            position = position_of_words("FOR UPDATE", sql) or position_of_words("FOR", sql) or position_of(locks[0])
            raise _refusal("a stream table's query cannot lock rows", "leave FOR UPDATE out", position, sql)
        if sample := node.args.get("sample"):
            position = position_of_words("TABLESAMPLE", sql) or position_of(sample)
            raise _refusal("TABLESAMPLE returns other rows each time", SUGGESTIONS["TABLESAMPLE"], position, sql)
        if isinstance(node, exp.Table) and (node.args.get("version") or node.args.get("when")):
            message = "a stream table cannot read a fixed version of a table"
            hint = "read the table as it is, or copy the version you want into a table"
            raise _refusal(message, hint, position_of(node), sql)
        if is_clock_literal(node):
            raise clock_literal_error(node.this.name, sql, node)


def _refusal(message: str, hint: str, position: Position | None, sql: str) -> MillstreamError:
    return MillstreamError(Code.UNSUPPORTED_SQL, message, position=position, sql=sql, hint=hint)
