"""Typed literals, read during translation as PostgreSQL reads them during planning."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from uuid import UUID

from millstream.sql.postgres.refusals import RefusalError

_UNITS = {
    "year": (12, 0, 0),
    "yr": (12, 0, 0),
    "y": (12, 0, 0),
    "month": (1, 0, 0),
    "mon": (1, 0, 0),
    "week": (0, 7, 0),
    "w": (0, 7, 0),
    "day": (0, 1, 0),
    "d": (0, 1, 0),
    "hour": (0, 0, 3_600_000_000),
    "hr": (0, 0, 3_600_000_000),
    "h": (0, 0, 3_600_000_000),
    "minute": (0, 0, 60_000_000),
    "min": (0, 0, 60_000_000),
    "m": (0, 0, 60_000_000),
    "second": (0, 0, 1_000_000),
    "sec": (0, 0, 1_000_000),
    "s": (0, 0, 1_000_000),
    "millisecond": (0, 0, 1_000),
    "ms": (0, 0, 1_000),
    "microsecond": (0, 0, 1),
    "us": (0, 0, 1),
    "decade": (120, 0, 0),
    "century": (1200, 0, 0),
    "centurie": (1200, 0, 0),
}
_PART = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-z]+)|([+-])?(\d+):(\d\d)(?::(\d\d(?:\.\d{1,6})?))?", re.IGNORECASE)


def parse_interval(text: str, unit: str | None = None) -> tuple[int, int, int]:
    """Months, days and microseconds of an interval's text.

    >>> parse_interval("1 year 2 mons -3 days 04:05:06.5"), parse_interval("2", "day"), parse_interval("1 day ago")
    ((14, -3, 14706500000), (0, 2, 0), (0, -1, 0))
    """
    body = text.strip().lower().removeprefix("@").strip()
    sign = 1
    if body.endswith(" ago"):
        body, sign = body.removesuffix(" ago"), -1
    if unit is not None:
        if not re.fullmatch(r"[+-]?\d+(\.\d+)?", body):
            raise RefusalError(f"the interval {text!r} followed by a unit")
        if "." in body and unit.lower() not in {"second", "seconds"}:
            raise RefusalError(
                f"the interval {text!r} followed by a unit", "PostgreSQL truncates the fraction: leave it out"
            )
        body = f"{body} {unit.lower()}"
    elif re.fullmatch(r"[+-]?\d+(\.\d+)?", body):
        body = f"{body} second"
    total = [0, 0, 0]
    position = 0
    for found in _PART.finditer(body):
        if body[position : found.start()].strip():
            break
        position = found.end()
        _add_part(total, found, text)
    if body[position:].strip() or not body:
        raise RefusalError(f"the interval {text!r}", "write it as '1 year 2 months 3 days 04:05:06'")
    return sign * total[0], sign * total[1], sign * total[2]


def _add_part(total: list[int], found: re.Match[str], text: str) -> None:
    if found.group(2) is None:
        seconds = Decimal(found.group(4)) * 3600 + Decimal(found.group(5)) * 60 + Decimal(found.group(6) or 0)
        total[2] += int(seconds * 1_000_000) * (-1 if found.group(3) == "-" else 1)
        return
    word = found.group(2)
    unit = _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))
    if unit is None:
        raise RefusalError(f"the interval {text!r}", f"{word!r} is not a unit of time")
    amount = Decimal(found.group(1))
    if amount != int(amount) and not unit[2]:
        raise RefusalError(f"the interval {text!r}", "write parts of months and days in smaller units")
    if amount * unit[2] != int(amount * unit[2]):
        raise RefusalError(f"the interval {text!r}", "its precision is at most microseconds")
    for i in range(3):
        total[i] += int(amount * unit[i])


def parse_array(text: str) -> list[str | None]:
    """The elements of an array's text, one dimension.

    >>> parse_array('{1, NULL,"a,\\\\"b"}')
    ['1', None, 'a,"b']
    """
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        raise RefusalError(f"the array {text!r}", "write it as '{1,2,3}' or ARRAY[1, 2, 3]")
    items: list[str | None] = []
    rest = body[1:-1].strip()
    while rest:
        found = re.match(r'"((?:[^"\\]|\\.)*)"\s*(?:,|$)\s*', rest, re.DOTALL)
        if found:
            items.append(re.sub(r"\\(.)", r"\1", found.group(1), flags=re.DOTALL))
        else:
            found = re.match(r'([^,{}"\\]+?)\s*(?:,\s*|$)', rest)
            if not found:
                raise RefusalError(f"the array {text!r}", "only arrays of one dimension are supported")
            items.append(None if found.group(1).upper() == "NULL" else found.group(1))
        rest = rest[found.end() :]
    return items


def uuid_text(text: str) -> str:
    """A uuid as PostgreSQL prints it.

    >>> uuid_text("{A0EEBC99-9C0B4EF8BB6D6BB9BD380A11}")
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'
    """
    body = text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text
    if not re.fullmatch(r"[0-9a-fA-F]{4}(-?[0-9a-fA-F]{4}){7}", body):
        raise RefusalError(f"the uuid {text!r}", "write it as a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
    return str(UUID(body))


def time_text(text: str) -> str:
    """A time of day as PostgreSQL prints it.

    >>> time_text("9:30"), time_text("23:59:59.50")
    ('09:30:00', '23:59:59.5')
    """
    found = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,6}))?)?", text.strip())
    if not found:
        raise RefusalError(f"the time {text!r}", "write it as 23:59:59")
    hour, minute, second, fraction = found.groups()
    part = (fraction or "").rstrip("0")
    return f"{int(hour):02}:{minute}:{second or '00'}{'.' + part if part else ''}"


def jsonb_text(text: str) -> str:
    """A JSON text as jsonb prints it: one space after `:` and `,`, keys by length, the last of equal keys kept.

    >>> jsonb_text('{"bb":1.50,"a":[1,{}], "a":"é"}')
    '{"a": "é", "bb": 1.50}'
    """
    return _printed(_loads(text))


def check_json(text: str) -> str:
    """The text, if it is JSON."""
    _loads(text)
    return text


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def _loads(text: str) -> object:
    try:
        return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)
    except ValueError as e:
        raise RefusalError(f"the JSON text {text!r}", "it is not valid JSON") from e


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _printed(value: object) -> str:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda k: (len(k.encode()), k.encode()))
        return "{" + ", ".join(f"{_quoted(k)}: {_printed(value[k])}" for k in keys) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_printed, value)) + "]"
    if isinstance(value, _Number):
        if "e" in value.lower():
            number = Decimal(value)
            return format(number, "f")
        return str(value)
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
