"""Aggregates by name: those the parser would alter or does not know, and those that are approximations."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

# Approximate aggregates, and what computes the exact result instead. Sketches also depend on the order of rows.
EXACT_INSTEAD = {
    "APPROX_COUNT_DISTINCT": "COUNT(DISTINCT x)",
    "APPROX_PERCENTILE": "PERCENTILE(x, p)",
    "PERCENTILE_APPROX": "PERCENTILE(x, p)",
    "APPROX_TOP_K": "GROUP BY the value with COUNT(*)",
    "APPROX_TOP_K_ACCUMULATE": "GROUP BY the value with COUNT(*)",
    "APPROX_TOP_K_COMBINE": "GROUP BY the value with COUNT(*)",
    "COUNT_MIN_SKETCH": "GROUP BY the value with COUNT(*)",
    "HISTOGRAM_NUMERIC": "GROUP BY WIDTH_BUCKET(x, low, high, n) with COUNT(*)",
    "HLL_SKETCH_AGG": "COUNT(DISTINCT x)",
    "HLL_UNION_AGG": "COUNT(DISTINCT x)",
    **{
        f"KLL_{kind}_AGG_{type_}": "PERCENTILE(x, p)"
        for kind in ("SKETCH", "MERGE")
        for type_ in ("BIGINT", "DOUBLE", "FLOAT")
    },
    "THETA_SKETCH_AGG": "COUNT(DISTINCT x)",
    "THETA_UNION_AGG": "COUNT(DISTINCT x)",
    "THETA_INTERSECTION_AGG": "COUNT(DISTINCT x) over an INTERSECT",
    **{
        f"TUPLE_{kind}_AGG_{type_}": "GROUP BY the value with SUM"
        for kind in ("SKETCH", "UNION", "INTERSECTION")
        for type_ in ("DOUBLE", "INTEGER")
    },
}

# The parser knows these as something else, prints them as another function, or loses an argument.
_KEPT = (
    "ARRAY_AGG",
    "BITMAP_AND_AGG",
    "EVERY",
    "LISTAGG",
    "MEAN",
    "MEASURE",
    "PERCENTILE",
    "PERCENTILE_CONT",
    "PERCENTILE_DISC",
    "SCHEMA_OF_VARIANT_AGG",
    "SOME",
    "STD",
    "STRING_AGG",
    "TRY_AVG",
    "TRY_SUM",
    "VAR_SAMP",
    *EXACT_INSTEAD,
)


def _by_name(name: str) -> Callable[[list[exp.Expr]], exp.Expr]:
    return lambda args: exp.AnonymousAggFunc(this=name, expressions=args)


BY_NAME = {name: _by_name(name) for name in _KEPT}
"""For the parser: aggregates that keep the name and the arguments they were written with."""
