"""The ranges that users have declared for columns of `numeric`, whose own type does not limit them.

They are part of the state of an attached database, since all dependents of a table share its mirror.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.catalog.attached import AttachedDatabase
from millstream.errors import Code, MillstreamError
from millstream.naming import postgres_name

DEFAULT = "default"
"""The value that removes a declaration."""

_MAX_PRECISION = 38
_PART = r'(?:"(?:[^"]|"")+"|[^\s."]+)'
_NAME = re.compile(rf"\s*({_PART})\.({_PART})\.({_PART})\s*")
_TYPE = re.compile(r"\s*(?:decimal|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)\s*", re.IGNORECASE)
_FORM = "write schema.table.column, e.g. public.orders.price, and decimal(p,s) with 1 <= p <= 38 and 0 <= s <= p"


@dataclass(frozen=True, slots=True, order=True)
class RangedColumn:
    """A column of a database, by PostgreSQL's own names."""

    schema: str
    table: str
    column: str

    @classmethod
    def parse(cls, text: str) -> RangedColumn:
        """A name as it is written in SQL: lower case unless it is quoted.

        >>> RangedColumn.parse('public.orders."Unit Price"').column
        'Unit Price'

        Raises:
            MillstreamError: NAME_INVALID.
        """
        found = _NAME.fullmatch(text)
        if found is None:
            raise MillstreamError(Code.NAME_INVALID, f"{text!r} does not name a column", hint=_FORM)
        schema, table, column = (
            part[1:-1].replace('""', '"') if part.startswith('"') else part.lower() for part in found.groups()
        )
        return cls(schema, table, column)

    def __str__(self) -> str:
        """The name in the form that `parse` reads."""
        return postgres_name(self.schema, self.table, self.column)


@dataclass(frozen=True, slots=True)
class NumericRanges:
    """The Spark types of columns, `decimal(p,s)`."""

    types: Mapping[RangedColumn, str]

    @classmethod
    def of(cls, database: AttachedDatabase) -> NumericRanges:
        """The ranges of a database."""
        return cls({RangedColumn(*names): type_ for *names, type_ in database.state.numeric})

    def dump(self) -> tuple[tuple[str, str, str, str], ...]:
        """For the state of a database."""
        return tuple((c.schema, c.table, c.column, type_) for c, type_ in sorted(self.types.items()))

    def of_table(self, schema: str, table: str) -> dict[str, str]:
        """The ranges of one table, by column."""
        return {c.column: type_ for c, type_ in self.types.items() if (c.schema, c.table) == (schema, table)}

    def changed(self, given: Mapping[str, str]) -> NumericRanges:
        """The ranges with added or replaced declarations; `default` removes one.

        Raises:
            MillstreamError: NAME_INVALID, SETTING_INVALID.
        """
        types = dict(self.types)
        for name, text in given.items():
            column = RangedColumn.parse(name)
            if text.strip().lower() == DEFAULT:
                types.pop(column, None)
            else:
                types[column] = _decimal(column, text)
        return NumericRanges(types)

    def __str__(self) -> str:
        return ", ".join(f"{column} as {type_}" for column, type_ in sorted(self.types.items()))


def _decimal(column: RangedColumn, text: str) -> str:
    found = _TYPE.fullmatch(text)
    precision, scale = (int(found[1]), int(found[2] or 0)) if found is not None else (0, 0)
    if not (1 <= precision <= _MAX_PRECISION and 0 <= scale <= precision):
        raise MillstreamError(Code.SETTING_INVALID, f"{text!r} is not a range for {column}", hint=_FORM)
    return f"decimal({precision},{scale})"
