"""Every tutorial runs as written, and prints what it shows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.pages import TUTORIALS, Psql, Reader, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = sorted(TUTORIALS.glob("*.md"))


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_prints_what_it_shows(
    page: Path, psql: Callable[[str], Psql], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = psql("hr" if page.stem == "getting-started-postgres" else "shop")
    count = Reader(page, opened).read()
    assert count["text"] >= 5


def test_there_are_five_pages() -> None:
    assert len(PAGES) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_holds_nothing_that_is_not_run(page: Path) -> None:
    blocks = blocks_of(page)
    assert {block.language for block in blocks} <= {"sql", "python", "text"}
    assert page.read_text().count("```") == 2 * len(blocks)
    for before, block in itertools.pairwise(blocks):
        assert block.language != "text" or before.language != "text", f"{page.name}:{block.line}"
    for block in blocks:
        if block.language == "python":
            compile(block.text, str(page), "exec")


@pytest.mark.postgres
def test_what_is_shown_is_compared(psql: Callable[[str], Psql], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shown = "```sql\nSELECT 1 AS one;\n```\n\n```text\n one\n-----\n   {}\n(1 row)\n```\n"
    opened = psql("shop")
    page.write_text(shown.format(1))
    assert Reader(page, opened).read() == {"sql": 1, "python": 0, "console": 0, "text": 1}
    page.write_text(shown.format(2))
    with pytest.raises(AssertionError, match=r"page.md:6 shows other than"):
        Reader(page, opened).read()
    page.write_text("```sql\nSELECT nope;\n```\n")
    with pytest.raises(AssertionError, match='column "nope" does not exist'):
        Reader(page, opened).read()
