"""Every reserved name, and the functions that split and quote names.

Hidden columns start with `__ms_`; a user's column may not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from millstream.errors import Code, MillstreamError

RESERVED_PREFIX = "__ms_"

WEIGHT = "__ms_w"  # how often a row of a Z-set counts; negative if it is removed
FILE = "__ms_file"  # the data file that holds a stored row ...
ROW = "__ms_row"  # ... and its position there
VISIBLE = "__ms_visible"  # false for a group that HAVING hides
RECURSION = (
    "__ms_recursion"  # the source from which the step of a recursion reads its rows; numbered from the second on
)
CLOCK = "__ms_clock"  # the input with the current time, in a stage whose query uses it
GROUP_ROWS = "__ms_rows"  # how many input rows a group has

DEFAULT_SCHEMA = "default"

_NAMES = 10_000
"""How many parsed names are cached: every tick parses the names of all its tables."""

_PART = re.compile(r"[^\W\d]\w*\Z")
_CAPITALS = str.maketrans({chr(code): chr(code + 32) for code in range(ord("A"), ord("Z") + 1)})
_NAME_BYTES = 63
_SPLIT = re.compile(r"\s*(?:`((?:[^`]|``)*)`|\"((?:[^\"]|\"\")*)\"|([^.`\"]*))\s*(\.|\Z)")


def quote(identifier: str) -> str:
    """`identifier` as Spark quotes it.

    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + identifier.replace("`", "``") + "`"


def fold(name: str) -> str:
    """A name that is not quoted, as PostgreSQL reads it in a UTF-8 database: only ASCII letters become lower case.

    >>> fold("Orders"), fold("ÜNÏ")
    ('orders', 'ÜnÏ')
    """
    return name.translate(_CAPITALS)


def cut(name: str) -> str:
    """A name as PostgreSQL stores it, quoted or not: truncated to 63 bytes, without splitting a character.

    >>> len(cut("ü" * 40)), cut("orders")
    (31, 'orders')
    """
    return name.encode()[:_NAME_BYTES].decode(errors="ignore")


@lru_cache(_NAMES)
def split_name(text: str) -> tuple[str, ...]:
    """The parts of a dotted name: those in quotes as they are, the others folded as PostgreSQL folds them.

    >>> split_name("shop.public.`Order Lines`"), split_name("Totals")
    (('shop', 'public', 'Order Lines'), ('totals',))

    Raises:
        MillstreamError: NAME_INVALID.
    """
    parts: list[str] = []
    place = 0
    while found := _SPLIT.match(text, place):
        backquoted, quoted, plain, point = found.groups()
        if backquoted is not None:
            parts.append(backquoted.replace("``", "`"))
        else:
            parts.append(quoted.replace('""', '"') if quoted is not None else fold(plain.strip()))
        place = found.end()
        if not point:
            return tuple(parts)
    raise _invalid(text)


def in_double_quotes(text: str) -> tuple[bool, ...]:
    """Which parts of a dotted name are in PostgreSQL's quotes, and so must match exactly.

    >>> in_double_quotes('shop."public".`Orders`')
    (False, True, False)
    """
    return tuple(found.group(2) is not None for found in _SPLIT.finditer(text))[: len(split_name(text))]


@lru_cache(_NAMES)
def attached_name(database: str, schema: str, name: str) -> TableName:
    """The name of a table in an attached database, as that database has it.

    In the joined name, a part that would mean another name without quotes is in backquotes.

    >>> str(attached_name("shop", "public", "Order Lines")), str(attached_name("shop", "public", "Orders"))
    ('shop.public.`Order Lines`', 'shop.public.`Orders`')
    """
    return TableName(f"{database}.{_shown(schema)}", name)


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """The name of a lake's object, always in lower case, or of a table in an attached database, as it is there.

    The schema of the latter has two parts, `shop.public`.
    """

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read a name of one to three parts, with or without quotes.

        >>> str(TableName.parse("Sales.`Totals`"))
        'sales.totals'
        >>> TableName.parse("shop.public.orders")
        TableName(schema='shop.public', name='orders')

        Raises:
            MillstreamError: NAME_INVALID.
        """
        parts = split_name(text)
        is_attached = len(parts) == 3  # PostgreSQL accepts any characters
        parts = (parts[0].lower(), *parts[1:]) if is_attached else tuple(p.lower() for p in parts)
        if len(parts) > 3 or not all(parts) or not all(_PART.match(p) for p in parts[: 1 if is_attached else None]):
            raise _invalid(text)
        if any(p.lower().startswith(RESERVED_PREFIX) for p in parts):
            raise MillstreamError(Code.NAME_INVALID, f"names starting with {RESERVED_PREFIX} are reserved: {text!r}")
        if is_attached:
            return attached_name(*parts)
        return cls(parts[0] if len(parts) == 2 else DEFAULT_SCHEMA, parts[-1])

    @property
    def database(self) -> str | None:
        """The attached database it is in; None for objects of the lake."""
        database, point, _ = self.schema.partition(".")
        return database if point else None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the name, always including the schema."""
        return (*split_name(self.schema), self.name)

    def __str__(self) -> str:
        if self.database is not None:
            return f"{self.schema}.{_shown(self.name)}"
        return self.name if self.schema == DEFAULT_SCHEMA else f"{self.schema}.{self.name}"


def _shown(part: str) -> str:
    return part if _PART.match(part) and fold(part) == part else quote(part)


def _invalid(text: str) -> MillstreamError:
    return MillstreamError(
        Code.NAME_INVALID,
        f"{text!r} is not a valid name",
        hint="use name or schema.name, of letters, digits and underscores; database.schema.name for attached tables",
    )


def postgres_name(*parts: str) -> str:
    """A name as it is written in PostgreSQL: in double quotes where necessary.

    >>> postgres_name("public", "Orders", "price")
    'public."Orders".price'
    """
    return ".".join(p if re.fullmatch(r"[a-z_][a-z0-9_]*", p) else '"' + p.replace('"', '""') + '"' for p in parts)
