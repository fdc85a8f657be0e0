"""Log sequence numbers, the places in a server's WAL: integers here, `1A/2B3C4D` as the server prints them."""

from __future__ import annotations


def parse_lsn(text: str) -> int:
    """The number of a printed place.

    >>> parse_lsn("1/10")
    4294967312
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def print_lsn(lsn: int) -> str:
    """A place as the server prints it.

    >>> print_lsn(4294967312)
    '1/10'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
