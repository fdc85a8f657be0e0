"""Served tables whose name is made to mean another table between a look at it and the statement that names it."""

from __future__ import annotations

from typing import Any

import pytest

from kits.serving import KEYED, LEDGER, connected, served, shop
from kits.shops import Shop
from kits.swapped_names import code_of, swapped_while_waiting
from millstream.errors import Code
from millstream.sinks.postgres import table_writer
from millstream.sinks.postgres.serve import PostgresSink

__all__ = ["shop"]
pytestmark = pytest.mark.postgres

_SWAP = ("ALTER TABLE public.totals RENAME TO moved", "ALTER TABLE public.precious RENAME TO totals")


def test_another_table_is_not_dropped(shop: Shop) -> None:
    table = served(shop, KEYED, ["k"])
    table.serve((1, 10))
    table.as_owner("CREATE TABLE public.precious AS SELECT 7 AS k, 70 AS v")
    with connected(shop) as connection, swapped_while_waiting(shop, *_SWAP, role="millstream"):
        PostgresSink(connection, LEDGER).drop(table.target, cascade=False)
    assert table.run("SELECT * FROM public.totals") == [(7, 70)]
    assert table.run("SELECT to_regclass('public.moved')") == [(None,)]  # what was served, by its new name


def test_another_table_is_not_granted(shop: Shop) -> None:
    table = served(shop, KEYED, ["k"])
    table.serve((1, 10))
    table.as_owner("CREATE TABLE public.precious AS SELECT 7 AS k, 70 AS v")
    table.option(grants=("stranger",))
    with connected(shop) as connection, swapped_while_waiting(shop, *_SWAP, role="millstream"):
        code = code_of(lambda: PostgresSink(connection, LEDGER).grant(table.target))
    assert code is Code.SERVE_FAILED
    assert table.run("SELECT has_table_privilege('stranger', 'public.totals', 'SELECT')") == [(False,)]


@pytest.mark.parametrize("full", [False, True])
def test_a_table_of_another_schema_of_that_name_is_not_written(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """No lock on a table holds its schema: what was written to another one is undone."""
    table = served(shop, KEYED, ["k"])
    with shop.owner() as owner:
        owner.execute("CREATE SCHEMA s")
        owner.execute("GRANT USAGE, CREATE ON SCHEMA s TO millstream")
    table.option(schema="s")
    table.serve((1, 10))
    original, renamed = table_writer.copy_incoming if full else table_writer.copy_change, list[int]()

    def renamed_first(*args: Any) -> Any:
        if not renamed:
            renamed.append(1)
            with shop.owner() as owner:
                owner.execute("ALTER SCHEMA s RENAME TO s_old")
                owner.execute("CREATE SCHEMA s")
                owner.execute("GRANT USAGE ON SCHEMA s TO millstream")
                owner.execute("CREATE TABLE s.totals (k bigint PRIMARY KEY, v bigint)")
                owner.execute("GRANT ALL ON s.totals TO millstream")
        return original(*args)  # type: ignore[operator]

    monkeypatch.setattr(table_writer, "copy_incoming" if full else "copy_change", renamed_first)
    code = code_of(lambda: table.serve((1, 11), (2, 20), full=full))
    assert renamed
    assert code in (Code.NAME_TAKEN, Code.SERVE_FAILED)
    assert table.run("SELECT * FROM s.totals") == []
    assert table.run("SELECT * FROM s_old.totals") == [(1, 10)]
