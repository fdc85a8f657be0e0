"""Values as text for people, and as plain data for JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from enum import Enum


def duration(seconds: float | None) -> str:
    """A length of time in the unit a person would choose.

    >>> duration(0.24), duration(3.6), duration(125), duration(7300), duration(200_000)
    ('240 ms', '3.6 s', '2 min 5 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, small, small_size in (("min", 60, "s", 1), ("h", 3600, "min", 60), ("d", 86400, "h", 3600)):
        if unit == "d" or whole < size * (60 if unit == "min" else 24):
            return f"{whole // size} {unit} {whole % size // small_size} {small}"
    raise AssertionError


def milliseconds(value: float | None) -> str:
    """A duration given in milliseconds."""
    return duration(None if value is None else value / 1000)


def size(value: int) -> str:
    """A number of bytes in the unit a person would choose.

    >>> size(812), size(20_480), size(3 << 30)
    ('812 B', '20.0 KiB', '3.0 GiB')
    """
    amount, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{value} B" if unit == "B" else f"{amount:,.1f} {unit}"


def moment(value: datetime | None) -> str:
    """A point in time to the second, with its zone if it has one."""
    return "-" if value is None else value.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def text(value: object) -> str:
    """Any other value of a record."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def cell(value: object) -> str:
    """A value of a query's result, as Spark's own `show` writes it: exact, and NULL distinct from the empty text."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray):
        return value.hex(" ").upper()
    data = plain(value)
    return str(data) if isinstance(data, str | int | float) else _nested(data)


def _nested(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_nested(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_nested, value)) + "]"
    return cell(value)


def plain(value: object) -> object:
    """A value as JSON can carry it; decimals, dates and bytes become texts, so that nothing is rounded."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return _plain_container(value)


def _plain_container(value: object) -> object:
    as_dict = getattr(value, "asDict", None)  # a struct in a row of Spark's
    if callable(as_dict):
        return plain(as_dict())
    if isinstance(value, Mapping):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    return str(value)
