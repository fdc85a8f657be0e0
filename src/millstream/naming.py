"""Every reserved name, and how names are split and quoted: once.

Hidden columns start with `__ms_`; a user's column may not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream.errors import Code, MillstreamError

RESERVED_PREFIX = "__ms_"

WEIGHT = "__ms_w"  # how often a row of a Z-set counts; negative where it is taken away
FILE = "__ms_file"  # the data file a stored row lies in ...
ROW = "__ms_row"  # ... and its position there
VISIBLE = "__ms_visible"  # false for a group that HAVING hides
RECURSION = "__ms_recursion"  # the source by which the step of a recursion reads its rows; numbered from the second on
CLOCK = "__ms_clock"  # the input that says what time it is, of a stage whose query asks for it
GROUP_ROWS = "__ms_rows"  # how many input rows a group has

DEFAULT_SCHEMA = "default"

_PART = re.compile(r"[^\W\d]\w*\Z")


def quote(identifier: str) -> str:
    """`identifier` as Spark quotes it.

    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + identifier.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A lake object's name; names differ by more than their case."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read a one- or two-part name, with or without backquotes.

        >>> str(TableName.parse("Sales.`Totals`"))
        'sales.totals'
        >>> str(TableName.parse("totals"))
        'totals'
        """
        parts = [p.strip().strip("`").strip('"') for p in text.strip().split(".")]
        if len(parts) > 2 or not all(_PART.match(p) for p in parts):
            raise MillstreamError(
                Code.NAME_INVALID,
                f"{text!r} is not a valid name",
                hint="use name or schema.name, of letters, digits and underscores",
            )
        if any(p.lower().startswith(RESERVED_PREFIX) for p in parts):
            raise MillstreamError(Code.NAME_INVALID, f"names starting with {RESERVED_PREFIX} are reserved: {text!r}")
        schema = parts[0].lower() if len(parts) == 2 else DEFAULT_SCHEMA
        return cls(schema, parts[-1].lower())

    def __str__(self) -> str:
        return self.name if self.schema == DEFAULT_SCHEMA else f"{self.schema}.{self.name}"

    def quoted(self) -> str:
        """The name for a SQL text given to Spark."""
        return f"{quote(self.schema)}.{quote(self.name)}"
