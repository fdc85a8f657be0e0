"""Conversions between instants and local times, with PostgreSQL's choice where clocks change.

When a clock is put back, it shows some times twice: PostgreSQL takes the later instant, Spark the earlier one. For a
time that a clock skips, both take the same instant. An instant is never converted to another time zone through the
session's local time, which may be ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from zoneinfo import available_timezones

from sqlglot import exp

from millstream.sql.postgres import types as t
from millstream.sql.postgres.refusals import RefusalError
from millstream.sql.postgres.spark_builders import ITEM, Node, fn, let, op, text, when
from millstream.sql.postgres.spark_casts import cast
from millstream.sql.postgres.types import numeric

_HOURS = fn("MAKE_DT_INTERVAL", 0, 3)
"""Longer than any step by which clocks are put back, and shorter than the time between two changes."""
_PLACE = re.compile(r"[A-Za-z]\w*(/[A-Za-z][A-Za-z_-]*)+")
_ZERO = cast(text("1970-01-01 00:00:00"), t.TIMESTAMP)
UTC = "UTC"


def moment(ntz: Node) -> Node:
    """The instant at which it is a given local time in the session's time zone."""
    return _with(ntz, _moment)


def _moment(x: Node) -> Node:
    later = op(cast(op(x, "+", _HOURS), t.TIMESTAMPTZ), "-", _HOURS)
    return when(op(cast(later, t.TIMESTAMP), "=", x), later, cast(x, t.TIMESTAMPTZ))


def moment_at(ntz: Node, zone: str) -> Node:
    """The instant at which it is a given local time in a time zone."""
    utc = ntz if zone == UTC else _with(ntz, lambda x: _utc(x, zone))
    return cast(fn("CONCAT", cast(utc, t.TEXT), text("Z")), t.TIMESTAMPTZ)


def _utc(x: Node, zone: str) -> Node:
    later = op(_moved(zone, UTC, op(x, "+", _HOURS)), "-", _HOURS)
    return when(op(_moved(UTC, zone, later), "=", x), later, _moved(zone, UTC, x))


def shown_at(tz: Node, zone: str) -> Node:
    """The local time in a time zone at an instant."""
    seconds = cast(op(cast(fn("UNIX_MICROS", tz), numeric(20, 0)), "/", 1_000_000), numeric(18, 6))
    utc = op(_ZERO, "+", fn("MAKE_DT_INTERVAL", 0, 0, 0, seconds))
    return utc if zone == UTC else _moved(UTC, zone, utc)


def zone_named(name: str) -> str:
    """Spark's name for a time zone.

    >>> zone_named("america/new_york"), zone_named("utc")
    ('America/New_York', 'UTC')

    Raises:
        RefusalError: the name does not mean the same to PostgreSQL and Spark.
    """
    if name.strip().upper() in {"UTC", "GMT", "Z"}:
        return UTC
    places = {zone.lower(): zone for zone in available_timezones() if _PLACE.fullmatch(zone)}
    found = places.get(name.strip().lower())
    if found is None:
        hint = "write 'UTC' or a name like 'Europe/Berlin': Spark reads offsets and abbreviations differently"
        raise RefusalError(f"the time zone {name!r}", hint)
    return found


def _moved(source: str, target: str, ntz: Node) -> Node:
    return fn("CONVERT_TIMEZONE", text(source), text(target), ntz)


def _with(ntz: Node, body: Callable[[Node], Node]) -> Node:
    """`body` applied to a time, which is computed once unless it is a name or a literal."""
    return body(ntz) if _is_simple(ntz) else let(ntz, body(ITEM))


def _is_simple(node: Node) -> bool:
    if isinstance(node, exp.Dot):
        return _is_simple(node.this)
    is_literal = isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string
    return is_literal or isinstance(node, exp.Column | exp.Identifier)
