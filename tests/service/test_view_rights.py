"""Stream tables over views of an attached database: nobody sees through one what PostgreSQL would not show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from kits.captured_lake import CapturedLake, open_captured
from kits.lake import refused
from kits.shops import OWNER, STRANGER, Shop
from millstream import Action, Code, MillstreamError, RefreshMode
from millstream.lake.definition_record import DefinitionRecord
from millstream.lake.recorded_definitions import RecordedDefinitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.catalog.models import StreamTable

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture
def lake(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[CapturedLake]:
    """The attaching role may read all tables; a stranger may read `public.open`, and owns a schema for views."""
    as_superuser(shop, f"CREATE SCHEMA stranger AUTHORIZATION {STRANGER}")
    as_stranger(
        shop,
        "GRANT USAGE ON SCHEMA stranger TO millstream",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA stranger GRANT SELECT ON TABLES TO millstream",
    )
    with open_captured(tmp_path / "lake", shop) as opened:
        opened.run(
            "CREATE TABLE secrets (id int PRIMARY KEY, v text)",
            "INSERT INTO secrets VALUES (1, 'hush')",
            "CREATE TABLE open (id int PRIMARY KEY, v text)",
            "INSERT INTO open VALUES (1, 'open')",
            f"GRANT SELECT ON open TO {STRANGER}",
            "CREATE SCHEMA reports",
            "GRANT USAGE, CREATE ON SCHEMA reports TO millstream",
            f"GRANT USAGE ON SCHEMA public, reports TO {STRANGER}",
        )
        as_stranger(shop, "CREATE VIEW stranger.v AS SELECT id, v FROM public.open")
        yield opened


def as_stranger(shop: Shop, *statements: str) -> list[tuple[object, ...]]:
    """Run statements as a role that may read what it was granted; gives the rows of the last one."""
    return _run(shop.server.url(shop.name, STRANGER), *statements)


def as_superuser(shop: Shop, *statements: str) -> list[tuple[object, ...]]:
    return _run(shop.server.url(shop.name), *statements)


def _run(url: str, *statements: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def contents(lake: CapturedLake, name: str = "st") -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in lake.read_back.table(name).collect())


def captured(lake: CapturedLake) -> set[str]:
    return {capture.table for capture in lake.ms._catalog.captures("shop")}


def test_a_view_that_a_stranger_replaces_shows_nothing_that_its_owner_may_not_read(
    lake: CapturedLake, shop: Shop
) -> None:
    lake.ms.create_stream_table(
        "st", "SELECT id, v FROM shop.stranger.v", serve_to="shop.reports.seen", grants=[STRANGER]
    )
    assert contents(lake) == [(1, "open")]
    as_stranger(shop, "CREATE OR REPLACE VIEW stranger.v AS SELECT id, v FROM public.secrets")
    for _ in range(2):
        with refused(Code.PRIVILEGE_MISSING, "public.secrets", STRANGER):
            lake.ms.refresh_stream_table("st")
    assert contents(lake) == [(1, "open")]
    assert as_stranger(shop, "SELECT id, v FROM reports.seen") == [(1, "open")]
    assert captured(lake) == {"open"}
    assert len(lake.mirrors) == 1


def test_a_view_that_a_stranger_replaces_does_not_lend_the_rights_of_the_role(lake: CapturedLake, shop: Shop) -> None:
    """PostgreSQL would show `secrets` to the role, which may read it; a stream table shows it to others."""
    lake.ms.create_stream_table("st", "SELECT id, v FROM shop.stranger.v")
    invoking = "CREATE OR REPLACE VIEW stranger.v WITH (security_invoker = true) AS SELECT id, v FROM public."
    as_stranger(shop, f"{invoking}secrets")
    for _ in range(2):
        with refused(Code.PRIVILEGE_MISSING, "public", "secrets", STRANGER):
            lake.ms.refresh_stream_table("st")
    assert contents(lake) == [(1, "open")]
    assert captured(lake) == {"open"}
    as_stranger(shop, "CREATE OR REPLACE VIEW stranger.v AS SELECT id, v FROM public.open")
    lake.run("INSERT INTO open VALUES (2, 'more')")
    lake.ms.refresh_stream_table("st")
    lake.run(f"REVOKE SELECT ON open FROM {STRANGER}", "INSERT INTO open VALUES (3, 'most')")
    as_stranger(shop, "ALTER VIEW stranger.v SET (security_invoker = true)")
    with refused(Code.PRIVILEGE_MISSING, "open", STRANGER):
        lake.ms.refresh_stream_table("st")
    assert contents(lake) == [(1, "open"), (2, "more")]
    lake.run(f"GRANT SELECT ON open TO {STRANGER}")
    lake.ms.refresh_stream_table("st")
    assert len(contents(lake)) == 3
    # from now on it is known to be read with the rights of the role
    lake.run(f"REVOKE SELECT ON open FROM {STRANGER}", "INSERT INTO open VALUES (4, 'all')")
    lake.ms.refresh_stream_table("st")
    assert len(contents(lake)) == 4


def test_rights_are_asked_at_creation_and_by_validate(lake: CapturedLake, shop: Shop) -> None:
    as_stranger(
        shop,
        "CREATE VIEW stranger.w AS SELECT id, v FROM public.secrets",
        "CREATE VIEW stranger.nested AS SELECT id FROM stranger.w",
        "CREATE VIEW stranger.closed AS SELECT id, v FROM public.open",
        "REVOKE SELECT ON stranger.closed FROM millstream",
        "CREATE VIEW stranger.through AS SELECT id, v FROM stranger.closed",
    )
    as_superuser(
        shop,
        "CREATE VIEW public.invoking AS SELECT id FROM stranger.through",
        "ALTER VIEW public.invoking SET (security_invoker = true)",
        "GRANT SELECT ON public.invoking TO millstream",
    )
    for view in ("stranger.w", "stranger.nested", "stranger.closed"):
        query = f"SELECT count(*) AS n FROM shop.{view}"
        for dialect in ("postgres", "spark"):
            with refused(Code.PRIVILEGE_MISSING, "GRANT SELECT"):
                lake.ms.create_stream_table("st", query, dialect=dialect)
            with refused(Code.PRIVILEGE_MISSING):
                lake.ms.validate(query, dialect=dialect)
    assert (captured(lake), lake.mirrors, lake.made) == (set(), [], [])
    as_stranger(shop, "CREATE VIEW stranger.lent WITH (security_invoker = true) AS SELECT id FROM public.secrets")
    # a nested view is read as the owner of the one around it
    for view in ("stranger.through", "public.invoking", "stranger.lent"):
        name = view.split(".")[1]
        lake.ms.create_stream_table(name, f"SELECT id FROM shop.{view}")
        assert contents(lake, name) == [(1,)]


def test_rights_are_asked_where_a_view_itself_is_read(lake: CapturedLake, shop: Shop) -> None:
    as_stranger(shop, "CREATE VIEW stranger.w AS SELECT id, v FROM public.secrets")
    assert [tuple(row) for row in lake.ms.table("shop.stranger.v").collect()] == [(1, "open")]
    for read in (lambda: lake.ms.table("shop.stranger.w"), lambda: lake.ms.sql("SELECT * FROM shop.stranger.w")):
        with refused(Code.PRIVILEGE_MISSING):
            read()


def test_a_right_that_comes_back(lake: CapturedLake, shop: Shop) -> None:
    lake.ms.create_stream_table("st", "SELECT id, v FROM shop.stranger.v")
    lake.ms.create_stream_table("beside", "SELECT id, v FROM shop.public.open")
    lake.ms.create_stream_table("above", "SELECT count(*) AS n FROM st")
    lake.run(f"REVOKE SELECT ON open FROM {STRANGER}")
    for name in ("st", "above"):
        with refused(Code.PRIVILEGE_MISSING, f'GRANT SELECT ("id", "v") ON "public"."open" TO "{STRANGER}"'):
            lake.ms.refresh_stream_table(name)
    lake.run("INSERT INTO open VALUES (2, 'more')")
    lake.ms.refresh_stream_table("beside")
    assert contents(lake, "beside") == [(1, "open"), (2, "more")]
    assert contents(lake) == [(1, "open")]
    lake.run(f"GRANT SELECT (id, v) ON open TO {STRANGER}")
    lake.ms.refresh_stream_table("above")
    assert contents(lake) == [(1, "open"), (2, "more")]
    assert contents(lake, "above") == [(2,)]
    # a view that is replaced, and may be read, is followed; so is one that changes hands
    as_stranger(shop, "CREATE OR REPLACE VIEW stranger.v AS SELECT id, upper(v) AS v FROM public.open")
    assert lake.ms.refresh_stream_table("st").action is Action.REINITIALIZE
    assert contents(lake) == [(1, "OPEN"), (2, "MORE")]
    as_superuser(shop, f"ALTER VIEW stranger.v OWNER TO {OWNER}")
    lake.ms.refresh_stream_table("st")
    as_superuser(shop, "CREATE OR REPLACE VIEW stranger.v AS SELECT id, v FROM public.secrets")
    lake.ms.refresh_stream_table("st")
    assert contents(lake) == [(1, "hush")]


def test_a_view_that_changes_between_the_tick_and_the_compilation(
    lake: CapturedLake, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick has found another text that may be read; what is compiled is a third one."""
    lake.ms.create_stream_table("st", "SELECT id, v FROM shop.stranger.v")
    as_stranger(shop, "CREATE OR REPLACE VIEW stranger.v AS SELECT id, upper(v) AS v FROM public.open")
    recompile = RecordedDefinitions.recompile

    def late(self: RecordedDefinitions, table: StreamTable, mode: RefreshMode) -> Any:
        as_stranger(shop, "CREATE OR REPLACE VIEW stranger.v AS SELECT id, v FROM public.secrets")
        return recompile(self, table, mode)

    monkeypatch.setattr(RecordedDefinitions, "recompile", late)
    with refused(Code.PRIVILEGE_MISSING):
        lake.ms.refresh_stream_table("st")
    assert contents(lake) == [(1, "open")]
    assert captured(lake) == {"open"}


