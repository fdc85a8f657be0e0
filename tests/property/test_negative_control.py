"""The property tests catch bugs: each rule is broken in one place, and a test must fail.

test_operators shows that the same queries pass with correct rules.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import pytest
from sqlglot import exp

from millstream.diff import anti_join, bag, difference, keyed, outer_join, stages
from millstream.diff.aggregate import algebraic, extremum
from millstream.diff.aggregate.accumulator import OLD
from millstream.ops import Aggregate, Item, Relation
from millstream.ops.expressions import ONE, ZERO, cast, coalesce, col, compare, weight, when
from millstream.sql.lowering import grouping_sets
from millstream.sql.lowering.aggregates import moments
from millstream.testing import duck
from millstream.testing.assertions import assert_follows
from millstream.testing.choices import Choices
from millstream.testing.strategies import TABLES, make_scenario

CASES = 100

# the package has the function of that name
distinct_to_two_levels = sys.modules["millstream.sql.rewrites.distinct_to_two_levels"]

JOIN = "SELECT t.b, u.c FROM t JOIN u ON t.a = u.a"
LEFT_JOIN = "SELECT t.a, t.b, u.c FROM t LEFT JOIN u ON t.a = u.a"
COUNT = "SELECT a, COUNT(*) AS n, COUNT(b) AS m FROM t GROUP BY a"
MAXIMUM = "SELECT a, MIN(b) AS x, MAX(b) AS y, MAX(s) AS z FROM t GROUP BY a"
HAVING = "SELECT a, SUM(b) AS x FROM t GROUP BY a HAVING COUNT(*) > 1"
DISTINCT = "SELECT a, COUNT(DISTINCT b) AS n, SUM(b) FILTER (WHERE s = 'x') AS x FROM t GROUP BY a"
SETS = "SELECT a, s, COUNT(*) AS n FROM t GROUP BY GROUPING SETS ((a, s), (a), (a))"
VARIANCE = "SELECT a, VAR_POP(b) AS v FROM t GROUP BY a"


def takes_new_for_old(self: difference.Difference, relation: Relation) -> Relation:
    return self.new(relation)


def multiplicity_stands_still(self: extremum.Extremum) -> exp.Expression:
    return coalesce(col(self._multiplicity + OLD), ZERO)


def weight_counts_as_one(self: algebraic.CountOf, value: exp.Expression) -> exp.Expression:
    return when(compare(exp.GT, weight(), ZERO), ONE, exp.Neg(this=ONE)) if value == weight() else value


def one_partner_is_none(count: exp.Expression) -> exp.Expression:
    return when(compare(exp.LTE, count, ONE), ONE, ZERO)


def forgets_having(
    relation: Relation, right: Callable[..., tuple[Aggregate, object, tuple[Item, ...]]] = stages._peel
) -> tuple[Aggregate, None, tuple[Item, ...]]:
    aggregate, _, items = right(relation)
    return aggregate, None, items


def one_set(self: grouping_sets.KeySets, number: int) -> Item:
    return Item(cast(ZERO, "int"), self.number)


WRONG = [
    pytest.param(difference.Difference, "old", takes_new_for_old, JOIN, id="new inputs taken for old ones"),
    pytest.param(outer_join, "_padded", lambda relation, change: None, LEFT_JOIN, id="padded rows left out"),
    pytest.param(anti_join, "_is_zero", one_partner_is_none, LEFT_JOIN, id="one partner as good as none"),
    pytest.param(bag, "consolidate", lambda relation: relation, LEFT_JOIN, id="a bag's change not consolidated"),
    pytest.param(bag, "_subtracts", lambda relation, changed: False, JOIN, id="additions not consolidated"),
    pytest.param(keyed.KeyedStage, "_is_dead", lambda self: exp.false(), COUNT, id="groups never die"),
    pytest.param(algebraic.CountOf, "where_it_applies", weight_counts_as_one, COUNT, id="weights taken for one"),
    pytest.param(extremum.Extremum, "_held", multiplicity_stands_still, MAXIMUM, id="multiplicity stands still"),
    pytest.param(
        extremum.Extremum, "must_recompute", lambda self: exp.false(), MAXIMUM, id="extremum never read again"
    ),
    pytest.param(stages, "_peel", forgets_having, HAVING, id="HAVING forgotten"),
    pytest.param(
        distinct_to_two_levels, "_filtered", lambda function, call: function, DISTINCT, id="FILTER forgotten below"
    ),
    pytest.param(grouping_sets.KeySets, "_mask", lambda self, item, keys: item, SETS, id="keys not masked"),
    pytest.param(grouping_sets.KeySets, "_numbered", one_set, SETS, id="equal sets of keys taken for one"),
    pytest.param(moments._Sums, "_rest", lambda self, x: ZERO, VARIANCE, id="a mean taken for a whole number"),
]


def is_caught(query: str) -> bool:
    for seed in range(CASES):
        try:
            assert_follows(query, TABLES, make_scenario(Choices.seeded(seed), TABLES))
        except AssertionError:
            return True
        except Exception as error:
            if "rows to remove are not there" in str(error):
                return True
            raise
    return False


@pytest.mark.parametrize(("where", "attribute", "wrong", "query"), WRONG)
def test_a_wrong_rule_is_caught(
    where: object, attribute: str, wrong: object, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # other tests must not get plans of a wrong rule, nor this one plans of the correct one
    monkeypatch.setattr(duck, "_compile", functools.lru_cache(duck._compile.__wrapped__))
    monkeypatch.setattr(where, attribute, wrong)
    assert is_caught(query)
