"""The versions that the stream tables of a pass are brought to."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.passes.agreement import Reads, agree


def reads(base: str = "", upstream: str = "") -> Reads:
    return Reads(frozenset(base.split()), frozenset(upstream.split()))


def test_a_diamond_is_at_the_frontier_of_the_pass() -> None:
    graph = {"top": reads("t"), "left": reads("u", "top"), "right": reads("", "top"), "bottom": reads("", "left right")}
    found = agree(list(graph), graph, {}, {"t": 3, "u": 4})
    assert found.versions == {"top": {"t": 3}, "left": {"t": 3, "u": 4}, "right": {"t": 3}, "bottom": {"t": 3, "u": 4}}
    assert not found.lagging


def test_what_reads_a_table_outside_the_pass_stays_at_its_frontier() -> None:
    graph = {"joined": reads("t u", "nightly"), "above": reads("", "joined"), "other": reads("t")}
    found = agree(list(graph), graph, {"nightly": {"t": 1}}, {"t": 3, "u": 4})
    assert found.versions["joined"] == found.versions["above"] == {"t": 1, "u": 4}
    assert found.versions["other"] == {"t": 3}
    assert not found.lagging


def test_inputs_that_cannot_agree_bring_the_lagging_one_into_the_pass() -> None:
    graph = {"hourly": reads("t"), "joined": reads("", "hourly nightly")}
    found = agree(list(graph), graph, {"nightly": {"t": 1}}, {"t": 3})
    assert found.lagging == {"nightly"}
    together = {"nightly": reads("t"), **graph}
    assert agree(list(together), together, {}, {"t": 3}).versions["joined"] == {"t": 3}


def test_tables_of_the_pass_that_cannot_agree_bring_what_holds_one_back() -> None:
    graph = {"old": reads("", "nightly"), "new": reads("t"), "both": reads("", "old new")}
    assert agree(list(graph), graph, {"nightly": {"t": 1}}, {"t": 3}).lagging == {"nightly"}


def test_two_tables_outside_the_pass_that_agree_need_not_join_it() -> None:
    graph = {"joined": reads("", "a b")}
    assert not agree(["joined"], graph, {"a": {"t": 1}, "b": {"t": 1, "u": 2}}, {"t": 3}).lagging
    assert agree(["joined"], graph, {"a": {"t": 1}, "b": {"t": 2}}, {"t": 3}).lagging == {"a", "b"}


@st.composite
def passes(draw: st.DrawFn) -> tuple[dict[str, Reads], dict[str, dict[str, int]], dict[str, int]]:
    """Random graphs: some stream tables are outside the pass, and stand for older versions of the base tables."""
    newest = {base: draw(st.integers(1, 3)) for base in ("t", "u")}
    bases: dict[str, set[str]] = {}
    graph: dict[str, Reads] = {}
    outside: dict[str, dict[str, int]] = {}
    for number in range(draw(st.integers(1, 7))):
        name = f"s{number}"
        base = draw(st.sets(st.sampled_from(["t", "u"])))
        upstream = draw(st.sets(st.sampled_from(sorted(bases)))) if bases else set()
        bases[name] = base.union(*(bases[u] for u in upstream))
        if upstream <= set(outside) and draw(st.booleans()):
            outside[name] = {b: draw(st.integers(0, newest[b])) for b in bases[name]}
        else:
            graph[name] = Reads(frozenset(base), frozenset(upstream))
    return graph, outside, newest


@settings(max_examples=500)
@given(passes())
def test_everything_that_a_table_reads_agrees_or_something_lags(
    given_pass: tuple[dict[str, Reads], dict[str, dict[str, int]], dict[str, int]],
) -> None:
    graph, outside, newest = given_pass
    found = agree(list(graph), graph, outside, newest)
    if not found.lagging:
        for name, read in graph.items():
            for source in read.upstream:
                for base, version in {**found.versions, **outside}[source].items():
                    assert found.versions[name][base] == version
            assert all(found.versions[name][base] <= newest[base] for base in read.base)
    assert found.lagging <= set(outside)
