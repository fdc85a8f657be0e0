"""Plain refreshes are recognised before Typer is loaded, and mean the same; all else is left to Typer."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.entry import plain_refresh


@pytest.mark.parametrize(
    ("given", "lake", "names", "full", "json"),
    [
        ("refresh a", None, ("a",), False, False),
        ("refresh --all --json", None, (), False, True),
        ("--lake x --json refresh a b --full", Path("x"), ("a", "b"), True, True),
        ("--lake x refresh a --lake y", Path("y"), ("a",), False, False),
        ("refresh refresh", None, ("refresh",), False, False),
    ],
)
def test_plain_forms(given: str, lake: Path | None, names: tuple[str, ...], full: bool, json: bool) -> None:
    found = plain_refresh(given.split())
    assert found is not None
    assert (found.options.lake, found.names, found.full, found.options.json) == (lake, names, full, json)


@pytest.mark.parametrize(
    "given",
    [
        *(
            "",
            "refresh",
            "refresh a --all",
            "status",
            "refresh --help",
            "refresh a -v",
            "--all refresh",
            "--full refresh a",
        ),
        *("refresh a --config c.toml", "refresh -- a", "refresh a --lake", "refresh --lake=x a", "--version refresh a"),
    ],
)
def test_other_forms_are_left_to_typer(given: str) -> None:
    assert plain_refresh(given.split()) is None


def test_the_environment_names_the_lake_unless_an_option_does() -> None:
    for given, lake in (("refresh a", "env"), ("--lake x refresh a", "x")):
        found = plain_refresh(given.split(), "env")
        assert found is not None
        assert found.options.lake == Path(lake)
