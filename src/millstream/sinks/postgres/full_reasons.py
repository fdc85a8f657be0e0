"""Why a served table is brought to the whole result, and not by the change between two versions."""

from __future__ import annotations

from millstream.reasons import Reason
from millstream.sinks.postgres.keys import Key
from millstream.sinks.postgres.ledger import Entry
from millstream.sinks.postgres.target import Feed, Mark, Target


def full_reason(known: Entry | None, target: Target, mark: Mark, feed: Feed) -> str:
    """Why there is no change between the recorded version and the present one; empty if there may be one."""
    if known is None or known.version is None:
        return str(Reason.INITIAL)
    if known.types != target.types:
        changed = (f"{name} is {type_}" for name, type_ in target.types.items() if known.types.get(name) != type_)
        return f"{Reason.TYPES_CHANGED}: {', '.join(changed)} now"
    if known.stage_id != mark.stage_id:
        return f"{Reason.QUERY_ALTERED}: the stream table is stored from scratch"
    if known.version > mark.version:
        return f"{Reason.STORED_CHANGED}: the served table is ahead of the stream table, which was restored"
    if known.commit_id != feed.commit_id(known.version):
        restored = f"the stream table was restored, and its version {known.version} is another one now"
        return f"{Reason.STORED_CHANGED}: {restored}"
    if known.key != Key.of(target) or not (target.is_keyed or known.by_ctid):  # of no key yet, or of none any more
        return f"{Reason.KEY_CHANGED}: {_described_key(target)}"
    return ""


def _described_key(target: Target) -> str:
    if target.key is None:
        return "the result has no key now"
    return f"the result's key is ({', '.join(target.key)}) now, {'never' if target.is_key_total else 'perhaps'} NULL"
