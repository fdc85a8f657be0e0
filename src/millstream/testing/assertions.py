"""The check of all property tests: after every refresh the contents equal the query's result, as bags."""

from __future__ import annotations

from collections import Counter

from millstream.diff.plan import Kind
from millstream.testing.duck import DuckStreamTable
from millstream.testing.strategies import Scenario, Tables
from millstream.testing.values import Row


def assert_follows(query: str, tables: Tables, scenario: Scenario, oracle: str | None = None) -> DuckStreamTable:
    """Load, change, refresh: compare after the load, after every refresh, and after a last one.

    A refresh that can only add rows is run as an append every other time.

    Args:
        oracle: the query in DuckDB's SQL, if it differs.
    """
    table = DuckStreamTable(query, tables, oracle=oracle)
    table.change(scenario.initial)
    table.load()
    assert_exact(table, "load")
    for number, step in enumerate(scenario.steps, start=1):
        table.change(step.changes)
        table.pass_time(step.hours)
        if not step.refreshes and number < len(scenario.steps):
            continue
        if number % 2 and table.can_append():
            table.append()
            assert_exact(table, f"append {number}")
        else:
            before = table.keyed_contents()
            table.refresh()
            assert_exact(table, f"refresh {number}")
            assert_counted(table, before)
    return table


def assert_exact(table: DuckStreamTable, when: str) -> None:
    """Assert that the contents equal the query's result."""
    contents, expected = table.contents(), table.expected()
    if contents != expected:
        raise AssertionError(
            f"{when} of {table.query}\n  missing: {expected - contents}\n  extra: {contents - expected}"
        )


def assert_counted(table: DuckStreamTable, before: list[tuple[Row, Row]]) -> None:
    """Assert that the counts of inserted, updated and deleted rows match a comparison of before and after by key.

    The single row of a global aggregate has the empty key; a bag's rows have no key, so they are never updated.
    """
    after = table.keyed_contents()
    if table.stages[-1].stage.layout.kind is Kind.KEYED:
        old, new = dict(before), dict(after)
        wanted = Counter(
            insert=len(new.keys() - old.keys()),
            delete=len(old.keys() - new.keys()),
            update=sum(old[key] != new[key] for key in old.keys() & new.keys()),
        )
    else:
        gone, come = Counter(row for _, row in before), Counter(row for _, row in after)
        wanted = Counter(insert=(come - gone).total(), delete=(gone - come).total())
    counted = table.shown()
    assert counted == +wanted, f"{table.query}: counted {dict(counted)}, seen {dict(+wanted)}"
