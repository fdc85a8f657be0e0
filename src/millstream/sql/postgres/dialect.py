"""PostgreSQL's text to a tree in which every call still has the name and the arguments that were written.

sqlglot's own PostgreSQL parser already maps many functions to nodes of a common model (`DIV`, `TO_CHAR`, `UNNEST`,
array subscripts from 0, JSON paths): its tree no longer shows what was written. Here a function is an `Anonymous` call,
except the few with special syntax.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.postgres import PostgresParser

from millstream.errors import Code, MillstreamError, Position
from millstream.sql.parse import syntax_error

_OWN_SYNTAX = {"CAST", "EXTRACT", "JSON_OBJECT", "JSON_OBJECTAGG", "JSON_TABLE", "OVERLAY", "POSITION", "TRIM"}
_OWN_SYNTAX |= {"STRING_AGG", "SUBSTRING"}
_UNITS = {"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"}


class _Postgres(Postgres):
    """PostgreSQL as it is written."""

    INDEX_OFFSET = 0  # leave subscripts as they are

    class Tokenizer(Postgres.Tokenizer):
        """Also knows CURRENT_ROLE."""

        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **Postgres.Tokenizer.KEYWORDS,
            "CURRENT_ROLE": TokenType.CURRENT_ROLE,
        }

    class Parser(PostgresParser):
        """Knows no function by name."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            **{name: parse for name, parse in PostgresParser.FUNCTION_PARSERS.items() if name in _OWN_SYNTAX},
            "JSON_ARRAY": lambda self: self._parse_json_array(),
            "JSON_ARRAYAGG": lambda self: self._parse_json_arrayagg(),
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: PostgresParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("ANY", "CASE")
        }
        # these bind less tightly than + and -: ~ i + 1 is ~ (i + 1)
        UNARY_PARSERS: ClassVar[dict[TokenType, Any]] = {
            **PostgresParser.UNARY_PARSERS,
            TokenType.RLIKE: lambda self: self.expression(exp.BitwiseNot(this=self._parse_term())),
            TokenType.PIPE_SLASH: lambda self: self.expression(exp.Sqrt(this=self._parse_term())),
            TokenType.DPIPE_SLASH: lambda self: self.expression(exp.Cbrt(this=self._parse_term())),
        }
        # the arrow in `f(j -> 'a')` is json's operator, not a lambda; `name => value` names an argument
        LAMBDAS: ClassVar[dict[TokenType, Any]] = {TokenType.FARROW: PostgresParser.LAMBDAS[TokenType.FARROW]}
        JSON_OPERATORS: ClassVar[dict[TokenType, Any]] = {
            **PostgresParser.JSON_OPERATORS,
            TokenType.ARROW: lambda _, this, path: exp.JSONExtract(this=this, expression=path),
            TokenType.DARROW: lambda _, this, path: exp.JSONExtractScalar(this=this, expression=path),
        }

        def _parse_type(self, parse_interval: bool = True, fallback_to_identifier: bool = False) -> exp.Expr | None:
            """`type 'literal'` is a literal: a following `::` or subscript applies to its value.

            sqlglot's own parser applies the `::` to the string first, and the type to the result.
            """
            start = self._index
            if self._curr and self._curr.token_type is not TokenType.INTERVAL:
                type_ = self._parse_types(check_func=True, allow_identifiers=False)
                if isinstance(type_, exp.DataType) and self._match(TokenType.STRING, advance=False):
                    literal = self._parse_primary()
                    return self._parse_column_ops(self.expression(exp.Cast(this=literal, to=type_)))
                self._retreat(start)
            return super()._parse_type(parse_interval, fallback_to_identifier)

        def _parse_interval(
            self, require_interval: bool = True, parse_function_unit: bool = True
        ) -> exp.Add | exp.Interval | None:
            """INTERVAL, a string, perhaps a unit. sqlglot's own parser drops the parts of the string it cannot read."""
            start = self._index
            if not self._match(TokenType.INTERVAL) or not self._match(TokenType.STRING, advance=False):
                self._retreat(start)
                return None
            interval = exp.Interval(this=self._parse_primary())
            if self._curr and self._curr.text.upper() in _UNITS:
                interval.set("unit", exp.var(self._curr.text.upper()))
                self._advance()
            return interval

        def _parse_json_key_value(self) -> exp.JSONKeyValue | None:
            """`key : value` or `key VALUE value`. KEY is not a keyword here, but may be a column's name."""
            key = self._parse_column()
            if not self._match_set((TokenType.COLON, TokenType.COMMA)):
                self._match_text_seq("VALUE")
            value = self._parse_bitwise()
            return self.expression(exp.JSONKeyValue(this=key, expression=value)) if key or value else None

        def _parse_json_array(self) -> exp.JSONArray:
            """The arguments of JSON_ARRAY(value, ... [NULL | ABSENT ON NULL] [RETURNING type])."""
            values = self._parse_csv(self._parse_disjunction)
            return self.expression(exp.JSONArray(expressions=values, **self._parse_json_clauses()))

        def _parse_json_arrayagg(self) -> exp.JSONArrayAgg:
            """The arguments of JSON_ARRAYAGG(value [ORDER BY ...] [NULL | ABSENT ON NULL] [RETURNING type])."""
            value = self._parse_order(self._parse_disjunction())
            return self.expression(exp.JSONArrayAgg(this=value, **self._parse_json_clauses()))

        def _parse_json_column_def(self) -> exp.JSONColumnDef:
            """A column of JSON_TABLE: `name type [EXISTS] [FORMAT JSON] [PATH '...'] [... ON EMPTY] [... ON ERROR]`."""
            if self._match_text_seq("NESTED", advance=False):
                return super()._parse_json_column_def()
            name = self._parse_id_var()
            ordinality = self._match_pair(TokenType.FOR, TokenType.ORDINALITY)
            column = exp.JSONColumnDef(
                this=name, ordinality=ordinality, kind=self._parse_types(allow_identifiers=False)
            )
            column.set("exists", self._match(TokenType.EXISTS))
            column.set("format_json", self._match_text_seq("FORMAT", "JSON"))
            column.set("path", self._match_text_seq("PATH") and self._parse_string())
            for event in ("EMPTY", "ERROR"):
                column.set(event.lower(), self._parse_on_handling(event, "NULL", "ERROR", "TRUE", "FALSE", "UNKNOWN"))
            return column

        def _parse_json_clauses(self) -> dict[str, Any]:
            nulls = self._parse_on_handling("NULL", "NULL", "ABSENT")
            return {
                "null_handling": nulls,
                "return_type": self._parse_type() if self._match_text_seq("RETURNING") else None,
            }


