"""The table of layers is the one that import-linter checks, and the only one."""

from __future__ import annotations

from millstream.testing import layer_table


def test_the_table_is_up_to_date() -> None:
    assert layer_table.main(["--check"]) == 0, "run: python -m millstream.testing.layer_table"


def test_every_package_has_its_row() -> None:
    source = layer_table.ROOT / "src" / "millstream"
    packages = {p.parent.name for p in source.glob("*/__init__.py")} | {p.stem for p in source.glob("[a-z]*.py")}
    rows = [line.split("`")[1] for line in layer_table.table().splitlines()[2:]]
    assert sorted(rows) == sorted(packages)


def test_no_other_page_has_a_table_of_layers() -> None:
    pages = [layer_table.ROOT / "CONTRIBUTING.md", *(layer_table.ROOT / "docs").rglob("*.md")]
    assert [p.name for p in pages if "| layer | package |" in p.read_text()] == [layer_table.PAGE.name]
