"""What `explain` and `validate` say of falling back; no Spark is needed to find that out."""

from __future__ import annotations

import pytest

from millstream.diff.describe import operators
from millstream.diff.stages import split
from millstream.lake import Compiled
from millstream.reasons import Reason
from millstream.results import RefreshMode
from millstream.service.explain import explanation
from millstream.sql.lowering.lower import lower
from millstream.sql.parse import parse_query
from millstream.sql.rewrites import rewrite
from millstream.testing.analyzer import DuckAnalyzer, Tables
from millstream.testing.constructs import TABLES
from millstream.testing.duck import shared_connection


def compiled(sql: str, *, incremental: bool = True) -> Compiled:
    lowered = lower(parse_query(sql), sql, Tables(TABLES), DuckAnalyzer(shared_connection()))
    stages = split(rewrite(lowered.relation)) if incremental else ()
    return Compiled(sql, (), {}, {}, {}, stages, (), lowered.notices, True)


QUERY = "SELECT t.a, MAX(u.c) AS m FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.a"


@pytest.mark.parametrize("mode", RefreshMode)
def test_when_a_query_is_recomputed(mode: RefreshMode) -> None:
    codes = {code for code, _ in explanation(compiled(QUERY), mode).fallbacks}
    by_cost = {str(r) for r in Reason if r.is_by_cost}
    match mode:
        case RefreshMode.AUTO:
            assert codes == {str(r) for r in Reason if r.is_fallback}
        case RefreshMode.DIFFERENTIAL:
            assert codes == {str(r) for r in Reason if r.is_fallback} - by_cost
            assert "DELTA_FAILED" in codes
        case RefreshMode.DIFFERENTIAL_STRICT:
            assert codes == set()
        case RefreshMode.FULL:
            assert codes == {"MODE_FULL"}


def test_a_query_without_a_delta_is_always_recomputed() -> None:
    found = explanation(compiled(QUERY, incremental=False), RefreshMode.AUTO)
    assert [code for code, _ in found.fallbacks] == ["NOT_INCREMENTAL"]


def test_every_operator_says_how_it_is_maintained_and_when_not() -> None:
    plans = operators(compiled(QUERY).stages)
    assert [(p.strategy, p.is_always_differential) for p in plans if "join" in p.operator or "MAX" in p.operator] == [
        ("extremum with its multiplicity", True),
        ("inner join plus rows that gain or lose their partners", True),
    ]
    assert all(p.strategy and p.falls_back for p in plans if p.depth)


def test_a_special_fallback_is_shown() -> None:
    (plan, *_) = operators(compiled(QUERY).stages)
    assert "recomputed" not in str(plan)
    assert str(type(plan)(1, "recursion", "by loops", "the data has cycles")) == (
        "  recursion  [by loops; recomputed: the data has cycles]"
    )
