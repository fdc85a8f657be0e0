"""Why a served table is compared with the whole result instead of receiving the change between two versions."""

from __future__ import annotations

from millstream.reasons import Reason
from millstream.sinks.postgres.keys import Key
from millstream.sinks.postgres.ledger import Entry
from millstream.sinks.postgres.target import Feed, Mark, Target


def full_reason(known: Entry | None, target: Target, mark: Mark, feed: Feed) -> str:
    """Why the change between the recorded version and the current one cannot be applied; empty if it may be."""
    if known is None or known.version is None:
        return str(Reason.INITIAL)
    if known.types != target.types:
        changed = (f"{name} is {type_}" for name, type_ in target.types.items() if known.types.get(name) != type_)
        return f"{Reason.TYPES_CHANGED}: {', '.join(changed)} now"
    if known.stage_id != mark.stage_id:
        return f"{Reason.QUERY_ALTERED}: the stream table was stored from scratch"
    if known.version > mark.version:
        return f"{Reason.STORED_CHANGED}: the served table is ahead of the stream table, which was restored"
    if known.commit_id != feed.commit_id(known.version):
        restored = f"the stream table was restored, and its version {known.version} now has other contents"
        return f"{Reason.STORED_CHANGED}: {restored}"
    # without a key, a change can only be applied if the ctids are recorded
    if known.key != Key.of(target) or not (target.is_keyed or known.by_ctid):
        return f"{Reason.KEY_CHANGED}: {_described_key(target)}"
    return ""


def _described_key(target: Target) -> str:
    if target.key is None:
        return "the result has no key now"
    return f"the result's key is ({', '.join(target.key)}) now, {'never' if target.is_key_total else 'perhaps'} NULL"
