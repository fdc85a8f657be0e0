"""Rights on views change though nothing is written to tables: every tick checks them, and readers get an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kits.capture import Kit, open_kit
from kits.capture import advance as advanced
from kits.catalog import body
from kits.quarantine import run
from kits.shops import MILLSTREAM, STRANGER, Shop
from millstream import Code, MillstreamError
from millstream.catalog.models import Definition, Dependency, NewStreamTable, SourceKind, Stage, new_id
from millstream.naming import TableName
from millstream.results import RefreshMode
from millstream.sources.postgres.server.view_rights import read_view_rights

pytestmark = pytest.mark.postgres
Superuser = psycopg.Connection[Any]
GROUP, NOBODY = "view_group", "view_nobody"


@pytest.fixture
def superuser(shop: Shop) -> Iterator[Superuser]:
    """Makes a view that a stranger owns over a table that the stranger may read, and another one over that view."""
    with shop.owner() as owner:
        run(owner, "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
        run(owner, "CREATE TABLE other (id int PRIMARY KEY, v int)")
    with psycopg.connect(shop.server.url(shop.name), autocommit=True) as connection:
        for role in (GROUP, NOBODY):
            with suppress(psycopg.errors.DuplicateObject):
                connection.execute(f"CREATE ROLE {role}".encode())
        run(connection, f"CREATE SCHEMA s AUTHORIZATION {STRANGER}; GRANT USAGE ON SCHEMA s TO {MILLSTREAM}")
        run(connection, "CREATE VIEW s.inner_ AS SELECT id, v FROM public.t")
        run(connection, "CREATE VIEW s.outer_ AS SELECT id FROM s.inner_")
        run(connection, f"ALTER VIEW s.inner_ OWNER TO {STRANGER}; ALTER VIEW s.outer_ OWNER TO {STRANGER}")
        run(connection, f"GRANT SELECT ON t TO {STRANGER}; GRANT SELECT ON s.outer_ TO {MILLSTREAM}")
        yield connection
        run(connection, f"REVOKE {GROUP} FROM {STRANGER}; ALTER ROLE {MILLSTREAM} NOBYPASSRLS")


@pytest.fixture
def kit(shop: Shop, superuser: Superuser, tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path / "lake", shop.address) as opened:
        opened.read("b", "other", "id", "v")
        through(opened, "a", {"s.outer_": True, "s.inner_": False})
        opened.tick()
        yield opened


def through(kit: Kit, name: str, views: Mapping[str, bool]) -> None:
    """Record a stream table that reads `t` through views, of which it names some itself."""
    full = "shop.public.t"
    with kit.captures.beginning({full: ("id", "v")}):
        dependencies = [Dependency(kind=SourceKind.TABLE, name=full, source_id=kit.capture("t").path)]
        for view, is_named in views.items():
            used = ("id",) if is_named else ()
            at = f"shop.{view}"
            dependencies.append(
                Dependency(kind=SourceKind.VIEW, name=at, source_id=at, columns_used=used, fingerprint="")
            )
        kit.catalog.create_stream_table(
            NewStreamTable(
                id=new_id(),
                name=TableName.parse(name),
                schedule="1m",
                refresh_mode=RefreshMode.AUTO,
                definition=Definition(
                    original_query="SELECT 1",
                    dialect="postgres",
                    body=body(),
                    settings={},
                    columns=(("a", "int"),),
                    dependencies=tuple(dependencies),
                ),
                stages=(Stage(id=new_id(), ordinal=0, path=name, is_public=True),),
            )
        )


def advance(kit: Kit, *views: str, named: str | None = None) -> dict[str, int]:
    """As a refresh does of a table that reads `t` through views, of which it names one."""
    names = {"shop.public.t", *(f"shop.{view}" for view in views)}
    return advanced(kit.captures, names, {f"shop.{named}"} if named else set())


def refused(kit: Kit, *views: str, named: str | None = None) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        advance(kit, *views, named=named)
    assert caught.value.code is Code.PRIVILEGE_MISSING
    return caught.value


NEST = ("s.outer_", "s.inner_")
FAULTS = {
    "table": (f"REVOKE SELECT ON t FROM {STRANGER}", f"GRANT SELECT ON t TO {STRANGER}"),
    "column": (
        f"REVOKE SELECT ON t FROM {STRANGER}; GRANT SELECT (id) ON t TO {STRANGER}",
        f"GRANT SELECT (v) ON t TO {STRANGER}",
    ),
    "view": (f"REVOKE SELECT ON s.outer_ FROM {MILLSTREAM}", f"GRANT SELECT ON s.outer_ TO {MILLSTREAM}"),
    "schema": (f"REVOKE USAGE ON SCHEMA s FROM {MILLSTREAM}", f"GRANT USAGE ON SCHEMA s TO {MILLSTREAM}"),
    "owner": (
        f"ALTER VIEW s.inner_ OWNER TO {NOBODY}",
        f"GRANT SELECT ON t TO {NOBODY}; GRANT SELECT ON s.inner_ TO {STRANGER}",
    ),
    "outer owner": (f"ALTER VIEW s.outer_ OWNER TO {NOBODY}", f"GRANT SELECT ON s.inner_ TO {NOBODY}"),
    "group": (
        f"REVOKE SELECT ON t FROM {STRANGER}; GRANT SELECT ON t TO {GROUP}; GRANT {GROUP} TO {STRANGER}; "
        f"REVOKE {GROUP} FROM {STRANGER}",
        f"GRANT {GROUP} TO {STRANGER}",
    ),
    "row security": (
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER ROLE millstream BYPASSRLS",
        "ALTER TABLE t DISABLE ROW LEVEL SECURITY; ALTER ROLE millstream NOBYPASSRLS",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_right_that_is_gone_and_comes_back(kit: Kit, superuser: Superuser, fault: str) -> None:
    made, cleared = FAULTS[fault]
    advance(kit, *NEST, named="s.outer_")
    run(superuser, made)
    for _ in range(2):  # the second time nothing has happened in the database
        error = refused(kit, *NEST, named="s.outer_")
        assert error.hint is not None
    superuser.execute("INSERT INTO other VALUES (1, 1)")
    kit.tick("other")
    kit.assert_exact(superuser, "other", "t")
    refused(kit, *NEST, named="s.outer_")
    superuser.execute("UPDATE t SET v = 2")
    run(superuser, cleared)
    assert advance(kit, *NEST, named="s.outer_")["shop.public.t"] == kit.capture("t").version
    kit.assert_exact(superuser, "other", "t")


@pytest.mark.parametrize("fault", ["table", "column", "view", "schema", "outer owner"])
def test_the_hint_is_the_statement_that_resolves_it(kit: Kit, superuser: Superuser, fault: str) -> None:
    run(superuser, FAULTS[fault][0])
    hint = refused(kit, *NEST, named="s.outer_").hint
    assert hint is not None
    run(superuser, hint.removesuffix(";"))
    advance(kit, *NEST, named="s.outer_")


def test_a_nested_view_need_not_be_readable_by_the_role(kit: Kit, superuser: Superuser) -> None:
    through(kit, "c", {"s.inner_": True})
    advance(kit, *NEST, named="s.outer_")
    refused(kit, "s.inner_", named="s.inner_")
    advance(kit, *NEST, named="s.outer_")
    superuser.execute(f"GRANT SELECT ON s.inner_ TO {MILLSTREAM}".encode())
    advance(kit, "s.inner_", named="s.inner_")


@pytest.mark.parametrize("position", ["s.outer_", "s.inner_"])
def test_an_invoker_view_is_read_as_the_role(kit: Kit, superuser: Superuser, position: str) -> None:
    run(superuser, f"ALTER VIEW {position} SET (security_invoker = true)")
    if position == "s.outer_":
        refused(kit, *NEST, named="s.outer_")
        run(superuser, f"GRANT SELECT ON s.inner_ TO {MILLSTREAM}")
    advance(kit, *NEST, named="s.outer_")
    run(superuser, f"REVOKE SELECT ON t FROM {STRANGER}")
    if position == "s.outer_":
        refused(kit, *NEST, named="s.outer_")  # the inner one is read as its owner
    else:
        advance(kit, *NEST, named="s.outer_")
        run(superuser, f"REVOKE SELECT ON t FROM {MILLSTREAM}")
        refused(kit, *NEST, named="s.outer_")


def test_a_view_that_no_tick_has_seen_is_looked_at_though_nothing_was_written(kit: Kit, superuser: Superuser) -> None:
    run(superuser, f"CREATE VIEW s.third AS SELECT id FROM public.t; ALTER VIEW s.third OWNER TO {NOBODY}")
    kit.tick()
    position = kit.database.position
    through(kit, "c", {"s.third": True})
    refused(kit, "s.third", named="s.third")
    assert kit.database.position == position, "nothing was written, or this shows nothing"


def test_a_quoted_name(kit: Kit, superuser: Superuser) -> None:
    run(superuser, 'CREATE VIEW s."Big View" AS SELECT id FROM public.t')
    through(kit, "c", {"s.`Big View`": True})
    refused(kit, "s.`Big View`", named="s.`Big View`")
    run(superuser, f'GRANT SELECT ON s."Big View" TO {MILLSTREAM}')
    advance(kit, "s.`Big View`", named="s.`Big View`")
    assert kit.database.state.views["shop.s.`Big View`"].mark
    run(superuser, 'DROP VIEW s."Big View"')
    advance(kit, "s.`Big View`", named="s.`Big View`")
    assert kit.database.state.views["shop.s.`Big View`"].mark == ""


def test_what_was_replaced_and_may_not_be_read_is_refused_first(kit: Kit, superuser: Superuser, shop: Shop) -> None:
    with shop.owner() as owner:
        run(owner, "CREATE TABLE secrets (id int, v int)")
    run(superuser, "CREATE OR REPLACE VIEW s.inner_ AS SELECT id, v FROM public.secrets")
    error = refused(kit, *NEST, named="s.outer_")
    assert "public.secrets" in error.message
    with shop.connect() as connection:
        now = read_view_rights(connection, [("s", "inner_")])["s", "inner_"]
    assert kit.database.state.views["shop.s.inner_"].mark == now.mark


def test_a_foreign_table_is_read_by_another_mapping(shop: Shop, superuser: Superuser) -> None:
    run(superuser, "CREATE FOREIGN DATA WRAPPER none_; CREATE SERVER far FOREIGN DATA WRAPPER none_")
    run(superuser, "CREATE FOREIGN TABLE far_t (id int) SERVER far; CREATE VIEW s.f AS SELECT id FROM far_t")
    run(superuser, f"ALTER VIEW s.f OWNER TO {STRANGER}; GRANT SELECT ON far_t TO {STRANGER}, {MILLSTREAM}")

    def is_refused() -> bool:
        with shop.connect() as connection:
            return read_view_rights(connection, [("s", "f")])["s", "f"].reading_error() is not None

    assert not is_refused(), "nobody has a mapping"
    run(superuser, "CREATE USER MAPPING FOR PUBLIC SERVER far")
    assert not is_refused(), "both have the same"
    run(superuser, f"CREATE USER MAPPING FOR {MILLSTREAM} SERVER far")
    assert is_refused()
    run(superuser, "ALTER VIEW s.f SET (security_invoker = true)")
    assert not is_refused()
    run(superuser, "ALTER VIEW s.f RESET (security_invoker); CREATE TABLE parent (id int) PARTITION BY LIST (id)")
    run(superuser, "ALTER TABLE parent ATTACH PARTITION far_t DEFAULT")
    run(superuser, f"CREATE OR REPLACE VIEW s.f AS SELECT id FROM parent; GRANT SELECT ON parent TO {STRANGER}")
    assert is_refused()
