"""The support matrix says what the code does, down to the last example."""

from __future__ import annotations

import pytest

from millstream.errors import MillstreamError
from millstream.testing import constructs, support_matrix
from millstream.testing.support_matrix import support_of


def test_the_page_is_up_to_date() -> None:
    assert support_matrix.main(["--check"]) == 0, "run: python -m millstream.testing.support_matrix"


def test_an_example_is_what_the_code_makes_of_it() -> None:
    assert support_of("SELECT a, MAX(b) AS m FROM t GROUP BY a").how == (
        "touched groups merged with their stored state; extremum with its multiplicity"
    )
    refused = support_of("SELECT a FROM t SORT BY a")
    assert refused.how.startswith("not: `UNSUPPORTED_SQL`, SORT BY")
    assert refused.fallback.startswith("always, in AUTO and FULL; instead: omit it")
    assert support_of("SELECT a FROM t FOR UPDATE").fallback.startswith("never: no mode accepts it")


def test_an_example_that_is_wrong_has_no_place_in_it() -> None:
    with pytest.raises(MillstreamError):
        support_of("SELECT nope FROM t")


def test_constructs_have_names_of_their_own() -> None:
    for section, examples in constructs.CONSTRUCTS.items():
        names = [name for name, _ in examples]
        assert len(set(names)) == len(names), section
