"""Determines the key of a result: the columns that identify its rows in a served table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.diff.keyed import KeyedStage
from millstream.diff.plan import Kind
from millstream.diff.recursive import RecursiveStage
from millstream.diff.stages import AnyStage
from millstream.lake.compiled import Compiled
from millstream.ops.known import Known


@dataclass(frozen=True, slots=True)
class ServedKey:
    """The output columns of a result's key, in order; None if it has no key, empty if it has at most one row.

    Args:
        is_total: whether none of them is ever NULL.
    """

    columns: tuple[str, ...] | None = None
    is_total: bool = False


def served_key(compiled: Compiled, sources: Mapping[str, Known]) -> ServedKey:
    """The key of a query's result, derived from what is known of its sources."""
    return _key(compiled, known_result(compiled, sources))


def known_result(compiled: Compiled, sources: Mapping[str, Known]) -> Known:
    """What is known of a query's result; column names are in lower case."""
    facts = dict(sources)
    found = Known()
    for named in compiled.stages:
        found = _stored(named.stage, facts)
        facts[named.name] = found.renamed({c.name: c.name.lower() for c in named.stage.layout.columns})
    if not compiled.stages:
        return found
    shown: dict[str, str] = {}
    for stored, column in zip(compiled.layouts[-1].outputs, compiled.columns, strict=True):
        shown.setdefault(stored, column.name.lower())
    return found.renamed(shown)


def _stored(stage: AnyStage, facts: Mapping[str, Known]) -> Known:
    """What is known of the rows a stage stores."""
    if isinstance(stage, RecursiveStage):
        return Known()
    found = stage.body.known(facts)
    if isinstance(stage, KeyedStage):
        assert stage.layout.kind is Kind.KEYED
        return Known(frozenset(stage.layout.key), found.not_null & frozenset(stage.layout.key))
    return found


def _key(compiled: Compiled, found: Known) -> ServedKey:
    if found.key is None:
        return ServedKey()
    names = [c for c in compiled.columns if c.name.lower() in found.key]
    if any("<" in c.type for c in names):  # nested values are served as JSON, whose equality differs
        return ServedKey()
    return ServedKey(tuple(c.name for c in names), bool(names) and found.key <= found.not_null)
