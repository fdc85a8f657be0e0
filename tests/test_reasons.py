"""Every reason that is recorded comes from the registry, and every entry of the registry is recorded somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import reasons
from millstream.reasons import CaptureReason, Place, Reason

SOURCE = Path(reasons.__file__).parent
REGISTRY = SOURCE / "reasons.py"
CODE_AND_FACTS = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*: ")


def modules() -> dict[str, ast.Module]:
    files = [f for f in sorted(SOURCE.rglob("*.py")) if f != REGISTRY]
    return {str(f.relative_to(SOURCE)): ast.parse(f.read_text()) for f in files}


def literals_outside(tree: ast.Module) -> Iterator[str]:
    """Reasons that are written out: `"CODE: facts"`, or a registered code by itself, unless it is an enum's value."""
    members = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and any("Enum" in ast.dump(b) for b in n.bases)]
    exempt = {id(c) for m in members for statement in m.body for c in ast.walk(statement)}
    exempt |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}  # docstrings
    texts = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in exempt)
    for text in texts:
        if isinstance(text, str) and (CODE_AND_FACTS.match(text) or text in {*Reason, *CaptureReason}):
            yield text


def decisions_outside(tree: ast.Module) -> Iterator[str]:
    """Sentences about captured tables that are written out where capture decides what becomes of a table."""
    for call in ast.walk(tree):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in {"Decision", "RereadError"}
        ):
            given = [*call.args, *(k.value for k in call.keywords)]
            yield from (ast.unparse(a) for a in given if isinstance(a, ast.JoinedStr) or _is_text(a))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_no_module_writes_a_reason_out() -> None:
    found = {name: [*literals_outside(tree), *decisions_outside(tree)] for name, tree in modules().items()}
    assert {name: texts for name, texts in found.items() if texts} == {}


WRITTEN_OUT = [
    '"KEY_CHANGED: by {x}"',
    'f"NO_SUCH_CODE: {x}"',
    '"SERVED_MISSING"',
    '"its triggers were changed"',
    'Decision(x, f"has lost {x}")',
]


@pytest.mark.parametrize("text", WRITTEN_OUT)
def test_the_scan_finds_a_reason_that_is_written_out(text: str) -> None:
    tree = ast.parse(f"def f(x): return {text}")
    assert [*literals_outside(tree), *decisions_outside(tree)]


@pytest.mark.parametrize("registry", [Reason, CaptureReason])
def test_every_entry_is_recorded_somewhere(registry: type[Reason | CaptureReason]) -> None:
    used = {
        node.attr
        for tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == registry.__name__
    }
    assert used == {reason.name for reason in registry}


def test_every_entry_says_where_it_is_shown_and_what_it_means() -> None:
    for reason in Reason:
        assert reason.sentences, reason
        assert all(s[0].isupper() or s.startswith("differential_") for s in reason.sentences.values()), reason
        assert all(s.endswith(".") for s in reason.sentences.values()), reason
        assert reason.name == reason.value
    assert all(Place.HISTORY in reason.sentences for reason in Reason if reason.is_fallback)
