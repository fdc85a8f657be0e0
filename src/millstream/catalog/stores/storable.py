"""Messages of any origin as texts that any database can store."""

from __future__ import annotations

_LONGEST_TEXT = 8_000


def storable(text: str) -> str:
    """A message that any database can store: no NUL, no half of a surrogate pair, and not a whole query plan."""
    whole = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
    return whole if len(whole) <= _LONGEST_TEXT else f"{whole[:_LONGEST_TEXT]} …"
