"""Asks Spark about queries: names, types, determinism, and whether our printed SQL means what the user wrote.

Analysing a query starts no job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from sqlglot import exp

from millstream.engine.spark_errors import first_line
from millstream.errors import Code, MillstreamError, Position
from millstream.naming import quote
from millstream.ops import Column
from millstream.ops.render import to_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_NUMBER = re.compile(r"#\d+L?|(?<=CTERelationDef )\d+|(?<=CTERelationRef )\d+")
_CODES = {
    "TABLE_OR_VIEW_NOT_FOUND": Code.UNKNOWN_TABLE,
    "UNRESOLVED_COLUMN": Code.UNKNOWN_COLUMN,
    "PARSE_SYNTAX_ERROR": Code.SYNTAX_ERROR,
    "PARSE_EMPTY_STATEMENT": Code.SYNTAX_ERROR,
}


class SparkAnalyzer:
    """Answers the front end's questions by asking Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def describe(self, query: exp.Query) -> tuple[Column, ...]:
        """The names and types of a query's columns."""
        return self.describe_text(to_sql(query))

    def describe_text(self, text: str) -> tuple[Column, ...]:
        """The names and types of a query's columns.

        Raises:
            MillstreamError: what is wrong with the query, and where.
        """
        try:
            schema = self._spark.sql(text).schema
        except (AnalysisException, ParseException) as e:
            raise explained(e, text) from e
        except Py4JJavaError as e:
            # Spark 4.2 itself breaks where the step of a recursion has wider types than its base
            raise MillstreamError(
                Code.QUERY_INVALID,
                f"Spark cannot analyse the query: {first_line(e)}",
                sql=text,
                hint="in WITH RECURSIVE, cast the columns of base and step to the same types",
            ) from e
        return tuple(Column(f.name, f.dataType.simpleString()) for f in schema.fields)

    def schema(self, columns: Sequence[Column]) -> StructType:
        """Spark's types from their texts."""
        items = ", ".join(f"CAST(NULL AS {c.type}) AS {quote(c.name)}" for c in columns)
        return self._spark.sql(f"SELECT {items}").schema

    def names(self, text: str) -> tuple[str, ...] | None:
        """Spark's names for the columns of a query; None if Spark cannot analyse the text alone."""
        try:
            return tuple(self._spark.sql(text).columns)
        except (AnalysisException, ParseException):
            return None

    def analysed(self, text: str) -> str:
        """Spark's analysed plan of a valid query, before optimisation."""
        plan = str(self._spark.sql(f"EXPLAIN EXTENDED {text}").collect()[0][0])
        return plan.split("== Analyzed Logical Plan ==")[1].split("== Optimized Logical Plan ==")[0]

    def is_scalar(self, query: exp.Query, expressions: Sequence[exp.Expression]) -> bool:
        """Whether the expressions are deterministic functions of one row of the query.

        A join condition allows nothing else: neither aggregates, windows nor generators, nor a non-deterministic call.
        """
        condition = exp.or_(*(exp.Is(this=exp.paren(e.copy()), expression=exp.Null()) for e in expressions))
        other = exp.select("1 AS __ms_one").subquery("b")
        probe = exp.select("1").from_(query.subquery("a")).join(exp.Join(this=other, on=condition))
        try:
            self._spark.sql(to_sql(probe)).schema  # noqa: B018 - being analysed is the point
        except AnalysisException:
            return False
        return True

    def plan_alike(self, one: str, other: str, columns: int, *, optimised: bool = False) -> bool:
        """Whether Spark's plans of two queries with the same number of columns are equal, so that they mean the same.

        Args:
            optimised: compare the optimised plans: the optimiser gives one name to a function that has several.
        """
        plan = self._plan(one, columns, optimised)
        return plan is not None and plan == self._plan(other, columns, optimised)

    def _plan(self, text: str, columns: int, optimised: bool) -> str | None:
        # column names that Spark makes up from an expression's text are not part of the meaning
        names = ", ".join(f"c{i}" for i in range(columns))
        try:
            plan = str(self._spark.sql(f"EXPLAIN EXTENDED SELECT * FROM ({text}\n) AS q({names})").collect()[0][0])
        except PySparkException:
            return None
        if "== Optimized Logical Plan ==" not in plan:
            return None  # Spark prints the error in place of the plan
        analysed, rest = plan.split("== Analyzed Logical Plan ==")[1].split("== Optimized Logical Plan ==")
        wanted = rest.split("== Physical Plan ==")[0] if optimised else analysed
        # `FROM a, b` is printed as a CROSS JOIN, NAMED_STRUCT('n', x) as STRUCT(x AS n)
        return _numbered(wanted).replace("Join Cross", "Join Inner").replace("named_struct(", "struct(")


def _numbered(plan: str) -> str:
    """A plan in which the numbers of expressions and CTEs are replaced by their order."""
    numbers: dict[str, str] = {}
    return _NUMBER.sub(lambda match: numbers.setdefault(match.group(0), f"#{len(numbers)}"), plan)


def explained(error: Exception, text: str) -> MillstreamError:
    """Spark's error about a query, as a coded error with its position in the text."""
    if not isinstance(error, PySparkException):
        return MillstreamError(Code.QUERY_INVALID, first_line(error), sql=text)
    condition = (error.getCondition() or "").split(".")[0]
    message = str(error).strip().split("\n")[0]
    message = re.sub(r"^\[[A-Z_.]+\] ", "", message)
    message = message.split("; line ")[0].split(" SQLSTATE:")[0]
    return MillstreamError(
        _CODES.get(condition, Code.QUERY_INVALID),
        message,
        position=_position(error, text),
        sql=text,
        hint=_hint(condition),
    )


def _hint(condition: str) -> str | None:
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        return "create it first, or check the spelling"
    return None


def _position(error: PySparkException, text: str) -> Position | None:
    if found := re.search(r"line (\d+)[,)]? pos(?:ition)? (\d+)", str(error)):
        return Position(int(found.group(1)), int(found.group(2)) + 1)
    for context in error.getQueryContext() or ():
        start = context.startIndex()
        if start >= 0:
            line = text.count("\n", 0, start) + 1
            return Position(line, start - (text.rfind("\n", 0, start) + 1) + 1, context.stopIndex() - start + 1)
    return None
