"""Writes the pages of docs/operators from the delta rules' own docstrings, so that they cannot go stale.

`python -m millstream.testing.operator_docs` writes them; with `--check` it only says whether they are up to date.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.diff import (
    anti_join,
    bag,
    current_time,
    inner_join,
    keyed,
    linear,
    outer_join,
    partition,
    recursive,
    semi_join,
)
from millstream.diff.aggregate import algebraic, extremum, rescan, wide_sum
from millstream.diff.rules import RULES, STRATEGIES

if TYPE_CHECKING:
    from types import ModuleType

HEADINGS = (
    "Semantics",
    "Delta rule",
    "State kept",
    "Cost",
    "NULL and duplicate behaviour",
    "Falls back when",
)
STAGES = (bag, keyed, partition, recursive)
FAMILIES = (algebraic, wide_sum, extremum, rescan)
MODULES = (linear, current_time, inner_join, outer_join, semi_join, anti_join, *STAGES, *FAMILIES)

_NOTE = "<!-- written by python -m millstream.testing.operator_docs from the module's docstring -->"


def page(module: ModuleType) -> str:
    """The page of a delta rule, a stage or a family of aggregates."""
    title, sections = _parsed(module)
    lines = [f"# {title}", "", _NOTE, "", f"Module `{module.__name__}`."]
    for heading in HEADINGS:
        lines += ["", f"## {heading}", "", sections[heading]]
    return "\n".join(lines) + "\n"


def index() -> str:
    """The list of operators with their strategies."""
    rows = [
        f"| {_spoken(operator.__name__)} | {STRATEGIES[operator]} | {_link(rule.__module__)} |"
        for operator, rule in sorted(RULES.items(), key=lambda found: found[0].__name__)
    ]
    return "\n".join(
        [
            "# Operators",
            "",
            _NOTE,
            "",
            "How the change of each operator is computed from the changes of its inputs. The formulas speak of",
            "`new(x)`, a relation now, `delta(x)`, the weighted rows that lead from its old value to it, and `old(x)`,",
            "the first without the second.",
            "",
            "| operator | strategy | page |",
            "|---|---|---|",
            *rows,
            "",
            "A filter or projection that asks for the time changes without its input.",
            "",
            *_listed((current_time,)),
            "",
            "A query is kept in stages, each with a stored table; aggregations and recursions are stages of their own.",
            "",
            *_listed(STAGES),
            "",
            "What a stage of groups stores, and whether it may have to read a group again, is up to its aggregates.",
            "",
            *_listed(FAMILIES),
            "",
        ]
    )


def pages() -> dict[str, str]:
    """All pages by file name."""
    return {"README.md": index(), **{f"{_name(m.__name__)}.md": page(m) for m in MODULES}}


def main(arguments: list[str]) -> int:
    """Write or check the pages; the exit code is 1 if one is stale."""
    folder = Path(__file__).resolve().parents[3] / "docs" / "operators"
    wanted = pages()
    found = {path.name: path.read_text() for path in folder.glob("*.md")}
    stale = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if "--check" in arguments:
        for name in stale:
            print(f"docs/operators/{name} is stale: run python -m millstream.testing.operator_docs", file=sys.stderr)
        return 1 if stale else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in wanted:
            (folder / name).write_text(wanted[name])
        else:
            (folder / name).unlink()
    return 0


def _parsed(module: ModuleType) -> tuple[str, dict[str, str]]:
    """The first line of a module's docstring, and the text under each heading."""
    title, _, body = (inspect.getdoc(module) or "").partition("\n\n")
    parts = re.split(rf"^({'|'.join(HEADINGS)}): ", body, flags=re.MULTILINE)
    sections = {heading: _paragraph(text) for heading, text in zip(parts[1::2], parts[2::2], strict=True)}
    if missing := [heading for heading in HEADINGS if heading not in sections]:
        raise ValueError(f"the docstring of {module.__name__} lacks {', '.join(missing)}")
    return " ".join(title.split()).rstrip("."), sections


def _listed(modules: tuple[ModuleType, ...]) -> list[str]:
    return [f"- {_link(m.__name__)}. {_parsed(m)[0]}." for m in modules]


def _link(module: str) -> str:
    return f"[{_name(module)}]({_name(module)}.md)"


def _paragraph(text: str) -> str:
    text = " ".join(text.split())
    return textwrap.fill(text[:1].upper() + text[1:], 118, break_long_words=False, break_on_hyphens=False)


def _name(module: str) -> str:
    return module.rsplit(".", 1)[-1]


def _spoken(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
