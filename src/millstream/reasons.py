"""The registry of reasons: why a refresh, a served table or a captured table is what its record says.

Every reason that is recorded comes from here. A `Reason` is a code that programs can match; in the record, it is mostly
followed by a colon and the facts. A `CaptureReason` is a sentence about a captured table.
`millstream.testing.reference_docs` generates `docs/reasons.md` from this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Place(StrEnum):
    """Where users read a reason; the value is its heading in the docs."""

    HISTORY = "Refreshes"
    SERVED = "Served tables"
    SOURCES = "Captured tables"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason says, in one sentence for each place that shows it.

    Args:
        history: in the refresh history, the result of a refresh and `explain`.
        served: in `millstream.served_tables` of the database that holds the served table.
        sources: in `millstream sources`.
        is_fallback, is_by_cost: as in `Reason`.
    """

    history: str = ""
    served: str = ""
    sources: str = ""
    is_fallback: bool = False
    is_by_cost: bool = False


class Reason(StrEnum):
    """The codes and what they mean."""

    sentences: Mapping[Place, str]
    """What it says, for each place that shows it."""
    explanation: str
    """The sentence of the first place that shows it."""
    is_fallback: bool
    """Whether a query that can be maintained by deltas is recomputed for this reason without a request."""
    is_by_cost: bool
    """Whether only AUTO recomputes for this reason."""

    def __new__(cls, code: str, meaning: Meaning) -> Reason:
        member = str.__new__(cls, code)
        member._value_ = code
        shown = {Place.HISTORY: meaning.history, Place.SERVED: meaning.served, Place.SOURCES: meaning.sources}
        member.sentences = {place: sentence for place, sentence in shown.items() if sentence}
        member.explanation = next(iter(member.sentences.values()))
        member.is_fallback, member.is_by_cost = meaning.is_fallback, meaning.is_by_cost
        return member

    # Nothing, or only what changed
    UNCHANGED = ("UNCHANGED", Meaning("No source has changed."))
    APPENDED = ("APPENDED", Meaning("Rows were added to the sources, and the result can only grow by them."))
    CHANGED = (
        "CHANGED",
        Meaning(
            "The change of the result was computed from the changes of the sources.",
            served="The change of the result was applied.",
        ),
    )
    AGED = ("AGED", Meaning("No source has changed; the change of the result as time passes was computed."))
    FIXPOINT = (
        "FIXPOINT",
        Meaning(
            "Rows were only added to what a cycle of stream tables reads: what follows from them was added to its "
            "members."
        ),
    )
    FROM_EMPTY = (
        "FROM_EMPTY",
        Meaning(
            "Rows were taken away from what a cycle of stream tables reads: its members were computed from empty, and "
            "the difference was applied."
        ),
    )

    # Nothing, although it was due
    BUSY = ("BUSY", Meaning("Another refresh of the stream table was still running when this one was due."))
    WAITS = ("WAITS", Meaning("A stream table that it reads is suspended or in ERROR."))

    # A recomputation that was requested
    INITIAL = ("INITIAL", Meaning("The first load.", served="The table was just created."))
    REQUESTED = ("REQUESTED", Meaning("A full refresh was requested."))
    MODE_FULL = ("MODE_FULL", Meaning("The refresh mode is FULL."))
    QUERY_ALTERED = (
        "QUERY_ALTERED",
        Meaning(
            "The stream table, or one it reads, was given another query.", served="The stream table has another query."
        ),
    )

    # A query that is always recomputed
    NOT_INCREMENTAL = (
        "NOT_INCREMENTAL",
        Meaning("The query has no delta; the reason names the construct that prevents it."),
    )
    CURRENT_TIME = (
        "CURRENT_TIME",
        Meaning(
            "The query depends on the current time, so its result changes by itself, and it has no delta or the mode "
            "FULL."
        ),
    )

    # A recomputation instead of a delta
    NO_DELTA = (
        "NO_DELTA",
        Meaning(
            "The changes of a source are not available: its history was cleaned up, its change feed was off, or its "
            "columns changed.",
            served="The stream table was recomputed, or its history is gone.",
            is_fallback=True,
        ),
    )
    SOURCE_CHANGED = (
        "SOURCE_CHANGED",
        Meaning(
            "A table, view, SQL function or stream table the query reads was replaced, or a column in use changed.",
            is_fallback=True,
        ),
    )
    STORED_CHANGED = (
        "STORED_CHANGED",
        Meaning(
            "The stored table is not what the catalog says, e.g. after a restore.",
            served="The lake was restored to an earlier state, even if it has been refreshed since.",
            is_fallback=True,
        ),
    )
    LAYOUT = ("LAYOUT", Meaning("The stored table was made by another version of millstream.", is_fallback=True))
    REINIT = ("REINIT", Meaning("The stream table was marked for reinitialisation.", is_fallback=True))
    DELTA_FAILED = (
        "DELTA_FAILED",
        Meaning(
            "Spark failed on the delta, e.g. with a division by zero on a row that the query filters out.",
            is_fallback=True,
        ),
    )
    PLAN_FAILED = (
        "PLAN_FAILED",
        Meaning(
            "Spark failed on our plan of the whole query, but not on the query as written; the next refresh starts "
            "over.",
            is_fallback=True,
        ),
    )
    RATIO = (
        "RATIO",
        Meaning(
            "More of a source changed than differential_max_change_ratio allows.", is_fallback=True, is_by_cost=True
        ),
    )
    RATIO_ALWAYS = (
        "RATIO_ALWAYS",
        Meaning("differential_max_change_ratio is 1.", is_fallback=True, is_by_cost=True),
    )
    CHEAPER = (
        "CHEAPER",
        Meaning("According to the table's history, a recomputation is faster.", is_fallback=True, is_by_cost=True),
    )
    DATABASE_REPLACED = (
        "DATABASE_REPLACED",
        Meaning(
            "Another database answered at the address of an attached one: restored or failed over.",
            sources="Another database answered at the address; the next refresh compares the table with its mirror.",
        ),
    )

    # After an interruption
    RECOVERED = ("RECOVERED", Meaning("An interrupted refresh had committed everything, and was adopted."))
    RESUMED = ("RESUMED", Meaning("An interrupted refresh was completed."))

    # A served table that is written as a whole
    KEY_CHANGED = ("KEY_CHANGED", Meaning(served="The result has another key, which is now declared on the table."))
    KEY_REPEATED = ("KEY_REPEATED", Meaning(served="The change has two rows with the same key."))
    TYPES_CHANGED = (
        "TYPES_CHANGED",
        Meaning(served="Columns of the result have other types, e.g. because a source's column was widened."),
    )
    SERVED_CHANGED = ("SERVED_CHANGED", Meaning(served="Another session changed rows of the table."))
    SERVED_MOVED = (
        "SERVED_MOVED",
        Meaning(served="VACUUM FULL, CLUSTER or TRUNCATE rewrote a table whose rows are matched by their place."),
    )
    SERVED_MISSING = ("SERVED_MISSING", Meaning(served="The table was dropped, and was created again."))


