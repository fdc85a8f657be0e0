"""Texts with a recursive UNION, taken apart without being printed again."""

from __future__ import annotations

import pytest

from millstream.errors import Code, MillstreamError
from millstream.sql.text.recursion import TextLoop, unrolled, with_union_all

TWO = """
WITH RECURSIVE a AS (SELECT 1 AS x UNION SELECT 2), -- no recursion
r(n, m) AS (SELECT x, 'a UNION b' FROM a UNION DISTINCT SELECT n + 1, m FROM r WHERE n < (SELECT max(x) FROM a)),
q AS (SELECT n FROM r UNION ALL SELECT 7 UNION SELECT (n - 1) FROM q WHERE n > 0)
SELECT n FROM q UNION SELECT n FROM r
"""


def test_only_the_unions_of_recursions_are_exchanged() -> None:
    expected = TWO.replace("UNION DISTINCT SELECT n", "UNION ALL SELECT n").replace("7 UNION", "7 UNION ALL")
    assert with_union_all(TWO) == expected


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t UNION SELECT 'recursive'",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT n FROM r UNION SELECT 2",
        "WITH RECURSIVE r MAX RECURSION LEVEL 5 AS (SELECT 1 UNION SELECT 2 FROM r) SELECT 1",  # Spark may know it
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert with_union_all(text) == text


def test_a_text_is_taken_apart() -> None:
    loops, rest = unrolled(TWO)
    before = "WITH RECURSIVE a AS (SELECT 1 AS x UNION SELECT 2)"
    found = f"{before}, r(n, m) AS (SELECT * FROM `__ms_found_1`)"
    last = "(SELECT * FROM `__ms_last_found`)"
    assert loops == (
        TextLoop(
            f"{before}\nSELECT x, 'a UNION b' FROM a",
            f"{before}, r(n, m) AS {last}\nSELECT n + 1, m FROM r WHERE n < (SELECT max(x) FROM a)",
            "__ms_found_1",
        ),
        TextLoop(
            f"{found}\nSELECT n FROM r UNION ALL SELECT 7",
            f"{found}, q AS {last}\nSELECT (n - 1) FROM q WHERE n > 0",
            "__ms_found_2",
        ),
    )
    assert rest.split("\n")[2:4] == [
        "r(n, m) AS (SELECT * FROM `__ms_found_1`),",
        "q AS (SELECT * FROM `__ms_found_2`)",
    ]
    assert rest.endswith("SELECT n FROM q UNION SELECT n FROM r\n")


def test_one_in_a_subquery_is_refused() -> None:
    text = "SELECT * FROM (WITH RECURSIVE r AS (SELECT a FROM t UNION SELECT a + 1 FROM r) SELECT a FROM r) q"
    with pytest.raises(MillstreamError) as caught:
        unrolled(text)
    assert caught.value.code == Code.UNSUPPORTED_SQL
    assert caught.value.position is not None
