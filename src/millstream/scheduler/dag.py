"""The dependency graph of stream tables, which gives the order of refreshes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from millstream.cycles import Cycle, find_cycles, outside_reads, reading_order
from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from millstream.scheduler.schedule import Schedule


@dataclass(frozen=True)
class Dag:
    """Tables, and which table reads which. Made by `Dag.build`.

    It has no cycles, except that circular stream tables read each other. They are refreshed as one unit, so they are
    one place in every order.

    Attributes:
        nodes: all names, each source before its dependents, otherwise in the order of names. The members of a cycle
            follow each other.
        edges: pairs (source, dependent).
        stream_tables: the names that are stream tables; the others are only sources.
    """

    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    stream_tables: frozenset[str]

    @classmethod
    def build(cls, sources: Mapping[str, Iterable[str]]) -> Dag:
        """Build the graph from the sources of each stream table.

        >>> Dag.build({"totals": ["orders"], "best": ["totals"]}).nodes
        ('orders', 'totals', 'best')
        """
        read = {name: sorted(set(names)) for name, names in sources.items()}
        edges = sorted((source, name) for name, names in read.items() for source in names)
        return cls(reading_order(read), tuple(edges), frozenset(read))

    @cached_property
    def cycles(self) -> tuple[Cycle, ...]:
        """The sets of stream tables that read each other, by their first names."""
        return find_cycles(self._neighbours(backwards=True))

    @cached_property
    def peers(self) -> Mapping[str, Cycle]:
        """The cycle of each of its members; other tables have no entry."""
        return {member: cycle for cycle in self.cycles for member in cycle}

    @cached_property
    def outside_sources(self) -> Mapping[str, frozenset[str]]:
        """The direct sources of each table; for a member of a cycle, those of all members outside of the cycle."""
        return outside_reads(self._neighbours(backwards=True))

    def with_peers(self, names: Iterable[str]) -> set[str]:
        """Some tables, and those that are refreshed as one unit with them."""
        given = set(names)
        return given.union(*(self.peers.get(name, ()) for name in given))

    def sources(self, name: str) -> tuple[str, ...]:
        """The direct sources of a table."""
        return tuple(source for source, reader in self.edges if reader == name)

    def dependents(self, name: str) -> tuple[str, ...]:
        """The direct dependents of a table."""
        return tuple(reader for source, reader in self.edges if source == name)

    def upstream(self, names: Iterable[str]) -> tuple[str, ...]:
        """All that the tables read, directly or indirectly, in the order of `nodes`, without the tables themselves."""
        return self._closure(names, self._neighbours(backwards=True))

    def downstream(self, names: Iterable[str]) -> tuple[str, ...]:
        """All that reads the tables, directly or indirectly, in the order of `nodes`, without the tables themselves."""
        return self._closure(names, self._neighbours(backwards=False))

    def refresh_order(self, names: Iterable[str]) -> tuple[str, ...]:
        """The tables and all stream tables they read, sources first."""
        named = set(names)
        wanted = named.union(self.upstream(named)) & self.stream_tables
        return tuple(n for n in self.nodes if n in wanted)

    def components(self, names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """Partition some tables: two are in one component if one reads the other, or both read a third, directly.

        Names inside a component, and components by their first names, are in the order of `nodes`.

        >>> Dag.build({"a": ["x"], "b": ["x"], "c": ["y"]}).components(["a", "b", "c"])
        (('a', 'b'), ('c',))
        """
        given = set(names)
        self._refuse_unknown(given)
        leader: dict[str, str] = {}
        for source, dependent in self.edges:
            if dependent in given:
                _merge(leader, source, dependent)
        members: dict[str, list[str]] = {}
        for name in self.nodes:
            if name in given:
                members.setdefault(_leader(leader, name), []).append(name)
        return tuple(tuple(component) for component in members.values())

    def levels(self, names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """Partition some tables so that each comes after all of them that it reads, directly or indirectly.

        The tables of one level do not depend on each other, unless they are members of one cycle; they are in the
        order of `nodes`.

        >>> Dag.build({"a": ["x"], "b": ["x"], "c": ["a", "b"]}).levels(["a", "b", "c"])
        (('a', 'b'), ('c',))
        """
        given = set(names)
        self._refuse_unknown(given)
        read = self.outside_sources
        below: dict[str, int] = {}  # how many of the given tables are on the longest path to each table
        found: list[list[str]] = []
        for name in self.nodes:
            level = max((below[source] for source in read.get(name, ())), default=0)
            below[name] = level + (not given.isdisjoint(self.peers.get(name, (name,))))
            if name in given:
                found.extend([] for _ in range(level + 1 - len(found)))
                found[level].append(name)
        return tuple(tuple(level) for level in found)

    def effective_schedules(self, schedules: Mapping[str, Schedule]) -> dict[str, Schedule | None]:
        """The schedule by which each stream table is refreshed.

        A CALCULATED table takes the shortest duration among the effective schedules of its dependents; cron expressions
        do not count, and None means that it is refreshed on demand only. In a cycle, each member depends on the others.

        >>> from millstream.scheduler.schedule import Schedule
        >>> chain = Dag.build({"totals": ["orders"], "best": ["totals"]})
        >>> given = {"totals": Schedule.parse("CALCULATED"), "best": Schedule.parse("30s")}
        >>> chain.effective_schedules(given)["totals"].text
        '30s'
        """
        readers = outside_reads(self._neighbours(backwards=False))
        effective: dict[str, Schedule | None] = {}
        for name in reversed(self.nodes):
            if name not in self.stream_tables:
                continue
            own = schedules[name]
            if own.kind == "CALCULATED":
                around = [schedules[peer] for peer in self.peers.get(name, ()) if schedules[peer].kind != "CALCULATED"]
                effective[name] = _shortest([*around, *(effective[reader] for reader in readers.get(name, ()))])
            else:
                effective[name] = own
        return effective

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart; stream tables are rounded, and those of a cycle are framed."""
        ids = {name: f"n{i}" for i, name in enumerate(self.nodes)}
        lines = ["flowchart LR"]
        for name in self.nodes:
            label = '"' + name.replace("&", "#amp;").replace('"', "#quot;") + '"'
            lines.append(f"    {ids[name]}" + (f"([{label}])" if name in self.stream_tables else f"[{label}]"))
        for number, cycle in enumerate(self.cycles, start=1):
            lines.append(f'    subgraph cycle{number}["cycle {number}"]')
            lines += [f"        {ids[name]}" for name in sorted(cycle)]
            lines.append("    end")
        lines += [f"    {ids[source]} --> {ids[reader]}" for source, reader in self.edges]
        return "\n".join(lines) + "\n"

    def dot(self) -> str:
        """The graph for Graphviz; stream tables are rounded, and those of a cycle are framed."""
        lines = ["digraph lake {", "    rankdir=LR;"]
        for name in self.nodes:
            style = "box, style=rounded" if name in self.stream_tables else "box"
            lines.append(f"    {_quoted(name)} [shape={style}];")
        for number, cycle in enumerate(self.cycles, start=1):
            members = " ".join(f"{_quoted(name)};" for name in sorted(cycle))
            lines.append(f'    subgraph cluster_{number} {{ label="cycle {number}"; {members} }}')
        lines += [f"    {_quoted(source)} -> {_quoted(reader)};" for source, reader in self.edges]
        return "\n".join([*lines, "}"]) + "\n"

    def _neighbours(self, *, backwards: bool) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for source, reader in self.edges:
            start, end = (reader, source) if backwards else (source, reader)
            found.setdefault(start, []).append(end)
        return found

    def _closure(self, names: Iterable[str], neighbours: Mapping[str, list[str]]) -> tuple[str, ...]:
        given = set(names)
        self._refuse_unknown(given)
        reached: set[str] = set()
        waiting = list(given)
        while waiting:
            for name in neighbours.get(waiting.pop(), ()):
                if name not in reached:
                    reached.add(name)
                    waiting.append(name)
        return tuple(n for n in self.nodes if n in reached and n not in given)

    def _refuse_unknown(self, names: set[str]) -> None:
        unknown = sorted(names.difference(self.nodes))
        if unknown:
            raise MillstreamError(Code.UNKNOWN_TABLE, f"not in the graph: {', '.join(unknown)}")


def _leader(leader: dict[str, str], name: str) -> str:
    """The name that stands for the set of a name; paths are halved on the way, so that they stay short."""
    while (above := leader.get(name, name)) != name:
        leader[name] = leader.get(above, above)
        name = leader[name]
    return name


def _merge(leader: dict[str, str], one: str, other: str) -> None:
    """Put the sets of two names together."""
    first, second = sorted((_leader(leader, one), _leader(leader, other)))
    leader[second] = first


def _shortest(schedules: Iterable[Schedule | None]) -> Schedule | None:
    durations = [s for s in schedules if s is not None and s.seconds is not None]
    return min(durations, key=lambda s: (s.seconds or 0, s.text), default=None)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