class CaptureReason(StrEnum):
    """Why a captured table is not brought forward with the others: a sentence whose facts `format` fills in.

    `state` is the state that `millstream sources` shows with it.
    """

    state: str

    def __new__(cls, sentence: str, state: str = "BEHIND") -> CaptureReason:
        member = str.__new__(cls, sentence)
        member._value_ = sentence
        member.state = state
        return member

    # Its changes were recorded, but do not lead from the mirror to the table
    MORE_COLUMNS = "the columns {columns} are being added to its mirror"
    MIRROR_MOVED = "its mirror is at version {now}, but the catalog recorded {known}"
    BUFFER_TRIMMED = "its mirror is older than the changes in its buffer"
    TOO_MUCH = "more has changed than fits in memory"
    PART_TRUNCATED = "a part of it was truncated"

    # Something was done to it that capture does not see
    UNRECORDED = "nothing records its changes"
    ROWS_REWRITTEN = "its rows were rewritten or truncated, or are in other partitions"
    COLUMNS_ALTERED = "its columns were altered"
    TRIGGERS_CHANGED = "its triggers were changed"
    NAME_TAKEN_OVER = "another table has its name"
    TYPE_WIDENED = "a column has another type with the same values"
    TYPE_REPLACED = "{columns} may be of another type of the same name"

    # The WAL does not have its changes
    NOT_IN_WAL = "it cannot be read from the WAL"
    NOT_PUBLISHED = "the WAL did not deliver its changes"
    CAUGHT_BETWEEN = "the other tables catch up in pieces"
    WAL_LACKS_COLUMN = "column {column} is not in the WAL"
    WAL_OTHER_TYPE = "column {column} had another type"
    PARTITION_GONE = "a partition has been detached or dropped"

    # Its dependents have to adapt
    COLUMN_LOST = ("has lost its column {column}", "STALE")
    COLUMN_CHANGED = ("has changed its column {column} from {old} to {new}", "STALE")
    DROPPED = ("{table} was dropped or renamed", "MISSING")
