"""The oracle of all property tests: after every refresh the contents are the query's result, as bags."""

from __future__ import annotations

from collections import Counter

from millstream.testing.duck import DuckStreamTable
from millstream.testing.strategies import Scenario, Tables
from millstream.testing.values import Row


def assert_follows(query: str, tables: Tables, scenario: Scenario) -> DuckStreamTable:
    """Load, change, refresh: compare after the load, after every refresh, and after a last one."""
    table = DuckStreamTable(query, tables)
    table.change(scenario.initial)
    table.load()
    assert_exact(table, "load")
    for number, step in enumerate(scenario.steps, start=1):
        table.change(step.changes)
        if step.refreshes or number == len(scenario.steps):
            before = Counter(table.keyed_contents())
            table.refresh()
            assert_exact(table, f"step {number}")
            assert_counted(table, before)
    return table


def assert_exact(table: DuckStreamTable, when: str) -> None:
    """The contents are the query's result."""
    contents, expected = table.contents(), table.expected()
    if contents != expected:
        raise AssertionError(f"{when} of {table.query}\n  missing: {expected - contents}\n  extra: {contents - expected}")


def assert_counted(table: DuckStreamTable, before: Counter[tuple[Row, Row]]) -> None:
    """The rows inserted, updated and deleted are what a user sees who compares before and after by key."""
    after = Counter(table.keyed_contents())
    if table.stages[-1].stage.layout.key:
        old, new = dict(before.keys()), dict(after.keys())
        wanted = Counter(
            insert=len(new.keys() - old.keys()),
            delete=len(old.keys() - new.keys()),
            update=sum(old[key] != new[key] for key in old.keys() & new.keys()),
        )
    elif isinstance(table.stages[-1].stage.layout.key, tuple) and table.shown()["update"]:
        return  # a global aggregate's one row: it has no key to compare by
    else:
        wanted = Counter(insert=(after - before).total(), delete=(before - after).total())
    counted = table.shown()
    assert counted == +wanted, f"{table.query}: counted {counted}, seen {+wanted}"
