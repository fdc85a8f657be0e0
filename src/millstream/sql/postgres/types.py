"""PostgreSQL's types, and the Spark types that store their values."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

MAX_DIGITS = 38
DEFAULT_SCALE = 18
"""Digits after the decimal point of a `numeric` that was declared without a scale."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type by PostgreSQL's name.

    Args:
        digits, scale: for a `numeric`, those of Spark's DECIMAL.
        shows_scale: for a `numeric`, whether PostgreSQL would print exactly `scale` digits after the decimal point.
        element: the type of an array's elements.
        fields: those of a composite type.
        label: PostgreSQL's name for a type that is only an `enum`, or `opaque`, here: a text that can be passed on.
    """

    name: str
    digits: int = 0
    scale: int = 0
    shows_scale: bool = True
    element: Type | None = None
    fields: tuple[tuple[str, Type], ...] = ()
    label: str = ""

    @property
    def spark(self) -> str:
        """The Spark type that stores such values."""
        if self.name == "numeric":
            return f"DECIMAL({self.digits}, {self.scale})"
        if self.element is not None:
            return f"ARRAY<{self.element.spark}>"
        if self.fields:
            return f"STRUCT<{', '.join(f'`{n}`: {t.spark}' for n, t in self.fields)}>"
        return _SPARK[self.name]

    @property
    def whole_digits(self) -> int:
        """Digits before the decimal point."""
        return self.digits - self.scale

    @property
    def is_integer(self) -> bool:
        """smallint, integer or bigint."""
        return self.name in INTEGERS

    @property
    def is_float(self) -> bool:
        """Real or double precision."""
        return self.name in {"real", "double precision"}

    @property
    def is_number(self) -> bool:
        """Any number."""
        return self.is_integer or self.is_float or self.name == "numeric"

    @property
    def is_json(self) -> bool:
        """Json or jsonb."""
        return self.name in {"json", "jsonb"}

    @property
    def is_time(self) -> bool:
        """A date or timestamp."""
        return self.name in {"date", "timestamp", "timestamptz"}

    @property
    def has_equality(self) -> bool:
        """Whether values are equal exactly if the stored values are."""
        return not self.is_json and self.name != "opaque" and (self.element is None or self.element.has_equality)

    @property
    def has_order(self) -> bool:
        """Whether Spark sorts them as PostgreSQL does, which sorts an enum by its declaration."""
        return self.has_equality and self.name != "enum" and self.element is None

    def __str__(self) -> str:
        return f"{self.element}[]" if self.element is not None else self.label or self.name


SMALLINT, INTEGER, BIGINT = Type("smallint"), Type("integer"), Type("bigint")
REAL, DOUBLE = Type("real"), Type("double precision")
TEXT, BOOLEAN, BYTEA = Type("text"), Type("boolean"), Type("bytea")
DATE, TIMESTAMP, TIMESTAMPTZ, INTERVAL = Type("date"), Type("timestamp"), Type("timestamptz"), Type("interval")
JSON, JSONB, UUID, TIME = Type("json"), Type("jsonb"), Type("uuid"), Type("time")
UNKNOWN = Type("unknown")
"""The type of a string literal or NULL, until its context determines another."""

INTEGERS = {"smallint": 5, "integer": 10, "bigint": 19}
_SPARK = {
    "smallint": "SMALLINT",
    "integer": "INT",
    "bigint": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "text": "STRING",
    "boolean": "BOOLEAN",
    "bytea": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
    "json": "STRING",
    "jsonb": "STRING",
    "uuid": "STRING",
    "time": "STRING",
    "enum": "STRING",
    "opaque": "STRING",
    "unknown": "STRING",
}
KNOWN = {*_SPARK, "numeric", "array", "record"}
"""Names of types with an equivalent in Spark; columns of other types can only be passed on."""
_FROM_SPARK = {
    "tinyint": SMALLINT,
    "smallint": SMALLINT,
    "int": INTEGER,
    "bigint": BIGINT,
    "float": REAL,
    "double": DOUBLE,
    "string": TEXT,
    "boolean": BOOLEAN,
    "binary": BYTEA,
    "date": DATE,
    "timestamp_ntz": TIMESTAMP,
    "timestamp": TIMESTAMPTZ,
}


def numeric(digits: int, scale: int, *, shows_scale: bool = True) -> Type:
    """A numeric with the given digits, as far as they fit."""
    return Type("numeric", min(MAX_DIGITS, digits), min(MAX_DIGITS, scale), shows_scale)


UNBOUNDED = numeric(MAX_DIGITS, DEFAULT_SCALE, shows_scale=False)
"""A `numeric` without precision and scale: each value has its own."""


def without_scale(type_: Type) -> Type:
    """A numeric, or an array of numerics, in which each value has its own scale.

    >>> without_scale(from_spark("array<decimal(10,2)>")).element.shows_scale
    False
    """
    if type_.element is not None:
        return array_of(without_scale(type_.element))
    return replace(type_, shows_scale=False) if type_.name == "numeric" else type_


def array_of(element: Type) -> Type:
    """An array."""
    return Type("array", element=element)


def as_numeric(type_: Type) -> Type:
    """The numeric type that can hold every value of an exact type."""
    return numeric(INTEGERS[type_.name], 0) if type_.is_integer else type_


def from_spark(text: str) -> Type | None:
    """The PostgreSQL type for a Spark type; None if PostgreSQL has no such type.

    >>> str(from_spark("array<int>")), from_spark("decimal(10,2)").spark, from_spark("map<string,int>")
    ('integer[]', 'DECIMAL(10, 2)', None)
    """
    text = text.strip()
    if text in _FROM_SPARK:
        return _FROM_SPARK[text]
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", text):
        digits, scale = int(found.group(1)), int(found.group(2))
        # a `numeric` without precision arrives with all of DECIMAL's digits: zeros follow its own
        return numeric(digits, scale, shows_scale=digits < MAX_DIGITS)
    if re.fullmatch(r"varchar\(\d+\)", text):
        return TEXT
    if text.startswith("array<"):
        element = from_spark(text[len("array<") : -1])
        return array_of(element) if element is not None else None
    if text.startswith("struct<"):
        fields = [(name, from_spark(type_)) for name, type_ in _fields(text[len("struct<") : -1])]
        known = tuple((name, type_) for name, type_ in fields if type_ is not None)
        return Type("record", fields=known) if len(known) == len(fields) else None
    return None


def _fields(text: str) -> list[tuple[str, str]]:
    """`a:int,b:struct<c:int>` as pairs of name and type."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text + ","):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [(name.strip("`"), type_) for name, _, type_ in (p.partition(":") for p in parts)]


def common(types: list[Type]) -> Type | None:
    """The type that CASE, COALESCE and UNION give to values of several types; None if there is none."""
    known = [t for t in types if t.name != "unknown"]
    if not known:
        return TEXT
    result = known[0]
    for other in known[1:]:
        found = _common(result, other)
        if found is None:
            return None
        result = found
    return result


_TIME_ORDER = ("date", "timestamp", "timestamptz")


def _common(one: Type, two: Type) -> Type | None:
    if one == two:
        return one
    if one.is_number and two.is_number:
        if one.is_float or two.is_float:
            return DOUBLE if DOUBLE in (one, two) else REAL
        if one.is_integer and two.is_integer:
            return max((one, two), key=lambda t: INTEGERS[t.name])
        a, b = as_numeric(one), as_numeric(two)
        scale = max(a.scale, b.scale)
        return numeric(max(a.whole_digits, b.whole_digits) + scale, scale, shows_scale=False)
    if one.is_time and two.is_time:
        return max((one, two), key=lambda t: _TIME_ORDER.index(t.name))
    if one.element is not None and two.element is not None:
        element = _common(one.element, two.element)
        return array_of(element) if element is not None else None
    return one if one.name == two.name and not one.fields and one.label == two.label else None
