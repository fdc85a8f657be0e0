"""Every snippet of the README, and of the page on PostgreSQL, runs and prints what is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kits.pages import ROOT, Psql, Reader, blocks_of, commands

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = ROOT / "README.md"


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore::millstream.notices.ChangeFeedWarning")
@pytest.mark.parametrize("page", [README, ROOT / "docs" / "postgres.md"], ids=lambda page: page.stem)
def test_the_page_runs_as_written(
    page: Path, psql: Callable[[str], Psql], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    count = Reader(page, psql("shop")).read()
    assert min(count["python"], count["sql"], count["text"]) >= 2


def test_the_readme_calls_the_command_line() -> None:
    assert len([call for block in blocks_of(README) if block.language == "console" for call in commands(block)]) == 5


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z]+)", README.read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_every_page_is_linked_to() -> None:
    linked = {(p.parent / link).resolve() for p in PAGES for link in re.findall(r"\]\(([^)#:]+)\)", p.read_text())}
    folders = {path for path in linked if path.is_dir()}
    assert [p.name for p in PAGES if p != README and p not in linked and p.parent not in folders] == []
