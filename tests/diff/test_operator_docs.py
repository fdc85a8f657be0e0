"""docs/operators says what the rules say of themselves."""

from __future__ import annotations

from types import ModuleType

import pytest

from millstream.diff.rules import RULES, Rule
from millstream.testing import operator_docs


def test_the_pages_are_up_to_date() -> None:
    assert operator_docs.main(["--check"]) == 0, "run: python -m millstream.testing.operator_docs"


@pytest.mark.parametrize("module", operator_docs.MODULES, ids=lambda m: m.__name__.rsplit(".", 1)[-1])
def test_every_rule_says_all_there_is_to_say(module: ModuleType) -> None:
    page = operator_docs.page(module)
    assert all(f"## {heading}\n" in page for heading in operator_docs.HEADINGS)


def test_every_operator_with_a_rule_has_a_page() -> None:
    documented = {module.__name__ for module in operator_docs.MODULES}
    assert {entry.delta.__module__ for entry in RULES if isinstance(entry, Rule)} <= documented


def test_a_docstring_without_its_headings_is_refused() -> None:
    module = ModuleType("rule", "A rule.\n\nSemantics: none.")
    with pytest.raises(ValueError, match="lacks Delta rule, State kept"):
        operator_docs.page(module)