def tokens_of(text: str) -> list[sqlglot.Token]:
    """The tokens of a text: words, literals and symbols."""
    return list(_Postgres().tokenize(text))


def parse_postgres(text: str) -> exp.Query:
    """Parse one SELECT, WITH, VALUES or set operation.

    Raises:
        MillstreamError: SYNTAX_ERROR with the position.
    """
    dialect = _Postgres()
    try:
        tokens = dialect.tokenize(text)
        _refuse_glued(tokens, text)
        trees = [t for t in dialect.parser().parse(tokens, text) if t is not None]
    except (ParseError, TokenError) as e:
        raise syntax_error(e, text) from e
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise MillstreamError(
            Code.SYNTAX_ERROR,
            "a stream table is defined by exactly one SELECT",
            sql=text,
            hint="write SELECT ... or WITH ...",
        )
    return trees[0]


def _refuse_glued(tokens: list[sqlglot.Token], text: str) -> None:
    """Refuse `1_000`, which the tokenizer reads as `1 AS _000`."""
    for one, two in itertools.pairwise(tokens):
        if one.token_type is TokenType.NUMBER and two.token_type is TokenType.VAR and two.start == one.end + 1:
            raise MillstreamError(
                Code.SYNTAX_ERROR,
                f"cannot parse the query: {text[one.start : two.end + 1]} is not a number",
                position=Position(one.line, max(1, one.col - (one.end - one.start)), two.end - one.start + 1),
                sql=text,
                hint="write numbers without underscores",
            )
