"""Cycles in a graph of names: sets of names that read each other (strongly connected components). Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from graphlib import TopologicalSorter

Cycle = frozenset[str]


def find_cycles(reads: Mapping[str, Collection[str]]) -> tuple[Cycle, ...]:
    """The cycles, by their first names. A name belongs to one if it reads itself, directly or through others.

    Args:
        reads: what each name reads; a name without an entry reads nothing.

    >>> [sorted(cycle) for cycle in find_cycles({"a": ["b"], "b": ["a", "t"], "c": ["c"], "d": ["a"]})]
    [['a', 'b'], ['c']]
    """
    found = [frozenset(c) for c in _strongly_connected(reads) if len(c) > 1 or c[0] in reads.get(c[0], ())]
    return tuple(sorted(found, key=min))


def cycle_of(name: str, reads: Mapping[str, Collection[str]]) -> Cycle:
    """The cycle that a name belongs to; empty if it belongs to none."""
    return next((cycle for cycle in find_cycles(reads) if name in cycle), frozenset())


def outside_reads(reads: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """What each name reads, where a member of a cycle reads all that any member reads outside of the cycle.

    This graph has no cycles.

    >>> {name: sorted(read) for name, read in outside_reads({"a": ["b", "t"], "b": ["a", "u"]}).items()}
    {'a': ['t', 'u'], 'b': ['t', 'u']}
    """
    found = {name: frozenset(read) for name, read in reads.items()}
    for cycle in find_cycles(reads):
        joint = frozenset[str]().union(*(found[member] for member in cycle)) - cycle
        found |= dict.fromkeys(cycle, joint)
    return found


def reading_order(reads: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """All names, each after what it reads, otherwise in alphabetical order; members of a cycle follow each other.

    >>> reading_order({"d": ["b"], "b": ["c", "t"], "c": ["b"]})
    ('t', 'b', 'c', 'd')
    """
    cycles = find_cycles(reads)
    first = {member: min(cycle) for cycle in cycles for member in cycle}
    members = {min(cycle): sorted(cycle) for cycle in cycles}
    sorter = TopologicalSorter[str]()
    for name, read in reads.items():
        unit = first.get(name, name)
        sorter.add(unit, *sorted({first.get(r, r) for r in read} - {unit}))
    sorter.prepare()
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        for unit in ready:
            order += members.get(unit, [unit])
        sorter.done(*ready)
    return tuple(order)


def _strongly_connected(reads: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Tarjan's algorithm, without recursion: a chain of a thousand tables is a deep graph."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found: list[list[str]] = []
    for start in reads:
        if start in number:
            continue
        open_names = [(start, iter(sorted(reads.get(start, ()))))]
        number[start] = lowest[start] = len(number)
        path.append(start)
        on_path.add(start)
        while open_names:
            name, sources = open_names[-1]
            for source in sources:
                if source not in number:
                    number[source] = lowest[source] = len(number)
                    path.append(source)
                    on_path.add(source)
                    open_names.append((source, iter(sorted(reads.get(source, ())))))
                    break
                if source in on_path:
                    lowest[name] = min(lowest[name], number[source])
            else:
                open_names.pop()
                if open_names:
                    above = open_names[-1][0]
                    lowest[above] = min(lowest[above], lowest[name])
                if lowest[name] == number[name]:
                    place = path.index(name)
                    found.append(path[place:])
                    on_path.difference_update(path[place:])
                    del path[place:]
    return found
