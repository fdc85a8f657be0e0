"""Why a refresh did what it did: the codes that stand before the colon in a refresh's reason.

`docs/support-matrix.md` and `validate` list those for which a query that can be maintained is recomputed all the same.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The codes; `explanation` is their one-line text."""

    explanation: str
    is_fallback: bool
    """Whether a query that can be maintained by deltas is recomputed for it, without anybody asking."""
    is_by_cost: bool
    """Whether only AUTO recomputes for it."""

    def __new__(cls, value: str, explanation: str, kind: str = "") -> Reason:
        member = str.__new__(cls, value)
        member._value_ = value
        member.explanation = explanation
        member.is_fallback = kind in {"fallback", "cost"}
        member.is_by_cost = kind == "cost"
        return member

    # Nothing, or only what changed
    UNCHANGED = ("UNCHANGED", "No source has changed.")
    APPENDED = ("APPENDED", "Rows were added to the sources, and the query can only grow by them.")
    CHANGED = ("CHANGED", "The change of the result was computed from the changes of the sources.")
    AGED = ("AGED", "No source has changed; what the time brings in or out was computed.")

    # A recomputation somebody asked for
    INITIAL = ("INITIAL", "The first load.")
    REQUESTED = ("REQUESTED", "A full refresh was asked for.")
    MODE_FULL = ("MODE_FULL", "The refresh mode is FULL.")
    QUERY_ALTERED = ("QUERY_ALTERED", "The stream table, or one it reads, was given another query.")

    # A query that is always recomputed
    NOT_INCREMENTAL = ("NOT_INCREMENTAL", "The query has no delta; the reason says what in it is the obstacle.")
    CURRENT_TIME = (
        "CURRENT_TIME",
        "The query depends on the current time, which changes its result by itself, and has no delta or the mode FULL.",
    )

    # A recomputation instead of a delta
    NO_DELTA = (
        "NO_DELTA",
        "The changes of a source cannot be had: its history was cleaned up, its change feed was off, or its columns "
        "changed.",
        "fallback",
    )
    SOURCE_CHANGED = (
        "SOURCE_CHANGED",
        "A table, view, SQL function or stream table the query reads was replaced, or a column in use changed.",
        "fallback",
    )
    STORED_CHANGED = (
        "STORED_CHANGED",
        "The stored table is not what the catalog says, e.g. after a restore.",
        "fallback",
    )
    LAYOUT = ("LAYOUT", "The stored table was made by another version of millstream.", "fallback")
    REINIT = ("REINIT", "The stream table was marked for reinitialisation.", "fallback")
    DELTA_FAILED = (
        "DELTA_FAILED",
        "Spark failed on the delta, e.g. by a division by zero on a row that the query filters out.",
        "fallback",
    )
    PLAN_FAILED = (
        "PLAN_FAILED",
        "Spark failed on our plan of the whole query and not on the query as written; the next refresh starts over.",
        "fallback",
    )
    RATIO = ("RATIO", "More of a source changed than differential_max_change_ratio allows.", "cost")
    RATIO_ALWAYS = ("RATIO_ALWAYS", "differential_max_change_ratio is 1.", "cost")
    CHEAPER = ("CHEAPER", "By the table's own history a recomputation takes less time.", "cost")

    # After an interruption
    RECOVERED = ("RECOVERED", "An interrupted refresh had committed everything, and was adopted.")
    RESUMED = ("RESUMED", "An interrupted refresh was completed.")
