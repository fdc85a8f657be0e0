"""The dependency graph: order, closures, cycles, inherited schedules, pictures."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import Code, MillstreamError
from millstream.scheduler.dag import Dag
from millstream.scheduler.schedule import Schedule

DIAMOND = Dag.build({"left": ["orders"], "right": ["orders", "customers"], "top": ["left", "right"], "alone": []})

NAMES = [f"t{i}" for i in range(8)]


@st.composite
def sources(draw: st.DrawFn) -> dict[str, list[str]]:
    """A graph without cycles: each table reads base tables and tables before it in some order."""
    order = draw(st.permutations(NAMES))
    return {
        name: draw(st.lists(st.sampled_from([*order[:i], "base1", "base2"]), max_size=4))
        for i, name in enumerate(order)
    }


def test_nodes_come_after_what_they_read() -> None:
    assert DIAMOND.nodes == ("alone", "customers", "orders", "left", "right", "top")
    assert DIAMOND.stream_tables == {"left", "right", "top", "alone"}
    assert DIAMOND.edges == (
        ("customers", "right"), ("left", "top"), ("orders", "left"), ("orders", "right"), ("right", "top"),
    )  # fmt: skip
    assert DIAMOND.sources("right") == ("customers", "orders")
    assert DIAMOND.dependents("orders") == ("left", "right")


def test_closures() -> None:
    assert DIAMOND.upstream(["top"]) == ("customers", "orders", "left", "right")
    assert DIAMOND.downstream(["customers"]) == ("right", "top")
    assert DIAMOND.downstream(["top", "alone"]) == ()
    assert DIAMOND.refresh_order(["top"]) == ("left", "right", "top")
    assert DIAMOND.refresh_order(["right", "alone"]) == ("alone", "right")
    with pytest.raises(MillstreamError) as caught:
        DIAMOND.upstream(["nobody"])
    assert caught.value.code == Code.UNKNOWN_TABLE


CIRCULAR = Dag.build({"odd": ["edges", "even"], "even": ["odd", "steps"], "steps": ["edges"], "far": ["even"]})


def test_the_members_of_a_cycle_are_one_place_in_every_order() -> None:
    assert CIRCULAR.nodes == ("edges", "steps", "even", "odd", "far")
    assert CIRCULAR.cycles == (frozenset({"even", "odd"}),)
    assert CIRCULAR.peers == dict.fromkeys(("even", "odd"), frozenset({"even", "odd"}))
    assert CIRCULAR.with_peers(["odd", "far"]) == {"even", "odd", "far"}
    assert CIRCULAR.refresh_order(["odd"]) == ("steps", "even", "odd")
    assert CIRCULAR.levels(CIRCULAR.stream_tables) == (("steps",), ("even", "odd"), ("far",))
    assert CIRCULAR.levels(["odd", "far"]) == (("odd",), ("far",))
    assert CIRCULAR.components(["even", "far", "odd"]) == (("even", "odd", "far"),)
    assert CIRCULAR.upstream(["odd"]) == ("edges", "steps", "even")
    assert CIRCULAR.downstream(["odd"]) == ("even", "far")
    alone = Dag.build({"a": ["a", "t"]})
    assert (alone.cycles, alone.levels(["a"])) == ((frozenset({"a"}),), (("a",),))


def test_calculated_in_a_cycle_takes_the_shortest_of_its_members_and_their_readers() -> None:
    read = {"a": ["b"], "b": ["a"], "c": ["a"]}
    assert effective(read, a="CALCULATED", b="5m", c="1h") == {"a": "5m", "b": "5m", "c": "1h"}
    assert effective(read, a="CALCULATED", b="CALCULATED", c="1h") == {"a": "1h", "b": "1h", "c": "1h"}
    assert effective(read, a="@hourly", b="CALCULATED", c="CALCULATED") == {"a": "@hourly", "b": None, "c": None}


def test_a_cycle_is_framed() -> None:
    dag = Dag.build({"a": ["b"], "b": ["a"]})
    assert '    subgraph cycle1["cycle 1"]\n        n0\n        n1\n    end\n' in dag.mermaid()
    assert '    subgraph cluster_1 { label="cycle 1"; "a"; "b"; }\n' in dag.dot()


@given(sources())
def test_every_graph_without_cycles_is_ordered(read: dict[str, list[str]]) -> None:
    dag = Dag.build(read)
    place = {name: i for i, name in enumerate(dag.nodes)}
    assert set(place) == set(read).union(*read.values())
    assert len(dag.nodes) == len(place)
    assert set(dag.edges) == {(s, name) for name, names in read.items() for s in names}
    assert all(place[s] < place[name] for s, name in dag.edges)
    for name in dag.nodes:
        assert set(dag.upstream([name])) == {n for n in dag.nodes if name in dag.downstream([n])}
        assert set(dag.sources(name)) <= set(dag.upstream([name]))


def test_tables_that_share_what_they_read_are_one_component() -> None:
    dag = Dag.build({"a": ["x"], "b": ["x", "y"], "c": ["y"], "d": ["z"], "e": ["d"], "f": []})
    assert dag.components(["a", "b", "c", "d", "e", "f"]) == (("f",), ("a", "b", "c"), ("d", "e"))
    assert dag.components(["a", "c"]) == (("a",), ("c",))  # nothing that is refreshed connects them
    assert dag.components(["d", "e"]) == (("d", "e"),)
    assert dag.components([]) == ()


def test_levels_follow_the_graph_also_through_tables_that_are_not_given() -> None:
    dag = Dag.build({"a": ["x"], "b": ["a"], "c": ["b"], "d": ["x"]})
    assert dag.levels(["a", "b", "c", "d"]) == (("a", "d"), ("b",), ("c",))
    assert dag.levels(["a", "c"]) == (("a",), ("c",))
    assert dag.levels([]) == ()
    with pytest.raises(MillstreamError):
        dag.levels(["nobody"])
    with pytest.raises(MillstreamError):
        dag.components(["nobody"])


@given(sources(), st.sets(st.sampled_from(NAMES)))
def test_levels_and_components_partition_any_set_of_tables(read: dict[str, list[str]], names: set[str]) -> None:
    dag = Dag.build(read)
    levels, components = dag.levels(names), dag.components(names)
    place = {name: number for number, level in enumerate(levels) for name in level}
    assert sorted(n for level in levels for n in level) == sorted(names)
    assert all(levels)
    for name in names:
        above = names.intersection(dag.upstream([name]))
        assert place[name] == max((place[n] + 1 for n in above), default=0)
    assert sorted(n for component in components for n in component) == sorted(names)
    of = {name: number for number, component in enumerate(components) for name in component}
    reach = {name: {name, *dag.sources(name)} for name in names}
    assert all(of[a] == of[b] for a, b in itertools.combinations(sorted(names), 2) if reach[a] & reach[b])
    for component in components:  # and nothing else is in it
        joined, rest = {component[0]}, set(component[1:])
        while found := {n for n in rest if any(reach[n] & reach[m] for m in joined)}:
            joined, rest = joined | found, rest - found
        assert not rest


def effective(read: dict[str, list[str]], **texts: str) -> dict[str, str | None]:
    found = Dag.build(read).effective_schedules({name: Schedule.parse(t) for name, t in texts.items()})
    return {name: s.text if s else None for name, s in found.items()}


def test_calculated_takes_the_shortest_of_what_reads_it() -> None:
    chain = {"tree": ["departments"], "stats": ["tree"], "report": ["stats"], "slow": ["tree"]}
    assert effective(chain, tree="CALCULATED", stats="CALCULATED", report="30s", slow="1h") == {
        "tree": "30s", "stats": "30s", "report": "30s", "slow": "1h",
    }  # fmt: skip


def test_cron_takes_no_part_in_calculated() -> None:
    pair = {"a": ["orders"], "b": ["a"]}
    assert effective(pair, a="CALCULATED", b="@hourly") == {"a": None, "b": "@hourly"}
    assert effective(pair, a="@daily", b="1s") == {"a": "@daily", "b": "1s"}


def test_calculated_that_nothing_reads_is_refreshed_on_demand() -> None:
    assert effective({"a": ["orders"], "b": ["a"]}, a="CALCULATED", b="CALCULATED") == {"a": None, "b": None}


@given(sources(), st.data())
def test_no_table_is_slower_than_what_reads_it_through_calculated(
    read: dict[str, list[str]], data: st.DataObject
) -> None:
    texts = st.sampled_from(["CALCULATED", "1s", "5m", "@hourly"])
    schedules = {name: Schedule.parse(data.draw(texts)) for name in NAMES}
    dag = Dag.build(read)
    found = dag.effective_schedules(schedules)
    for name in NAMES:
        if schedules[name].text != "CALCULATED":
            assert found[name] == schedules[name]
            continue
        readers = [found[r] for r in dag.dependents(name)]
        seconds = [s.seconds for s in readers if s is not None and s.seconds is not None]
        own = found[name]
        assert (own.seconds if own else None) == min(seconds, default=None)


def test_pictures() -> None:
    dag = Dag.build({'to"tals': ["orders"]})
    assert dag.mermaid() == (
        "flowchart LR\n"
        '    n0["orders"]\n'
        '    n1(["to#quot;tals"])\n'
        "    n0 --> n1\n"
    )  # fmt: skip
    assert dag.dot() == (
        "digraph lake {\n"
        "    rankdir=LR;\n"
        '    "orders" [shape=box];\n'
        '    "to\\"tals" [shape=box, style=rounded];\n'
        '    "orders" -> "to\\"tals";\n'
        "}\n"
    )


def test_an_empty_lake() -> None:
    empty = Dag.build({})
    assert (empty.nodes, empty.edges, empty.mermaid()) == ((), (), "flowchart LR\n")
