"""Delta rules, stages and shared steps on golden files; the header `changed` names the inputs that changed."""

from __future__ import annotations

import pytest

from kits.paths import FIXTURES
from millstream.diff.difference import Difference
from millstream.diff.plan import STATE
from millstream.diff.share import SHARED
from millstream.diff.stages import split
from millstream.ops import Relation, Table, walk
from millstream.ops.tree import format_tree
from millstream.sql.lowering.lower import lower
from millstream.sql.parse import parse_query
from millstream.sql.rewrites import rewrite
from millstream.testing.analyzer import DuckAnalyzer, Tables
from millstream.testing.duck import shared_connection
from millstream.testing.golden import Case, assert_golden
from millstream.testing.strategies import TABLES

CASES = FIXTURES / "diff"
SOURCES = Tables(TABLES, {"joined": "SELECT t.a, u.c FROM t JOIN u ON t.a = u.a"})


def relation_of(text: str) -> Relation:
    return rewrite(lower(parse_query(text), text, SOURCES, DuckAnalyzer(shared_connection())).relation)


def changed(case: Case) -> frozenset[str]:
    return frozenset(case.headers["changed"].split(", "))


@pytest.mark.parametrize("name", ["linear", "current_time", "inner_join", "outer_join"])
def test_deltas(name: str) -> None:
    def compute(case: Case) -> str:
        delta = Difference(changed(case)).delta(relation_of(case.text))
        return "nothing" if delta is None else format_tree(delta)

    assert_golden(CASES / f"{name}.sql", compute)


def test_stages() -> None:
    def compute(case: Case) -> str:
        lines: list[str] = []
        for named in split(relation_of(case.text)):
            layout = named.stage.layout
            shown = ", ".join(layout.outputs) + (", some rows hidden" if layout.hides_rows else "")
            lines += [
                f"{named.name}, a {layout.kind} of {', '.join(named.inputs)}",
                f"  key: {', '.join(layout.key)}".rstrip(),
                *(f"  stores {c.name} {c.type}" for c in layout.columns),
                f"  shows {shown}",
            ]
        return "\n".join(lines)

    assert_golden(CASES / "stages.sql", compute)


def test_shared_steps() -> None:
    def compute(case: Case) -> str:
        lines: list[str] = []
        for step in split(relation_of(case.text))[-1].stage.steps(changed(case)):
            if step.name.startswith(SHARED):
                lines += [f"{step.name}:", format_tree(step.relation)]
            else:
                tables = {n.name for n in walk(step.relation) if isinstance(n, Table)} - {STATE}
                lines.append(f"{step.name} reads {', '.join(sorted(tables))}")
        return "\n".join(lines)

    assert_golden(CASES / "share.sql", compute)
