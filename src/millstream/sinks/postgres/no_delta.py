"""Why a served table is brought to the result as a whole, and not by the difference of two versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from millstream.sinks.postgres.keys import Key
from millstream.sinks.postgres.ledger import Entry
from millstream.sinks.postgres.target import Mark, Target

if TYPE_CHECKING:
    import pyarrow as pa


class Feed(Protocol):
    """Where the rows come from: the stream table's public stage."""

    def commit_id(self, version: int) -> str | None:
        """What tells a version from the same one of a lake that was restored; None if it is not known any more."""

    def delta(self, after: int) -> pa.Table | Iterable[pa.Table] | str:
        """The change since a version, with `naming.WEIGHT`, one that is large in pieces; or why there is none."""

    def contents(self) -> Iterable[pa.Table]:
        """All rows at the present version, in pieces."""


def no_delta(known: Entry | None, target: Target, mark: Mark, feed: Feed) -> str:
    """Why the recorded version and the present one have no delta between them; empty if they may have."""
    if known is None or known.version is None:
        return "INITIAL"
    if known.types != target.types:
        changed = (f"{name} is {type_}" for name, type_ in target.types.items() if known.types.get(name) != type_)
        return f"TYPES_CHANGED: {', '.join(changed)} now"
    if known.stage_id != mark.stage_id:
        return "QUERY_ALTERED: the stream table is stored anew"
    if known.version > mark.version:
        return "STORED_CHANGED: the served table is ahead of the stream table, which was restored"
    if known.commit_id != feed.commit_id(known.version):
        return f"STORED_CHANGED: the stream table was restored, and its version {known.version} is another one now"
    if known.key != Key.of(target) or not (target.is_keyed or known.by_place):  # of no key yet, or of none any more
        return f"KEY_CHANGED: {_said(target)}"
    return ""


def _said(target: Target) -> str:
    if target.key is None:
        return "the result has no key now"
    return f"the result's key is ({', '.join(target.key)}) now, {'never' if target.is_key_total else 'perhaps'} NULL"
