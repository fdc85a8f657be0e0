"""Values as JSON and back: the records and errors of the public calls, and the values in rows of queries.

What JSON has no form for becomes an object with one key that starts with `$`. The set of forms is closed: decoding
creates instances of the listed types and nothing else.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any

from millstream.errors import Code, MillstreamError, Position
from millstream.results import Portion

RECORDS = frozenset(
    {
        *("RefreshResult", "RefreshOutcome", "DaemonStatus", "StreamTableStatus", "RefreshStats", "RefreshRecord"),
        *("SourceStatus", "SlotHealth", "CdcHealth", "VerifyResult", "MaintenanceResult", "OperatorPlan"),
        *("Explanation", "DrawnGraph", "WaitResult"),
        *("RefreshMode", "Status", "Action", "RefreshStatus", "InitiatedBy", "MaintenanceKind"),
        *("Event", "EventName"),
    }
)
"""The records and enumerations of `results` and `events` that calls return."""
_OF_EVENTS = frozenset({"Event", "EventName"})


def encode(value: object) -> Any:
    """A value as `json.dumps` accepts it.

    Raises:
        TypeError: a record that no call returns.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Portion):
        return {"$portion": [str(value), value.share]}
    if isinstance(value, Enum):
        return {"$enum": [_known(type(value)), value.value]}
    if isinstance(value, MillstreamError):
        return {"$error": _error(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"$record": [_known(type(value)), fields]}
    for kind, tag, dump in _LEAVES:
        if isinstance(value, kind):
            return {tag: dump(value)}
    return _encode_container(value)


def _encode_container(value: object) -> Any:
    as_dict = getattr(value, "asDict", None)  # a row of Spark's inside a row
    if callable(as_dict):
        value = as_dict()
    if isinstance(value, Mapping):
        return {"$map": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"$tuple": [encode(v) for v in value]}
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, set | frozenset):
        return {"$set": [encode(v) for v in value]}
    if isinstance(value, str):  # a subclass
        return str(value)
    return str(value)  # an interval, a variant, ...: as it is printed


def decode(data: Any) -> Any:
    """The value that was encoded.

    Raises:
        ValueError: it was not written by `encode`.
    """
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError(f"not an encoded value: {sorted(data)}")
    [(tag, content)] = data.items()
    if (load := _LOADS.get(tag)) is None:
        raise ValueError(f"not an encoded value: {tag}")
    return load(content)


def _error(error: MillstreamError) -> list[Any]:
    position = error.position
    place = None if position is None else [position.line, position.column, position.length]
    return [str(error.code), error.message, error.hint, place, error.sql]


def _load_error(content: list[Any]) -> MillstreamError:
    code, message, hint, place, sql = content
    position = None if place is None else Position(*place)
    return MillstreamError(Code[code], message, hint=hint, position=position, sql=sql)


def _known(kind: type) -> str:
    name = kind.__name__
    if name not in RECORDS or kind is not _class_of(name):
        raise TypeError(f"{name} is not a record that calls return")
    return name


def _class_of(name: str) -> Any:
    if name not in RECORDS:
        raise ValueError(f"not a record that calls return: {name}")
    # events are imported only when there are some: the fastest commands have none
    module = importlib.import_module("millstream.events" if name in _OF_EVENTS else "millstream.results")
    return getattr(module, name)


_LEAVES: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (datetime, "$datetime", datetime.isoformat),  # before `date`, of which it is a subclass
    (date, "$date", date.isoformat),
    (time, "$time", time.isoformat),
    (Decimal, "$decimal", str),
    (bytes, "$bytes", bytes.hex),
    (bytearray, "$bytes", bytearray.hex),
)
_LOADS: Mapping[str, Callable[[Any], Any]] = {
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$decimal": Decimal,
    "$bytes": bytes.fromhex,
    "$map": lambda pairs: {_key(decode(k)): decode(v) for k, v in pairs},
    "$tuple": lambda items: tuple(decode(item) for item in items),
    "$set": lambda items: frozenset(decode(item) for item in items),
    "$portion": lambda content: _portion(*content),
    "$enum": lambda content: _class_of(content[0])(content[1]),
    "$record": lambda content: _class_of(content[0])(**{name: decode(v) for name, v in content[1].items()}),
    "$error": _load_error,
}


def _portion(text: str, share: float) -> Portion:
    portion = Portion(text)
    portion.share = share
    return portion


def _key(value: Any) -> Any:
    """A key of a map as Python can hash it."""
    return tuple(value) if isinstance(value, list) else value
