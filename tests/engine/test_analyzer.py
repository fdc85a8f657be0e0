"""Spark's plans of two texts, compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millstream.engine.analyzer import SparkAnalyzer
from millstream.engine.session import new_worker_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SOURCE = "(SELECT CAST(NULL AS STRING) AS s, CAST(NULL AS INT) AS n)"
MANY = ", ".join(f"'{i}'" for i in range(40))


@pytest.fixture(scope="module")
def analyzer(spark: SparkSession) -> SparkAnalyzer:
    return SparkAnalyzer(new_worker_session(spark))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("SELECT s FROM {t} x", "SELECT  x.s  FROM {t} AS x -- the same", True),
        ("SELECT n + 1 FROM {t} x", "SELECT n + 2 FROM {t} x", False),
        # longer than what Spark prints of a list unless it is told to
        (f"SELECT s FROM {{t}} x WHERE s IN ({MANY}, 'a')", f"SELECT s FROM {{t}} x WHERE s IN ({MANY}, 'b')", False),
        ("WITH c AS (SELECT n FROM {t} x) SELECT n FROM c", "WITH c AS (SELECT n FROM {t} x) SELECT n FROM c", True),
        ("SELECT nope FROM {t} x", "SELECT nope FROM {t} x", False),
        ("SELECT named_struct('a', n) AS c FROM {t} x", "SELECT struct(n AS a) AS c FROM {t} x", True),
        ("SELECT named_struct('a', n) AS c FROM {t} x", "SELECT struct(n AS b) AS c FROM {t} x", False),
        (
            "SELECT transform(array(n), e -> named_struct('a', e)) AS c FROM {t} x",
            "SELECT transform(array(n), e -> struct(e AS a)) AS c FROM {t} x",
            True,
        ),
    ],
)
def test_plans_of_two_texts(analyzer: SparkAnalyzer, one: str, other: str, alike: bool) -> None:
    assert analyzer.plan_alike(one.format(t=SOURCE), other.format(t=SOURCE), 1) is alike


def test_long_select_lists(analyzer: SparkAnalyzer) -> None:
    items = ", ".join(f"n + {i} AS c{i}" for i in range(40))
    texts = [f"SELECT {items}, '{word}' AS w FROM {SOURCE} x" for word in ("a", "b")]
    assert not analyzer.plan_alike(*texts, 41)
    assert analyzer.plan_alike("SELECT n FROM range(3) AS t(n)", "SELECT n + 0 * 1 FROM range(3) AS t(n)", 1) is False


def test_the_optimiser_gives_one_name_to_functions_that_have_several(analyzer: SparkAnalyzer) -> None:
    query = "SELECT {}(nullif(n, 1), 0) FROM range(3) AS t(n)"
    texts = [query.format(name) for name in ("ifnull", "coalesce")]
    assert not analyzer.plan_alike(*texts, 1)
    assert analyzer.plan_alike(*texts, 1, optimised=True)
