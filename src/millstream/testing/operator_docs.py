"""Writes the pages of docs/operators from the delta rules' own docstrings, so that they cannot go stale.

`python -m millstream.testing.operator_docs` writes them; with `--check` it only reports whether they are up to date.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.diff import bag, current_time
from millstream.diff.aggregate import algebraic, extremum, rescan, wide_sum
from millstream.diff.rules import RULES, NoRule, Rule

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
_OF_STAGES = tuple(e.stage for e in RULES if isinstance(e, NoRule) and e.stage)
_OF_RULES = tuple(dict.fromkeys(e.delta.__module__ for e in RULES if isinstance(e, Rule)))

STAGES = (bag, *(import_module(f"millstream.diff.{name}") for name in _OF_STAGES))
FAMILIES = (algebraic, wide_sum, extremum, rescan)
MODULES = (*(import_module(name) for name in _OF_RULES), current_time, *STAGES, *FAMILIES)

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
    entries: list[Rule[Any] | NoRule] = list(RULES)
    rows = [_row(entry) for entry in sorted(entries, key=lambda found: found.operator.__name__)]
    return "\n".join(
        [
            "# Operators",
            "",
            _NOTE,
            "",
            "How the change of each operator is computed from the changes of its inputs. In the formulas, `new(x)` is",
            "a relation now, `delta(x)` the weighted rows that lead from its old value to its new one, and `old(x)`",
            "the first without the second.",
            "",
            "| operator | strategy | page |",
            "|---|---|---|",
            *rows,
            "",
            "The result of a filter or projection that uses the current time can change without its input.",
            "",
            *_listed((current_time,)),
            "",
            "A query is maintained in stages, each with a stored table; an aggregation or recursion has its own stage.",
            "",
            *_listed(STAGES),
            "",
            "What a stage of groups stores, and whether it may have to read a group again, depends on its aggregates.",
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


def _row(entry: Rule[Any] | NoRule) -> str:
    name = _spoken(entry.operator.__name__)
    if isinstance(entry, Rule):
        return f"| {name} | {entry.strategy} | {_link(entry.delta.__module__)} |"
    return f"| {name} | no rule: {entry.reason} | {_link(entry.stage) if entry.stage else ''} |"


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
