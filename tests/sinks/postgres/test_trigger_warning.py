"""Who creates a trigger on a served table is warned in the session that creates it, where the role may see to that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from kits.serving import KEYED, Table, connected, served
from kits.serving import shop as plain_shop
from kits.shops import OWNER, STRANGER, Shop
from millstream.postgres.address import Address
from millstream.sinks.postgres.ledger import Ledger
from millstream.sinks.postgres.serve import PostgresSink
from millstream.sinks.postgres.uninstall import bookkeeping_removal

__all__ = ["plain_shop"]
pytestmark = pytest.mark.postgres

FUNCTION = "CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
EVENT_TRIGGERS = "SELECT evtname FROM pg_event_trigger"


@dataclass(frozen=True)
class SuperShop(Shop):
    """A database in which a superuser serves, who may create event triggers."""

    @property
    def address(self) -> Address:
        return Address.parse(self.server.url(self.name))


@pytest.fixture
def shop(plain_shop: Shop) -> Shop:
    return SuperShop(plain_shop.server, plain_shop.name)


def trigger(table: str, level: str, name: str = "mine") -> str:
    return f"CREATE TRIGGER {name} AFTER INSERT ON {table} FOR EACH {level} EXECUTE FUNCTION public.nothing()"


def warned(shop: Shop, statement: str, role: str) -> list[tuple[str | None, str | None]]:
    """The warnings that a role's session gets for a statement."""
    found: list[tuple[str | None, str | None]] = []

    def keep(diagnostic: psycopg.errors.Diagnostic) -> None:
        found.append((diagnostic.severity, diagnostic.message_primary))

    with psycopg.connect(shop.server.url(shop.name, role), autocommit=True) as connection:
        connection.add_notice_handler(keep)
        connection.execute(statement.encode())
    return found


@pytest.fixture
def table(shop: Shop) -> Table:
    """Served, and owned by a role that may create triggers on it."""
    made = served(shop, KEYED, ["k"])
    made.serve((1, 10))
    made.run(FUNCTION, f"ALTER TABLE public.totals OWNER TO {OWNER}", f"GRANT CREATE ON SCHEMA public TO {STRANGER}")
    return made


def test_the_session_that_creates_it_is_warned(table: Table, shop: Shop) -> None:
    [(severity, row)] = warned(shop, trigger("public.totals", "ROW"), OWNER)
    [(_, statement)] = warned(shop, trigger("public.totals", "STATEMENT", "other"), OWNER)
    assert severity == "WARNING"
    said = 'trigger "mine" on public.totals, where millstream serves the stream table totals, fires for each row'
    assert (row or "").startswith(said)
    assert "for each DELETE, UPDATE and INSERT" in (statement or "")
    assert table.serve((1, 11)).notices  # as before, the refresh warns too


def test_other_tables_and_statements_are_no_concern(table: Table, shop: Shop) -> None:
    with psycopg.connect(shop.server.url(shop.name, STRANGER), autocommit=True) as stranger:
        stranger.execute("CREATE TABLE public.theirs (k int)")
    assert warned(shop, trigger("public.theirs", "ROW"), STRANGER) == []
    assert warned(shop, "ALTER TABLE public.totals ADD note text", OWNER) == []


def test_a_ledger_that_is_gone_breaks_nobodys_statement(table: Table, shop: Shop) -> None:
    table.run("DROP TABLE millstream.serving CASCADE")
    assert warned(shop, trigger("public.totals", "ROW"), OWNER) == []


def test_it_goes_with_the_last_served_table(table: Table, shop: Shop) -> None:
    assert table.run(EVENT_TRIGGERS) == [("millstream_create_trigger",)]
    table.run("ALTER TABLE public.totals OWNER TO postgres")
    with connected(shop) as connection:
        PostgresSink(connection, Ledger("millstream")).drop(table.target, cascade=False)
    assert table.run(EVENT_TRIGGERS) == []
    assert table.run("SELECT FROM pg_namespace WHERE nspname = 'millstream'") == []


def test_the_script_removes_it(table: Table, shop: Shop) -> None:
    for lake, left in (("another", [("millstream_create_trigger",)]), ("lake", [])):
        with connected(shop) as connection:
            connection.execute(bookkeeping_removal(lake))
        assert table.run(EVENT_TRIGGERS) == left
    assert table.run("SELECT FROM pg_namespace WHERE nspname = 'millstream'") == []
    assert warned(shop, trigger("public.totals", "ROW"), OWNER) == []


def test_a_name_that_a_user_has_taken_is_left_alone(shop: Shop) -> None:
    table = served(shop, KEYED, ["k"])
    table.run(
        "CREATE FUNCTION public.theirs() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
        "CREATE EVENT TRIGGER millstream_create_trigger ON sql_drop EXECUTE FUNCTION public.theirs()",
    )
    table.serve((1, 10))
    assert table.run("SELECT evtfoid::regproc::text FROM pg_event_trigger") == [("theirs",)]


def test_a_role_that_may_not_serves_all_the_same(plain_shop: Shop) -> None:
    table: Any = served(plain_shop, KEYED, ["k"])
    table.serve((1, 10))
    assert table.run(EVENT_TRIGGERS, "SELECT proname FROM pg_proc WHERE proname = 'warn_of_triggers'") == []
