"""Cycles in a graph of names, against their definition: names that reach each other."""

from __future__ import annotations

from graphlib import TopologicalSorter

from hypothesis import given
from hypothesis import strategies as st

from millstream.cycles import cycle_of, find_cycles, outside_reads, reading_order

NAMES = "abcdef"
graphs = st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES + "xy"), max_size=3))


def reached(reads: dict[str, list[str]], name: str) -> set[str]:
    found: set[str] = set()
    waiting = list(reads.get(name, ()))
    while waiting:
        if (source := waiting.pop()) not in found:
            found.add(source)
            waiting += reads.get(source, ())
    return found


@given(graphs)
def test_a_cycle_is_what_reads_each_other(reads: dict[str, list[str]]) -> None:
    expected = {
        frozenset(other for other in reads if other in reached(reads, name) and name in reached(reads, other))
        for name in reads
    } - {frozenset()}
    found = find_cycles(reads)
    assert set(found) == expected
    assert len(found) == len(expected)
    for name in reads:
        assert cycle_of(name, reads) == next((c for c in expected if name in c), frozenset())


@given(graphs)
def test_the_graph_of_cycles_has_none(reads: dict[str, list[str]]) -> None:
    outside = outside_reads(reads)
    TopologicalSorter(outside).prepare()  # raises for a cycle
    for name in reads:
        cycle = cycle_of(name, reads) or {name}
        assert outside[name] == {source for member in cycle for source in reads[member]} - cycle


@given(graphs)
def test_members_follow_each_other_after_what_they_read(reads: dict[str, list[str]]) -> None:
    order = reading_order(reads)
    assert sorted(order) == sorted(set(reads).union(*reads.values()))
    place = {name: number for number, name in enumerate(order)}
    for name, sources in outside_reads(reads).items():
        assert all(place[source] < place[name] for source in sources)
    for cycle in find_cycles(reads):
        places = sorted(place[name] for name in cycle)
        assert places == list(range(places[0], places[0] + len(cycle)))
