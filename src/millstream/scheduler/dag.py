"""The dependency graph of stream tables, which gives the order of refreshes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from millstream.scheduler.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Dag:
    """Tables, and which table reads which. Made by `Dag.build`, so it has no cycles.

    Attributes:
        nodes: all names, each source before its dependents, otherwise in the order of names.
        edges: pairs (source, dependent).
        stream_tables: the names that are stream tables; the others are only sources.
    """

    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    stream_tables: frozenset[str]

    @classmethod
    def build(cls, sources: Mapping[str, Iterable[str]]) -> Dag:
        """Build the graph from the sources of each stream table.

        Raises:
            MillstreamError: `CYCLE`, with the path.

        >>> Dag.build({"totals": ["orders"], "best": ["totals"]}).nodes
        ('orders', 'totals', 'best')
        """
        read = {name: sorted(set(names)) for name, names in sources.items()}
        edges = sorted((source, name) for name, names in read.items() for source in names)
        return cls(_ordered(read), tuple(edges), frozenset(read))

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

        The tables of one level do not depend on each other; they are in the order of `nodes`.

        >>> Dag.build({"a": ["x"], "b": ["x"], "c": ["a", "b"]}).levels(["a", "b", "c"])
        (('a', 'b'), ('c',))
        """
        given = set(names)
        self._refuse_unknown(given)
        read = self._neighbours(backwards=True)
        below: dict[str, int] = {}  # how many of the given tables are on the longest path to each table
        found: list[list[str]] = []
        for name in self.nodes:
            level = max((below[source] for source in read.get(name, ())), default=0)
            below[name] = level + (name in given)
            if name in given:
                found.extend([] for _ in range(level + 1 - len(found)))
                found[level].append(name)
        return tuple(tuple(level) for level in found)

    def effective_schedules(self, schedules: Mapping[str, Schedule]) -> dict[str, Schedule | None]:
        """The schedule by which each stream table is refreshed.

        A CALCULATED table takes the shortest duration among the effective schedules of its dependents; cron expressions
        do not count, and None means that it is refreshed on demand only.

        >>> from millstream.scheduler.schedule import Schedule
        >>> chain = Dag.build({"totals": ["orders"], "best": ["totals"]})
        >>> given = {"totals": Schedule.parse("CALCULATED"), "best": Schedule.parse("30s")}
        >>> chain.effective_schedules(given)["totals"].text
        '30s'
        """
        readers = self._neighbours(backwards=False)
        effective: dict[str, Schedule | None] = {}
        for name in reversed(self.nodes):
            if name not in self.stream_tables:
                continue
            own = schedules[name]
            if own.kind == "CALCULATED":
                effective[name] = _shortest(effective[reader] for reader in readers.get(name, ()))
            else:
                effective[name] = own
        return effective

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart; stream tables are rounded."""
        ids = {name: f"n{i}" for i, name in enumerate(self.nodes)}
        lines = ["flowchart LR"]
        for name in self.nodes:
            label = '"' + name.replace("&", "#amp;").replace('"', "#quot;") + '"'
            lines.append(f"    {ids[name]}" + (f"([{label}])" if name in self.stream_tables else f"[{label}]"))
        lines += [f"    {ids[source]} --> {ids[reader]}" for source, reader in self.edges]
        return "\n".join(lines) + "\n"

    def dot(self) -> str:
        """The graph for Graphviz; stream tables are rounded."""
        lines = ["digraph lake {", "    rankdir=LR;"]
        for name in self.nodes:
            style = "box, style=rounded" if name in self.stream_tables else "box"
            lines.append(f"    {_quoted(name)} [shape={style}];")
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


def _ordered(read: Mapping[str, list[str]]) -> tuple[str, ...]:
    sorter = TopologicalSorter(read)
    try:
        sorter.prepare()
    except CycleError as e:
        raise _cycle(e.args[1]) from e
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order += ready
        sorter.done(*ready)
    return tuple(order)


def _cycle(path: list[str]) -> MillstreamError:
    """The error for a cycle; its path starts at the alphabetically first name, so that the text does not vary."""
    names = path[:-1]
    first = names.index(min(names))
    around = names[first:] + names[: first + 1]
    return MillstreamError(
        Code.CYCLE,
        f"{around[0]} would read itself: {' -> '.join(reversed(around))}",
        hint="read the base tables instead",
    )


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