def test_a_text_is_recorded_as_it_was_compiled(lake: CapturedLake, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a view has become since then is found by the next tick, though the definition was recorded later."""
    definition = DefinitionRecord.definition

    def late(self: DefinitionRecord, *arguments: Any) -> Any:
        as_stranger(shop, "CREATE OR REPLACE VIEW stranger.v AS SELECT id, 'new' AS v FROM public.open")
        lake.ms._runtime.lake.sync()
        return definition(self, *arguments)

    monkeypatch.setattr(DefinitionRecord, "definition", late)
    lake.ms.create_stream_table("st", "SELECT id, v FROM shop.stranger.v", initialize=False)
    monkeypatch.undo()
    lake.ms.refresh_stream_table("st")
    assert contents(lake) == [(1, "new")]
    as_stranger(shop, "CREATE OR REPLACE VIEW stranger.v AS SELECT id, 'newer' AS v FROM public.open")
    lake.ms.alter_stream_table("st", refresh_mode="FULL")
    lake.ms.refresh_stream_table("st")
    assert contents(lake) == [(1, "newer")]


def test_what_is_not_translated_is_refused(lake: CapturedLake, shop: Shop) -> None:
    """Code of a view's owner is never run, and the server's own catalogs are not taken for tables of the lake."""
    as_stranger(
        shop,
        "CREATE FUNCTION stranger.shout(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT upper($1) $$",
        "CREATE VIEW stranger.calls AS SELECT id, stranger.shout(v) AS v FROM public.open",
        "CREATE VIEW stranger.constant AS SELECT id, stranger.shout('a') AS v FROM public.open",
        "CREATE FUNCTION stranger.numbers() RETURNS SETOF int LANGUAGE sql AS $$ SELECT 1 $$",
        "CREATE VIEW stranger.from_calls AS SELECT r AS id FROM stranger.numbers() r",
        "CREATE FUNCTION stranger.plus(int, int) RETURNS int LANGUAGE sql AS $$ SELECT 1 $$",
        "CREATE OPERATOR stranger.<+> (FUNCTION = stranger.plus, LEFTARG = int, RIGHTARG = int)",
        "CREATE VIEW stranger.operates AS SELECT id OPERATOR(stranger.<+>) 1 AS id FROM public.open",
        "CREATE VIEW stranger.server AS SELECT relname::text AS id FROM pg_class",
        "CREATE VIEW stranger.nothing AS SELECT FROM public.open",
        "CREATE VIEW stranger.passwords AS SELECT rolname::text AS id FROM pg_catalog.pg_authid",
    )
    lake.ms.sql("CREATE TABLE pg_class (relname STRING) USING delta")
    lake.ms.sql("CREATE FUNCTION shout(t STRING) RETURNS STRING RETURN 'lake'")
    codes = {view: {_refusal(lake, view, dialect) for dialect in ("postgres", "spark")} for view in VIEWS_OF_CODE}
    assert codes == {view: {code} for view, code in VIEWS_OF_CODE.items()}
    assert captured(lake) == set()


VIEWS_OF_CODE = {
    "calls": Code.UNSUPPORTED_SQL,
    "constant": Code.UNSUPPORTED_SQL,
    "from_calls": Code.UNSUPPORTED_SQL,
    "operates": Code.UNSUPPORTED_SQL,
    "server": Code.UNSUPPORTED_SQL,
    "passwords": Code.UNSUPPORTED_SQL,
    "nothing": Code.UNSUPPORTED_SQL,
}


def _refusal(lake: CapturedLake, view: str, dialect: str) -> Code:
    with pytest.raises(MillstreamError) as caught:
        lake.ms.create_stream_table(
            "st", f"SELECT count(*) AS n FROM shop.stranger.{view}", dialect=dialect, refresh_mode="FULL"
        )
    return caught.value.code
