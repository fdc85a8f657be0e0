"""Capture is put in place, widened and removed: with few rights, harming no writer, and open to nobody else."""

from __future__ import annotations

import dataclasses
import subprocess
import threading

import psycopg
import pytest
from psycopg import sql

from kits.shops import MILLSTREAM, OWNER, STRANGER, Shop
from kits.trigger_capture import Follow, Owner, polled, wait_until
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.server.privileges import missing_table_grants
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffer_sql import uninstall_sql
from millstream.sources.postgres.triggers.buffers import install, remove, remove_all, widen
from millstream.sources.postgres.triggers.trigger_catalog import (
    BufferSettings,
    captured_tables,
    find_buffer,
    trigger_fingerprints,
)
from millstream.sources.postgres.values.types import mirror_columns

pytestmark = pytest.mark.postgres

SCHEMA = BufferSettings().schema
IMPATIENT = BufferSettings(lock_timeout_ms=100, patience_seconds=0.3)


def test_a_writer_that_began_before_the_capture_holds_it_up(shop: Shop, owner: Owner) -> None:
    owner.execute("CREATE TABLE t (a int)")
    with shop.connect() as connection, shop.owner() as writer:
        relation = find_relation(connection, "t")
        columns = mirror_columns(relation)
        writer.autocommit = False
        writer.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(MillstreamError) as caught:
            install(connection, relation, columns, IMPATIENT)
        assert caught.value.code is Code.LOCK_TIMEOUT
        assert find_buffer(connection, relation) is None
        threading.Timer(0.5, writer.commit).start()
        install(connection, relation, columns)  # tries again until the writer is done
        with polled(connection):
            assert connection.execute("SELECT count(*) FROM public.t").fetchone() == (1,)


def test_disabled_triggers_are_noticed_even_when_they_are_enabled_again(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    capture = follow("t")
    oid, state = capture.buffers["t"].oid, capture.buffers["t"].state
    assert trigger_fingerprints(capture.connection, [oid], SCHEMA) == {oid: state}
    owner.execute("ALTER TABLE t DISABLE TRIGGER USER")
    owner.execute("INSERT INTO t VALUES (1)")
    owner.execute("ALTER TABLE t ENABLE TRIGGER USER")
    assert trigger_fingerprints(capture.connection, [oid], SCHEMA)[oid] != state
    owner.execute("DROP TABLE t")
    assert trigger_fingerprints(capture.connection, [oid], SCHEMA) == {}


@pytest.mark.parametrize("by_row", [False, True])
def test_ddl_on_the_source_never_fails_its_writers(shop: Shop, owner: Owner, follow: Follow, by_row: bool) -> None:
    owner.execute("CREATE TYPE mood AS ENUM ('sad')")
    owner.execute("CREATE DOMAIN price AS numeric(10,2)")
    owner.execute("CREATE TABLE t (a int, b varchar(3), c numeric(4,2), m mood, p price, k int)")
    follow("t", settings=BufferSettings(by_row=by_row))
    insert = "INSERT INTO t VALUES (1, 'abc', 12.34)"
    owner.execute(insert)
    for statement in (
        "ALTER TABLE t ALTER b TYPE varchar(10); INSERT INTO t (b) VALUES ('abcdefghij')",
        "ALTER TABLE t ALTER c TYPE numeric(12, 2); INSERT INTO t (c) VALUES (1234567.89)",
        "ALTER TABLE t RENAME a TO a2",
        "ALTER TABLE t DROP m; DROP TYPE mood",
        "ALTER TABLE t ALTER p TYPE text; DROP DOMAIN price",
        "ALTER TABLE t ADD extra text DEFAULT 'x'",
        "ALTER TABLE t RENAME TO other",
        "ALTER TABLE other DROP b",
        "ALTER TABLE other ALTER k TYPE text",
        "ALTER TABLE other ALTER c TYPE text",
    ):
        owner.execute(statement)
        table = "other" if "other" in statement or "TO other" in statement else "t"
        with shop.owner() as fresh:
            fresh.execute(f"INSERT INTO {table} DEFAULT VALUES")
            fresh.execute(f"UPDATE {table} SET c = c")
        owner.execute(f"INSERT INTO {table} DEFAULT VALUES")  # a session that has used the functions before
        owner.execute(f"UPDATE {table} SET c = c")
    with shop.owner() as fresh:
        fresh.execute("INSERT INTO other (c) VALUES ('a longer text that would not fit')")
        fresh.execute("DELETE FROM other")


def test_temporary_objects_cannot_take_the_place_of_ours(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    owner.execute(f"GRANT INSERT, UPDATE, SELECT ON t TO {STRANGER}")
    capture = follow("t")
    with psycopg.connect(shop.server.url(shop.name, STRANGER), autocommit=True) as stranger:
        stranger.execute("SET search_path = pg_temp, public")
        oid = capture.buffers["t"].oid
        for name in (f"changes_{oid}", "added", "removed", "missing", "image"):
            stranger.execute(f"CREATE TEMP TABLE {name} (__ms_lsn pg_lsn, __ms_xid xid8, __ms_w smallint, a int)")
        for function in ("pg_current_xact_id() RETURNS xid8", "fitting_int4(a int, b int, c int) RETURNS int"):
            stranger.execute(
                f"CREATE FUNCTION pg_temp.{function} LANGUAGE sql AS 'SELECT NULL::{function.split()[-1]}'"
            )
        stranger.execute("INSERT INTO public.t VALUES (1)")
        stranger.execute("UPDATE public.t SET a = 2")
    capture.poll()
    assert capture.bags["t"] == {(2,): 1}


def test_casts_of_the_table_owner_do_not_run_with_our_rights(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TYPE mood AS ENUM ('sad')")
    owner.execute("CREATE TABLE stolen (who name)")
    owner.execute(
        "CREATE FUNCTION steal(m mood) RETURNS text LANGUAGE sql AS "
        "'INSERT INTO public.stolen VALUES (current_user) RETURNING who::text'"
    )
    owner.execute("CREATE CAST (mood AS text) WITH FUNCTION steal(mood) AS IMPLICIT")
    owner.execute("CREATE TABLE t (m mood)")
    capture = follow("t")
    owner.execute("INSERT INTO t VALUES ('sad')")
    capture.poll()
    assert capture.bags["t"] == {("sad",): 1}
    assert owner.execute("SELECT * FROM stolen").fetchall() == []


def test_strangers_see_and_touch_nothing(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    owner.execute(f"GRANT INSERT ON t TO {STRANGER}")
    owner.execute(f"GRANT CREATE ON SCHEMA public TO {STRANGER}")
    capture = follow("t")
    oid = capture.buffers["t"].oid
    with psycopg.connect(shop.server.url(shop.name, STRANGER), autocommit=True) as stranger:
        stranger.execute("INSERT INTO t VALUES (1)")  # captured, without any right on our schema
        stranger.execute("CREATE TABLE mine (a int)")
        for statement in (
            f"SELECT * FROM {SCHEMA}.changes_{oid}",
            f"INSERT INTO {SCHEMA}.changes_{oid} (__ms_w, a) VALUES (1, 1)",
            f"CREATE TRIGGER x AFTER INSERT ON mine REFERENCING NEW TABLE AS added "
            f"EXECUTE FUNCTION {SCHEMA}.insert_{oid}()",
            f"SELECT {SCHEMA}.fitting_int4(1, 0, 0)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                stranger.execute(statement)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        owner.execute(f"SELECT * FROM {SCHEMA}.changes_{oid}")
    with shop.server.superuser(shop.name) as superuser:
        rights = superuser.execute(
            "SELECT bool_or(has_function_privilege(%(role)s, p.oid, 'EXECUTE')), "
            "has_schema_privilege(%(role)s, %(schema)s, 'USAGE') FROM pg_proc p "
            "JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %(schema)s",
            {"role": STRANGER, "schema": SCHEMA},
        ).fetchone()
    assert rights == (False, False)
    capture.poll()


def test_what_a_role_lacks_is_said_as_statements(shop: Shop, owner: Owner) -> None:
    owner.execute("CREATE SCHEMA closed")
    owner.execute("CREATE TYPE closed.span AS RANGE (subtype = int)")
    owner.execute("CREATE TABLE closed.t (a int, s closed.span) PARTITION BY LIST (a)")
    owner.execute('CREATE TABLE public."T 1" PARTITION OF closed.t FOR VALUES IN (1)')
    owner.execute("ALTER TABLE closed.t ENABLE ROW LEVEL SECURITY")
    owner.execute(f'REVOKE ALL ON public."T 1" FROM {MILLSTREAM}')
    owner.execute(f'REVOKE CREATE ON DATABASE "{shop.name}" FROM {MILLSTREAM}')
    with shop.connect() as connection:
        relation = find_relation(connection, "t", "closed")
        missing = missing_table_grants(connection, relation, SCHEMA)
        assert missing == [
            f'GRANT CREATE ON DATABASE "{shop.name}" TO "{MILLSTREAM}";',
            f'GRANT USAGE ON SCHEMA "closed" TO "{MILLSTREAM}";',
            f'GRANT SELECT ON "closed"."t" TO "{MILLSTREAM}";',
            f'GRANT TRIGGER ON "closed"."t" TO "{MILLSTREAM}";',
            f'ALTER ROLE "{MILLSTREAM}" BYPASSRLS;',
            f'GRANT SELECT ON "public"."T 1" TO "{MILLSTREAM}";',
            f'GRANT TRIGGER ON "public"."T 1" TO "{MILLSTREAM}";',
        ]
        with pytest.raises(MillstreamError) as caught:
            install(connection, relation, mirror_columns(relation))
        assert caught.value.code is Code.PRIVILEGE_MISSING
        assert missing[0] in str(caught.value)
    with shop.server.superuser(shop.name) as superuser:
        for statement in missing:
            superuser.execute(statement)
        try:
            with shop.connect() as connection:
                assert missing_table_grants(connection, relation, SCHEMA) == []
                install(connection, relation, mirror_columns(relation))
        finally:
            superuser.execute(f"ALTER ROLE {MILLSTREAM} NOBYPASSRLS")


def test_what_cannot_be_captured_is_refused(shop: Shop, owner: Owner) -> None:
    owner.execute("CREATE VIEW v AS SELECT 1 AS a")
    owner.execute("CREATE UNLOGGED TABLE u (a int)")
    owner.execute("CREATE TABLE t (a int)")
    with shop.connect() as connection:
        for name in ("v", "u"):
            relation = find_relation(connection, name)
            with pytest.raises(MillstreamError) as caught:
                install(connection, relation, mirror_columns(relation))
            assert caught.value.code is Code.SOURCE_NO_CHANGE_FEED
        relation = find_relation(connection, "t")
        with pytest.raises(MillstreamError) as caught:
            install(connection, relation, mirror_columns(relation), BufferSettings(schema="s" * 40))
        assert caught.value.code is Code.SETTING_INVALID


def test_two_lakes_need_two_schemas(shop: Shop, owner: Owner) -> None:
    owner.execute("CREATE TABLE t (a int)")
    with shop.connect() as connection:
        relation = find_relation(connection, "t")
        columns = mirror_columns(relation)
        install(connection, relation, columns, BufferSettings(lake="one"))
        install(connection, relation, columns, BufferSettings(lake="one"))
        with pytest.raises(MillstreamError) as caught:
            install(connection, relation, columns, BufferSettings(lake="two"))
        assert caught.value.code is Code.NAME_TAKEN
        install(connection, relation, columns, BufferSettings(lake="two", schema="millstream_two"))
        owner.execute("INSERT INTO t VALUES (1)")
        for schema in (SCHEMA, "millstream_two"):
            found = connection.execute(f"SELECT a FROM {schema}.changes_{relation.oid}".encode()).fetchall()
            assert found == [(1,)]


def test_more_columns(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int, b text, c int)")
    capture = follow("t", columns=["a"])
    relation = capture.relations["t"]
    owner.execute("INSERT INTO t VALUES (1, 'x', 2)")
    with shop.owner() as writer:  # it has written into the buffer, and commits after the buffer has its new column
        writer.autocommit = False
        writer.execute("INSERT INTO t VALUES (2, 'y', 3)")
        with pytest.raises(MillstreamError) as caught:
            widen(capture.connection, relation, mirror_columns(relation, ["a", "c"]), IMPATIENT)
        assert caught.value.code is Code.LOCK_TIMEOUT
        writer.commit()
    wide = widen(capture.connection, relation, mirror_columns(relation, ["a", "c"]))
    assert wide.columns == ("a", "c")
    owner.execute("UPDATE t SET c = 9 WHERE a = 1")
    capture.poll()  # what follows the old columns goes on
    with polled(capture.connection) as position:
        capture.columns["t"], capture.buffers["t"] = mirror_columns(relation, ["a", "c"]), wide
        capture.bags["t"], capture.position = capture.table("t"), position
    owner.execute("DELETE FROM t WHERE a = 1")
    capture.poll()
    assert capture.bags["t"] == {(2, 3): 1}


def test_no_writer_fills_a_widened_buffer_by_the_old_function(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int, c int)")
    capture = follow("t", columns=["a"])
    relation, buffer = capture.relations["t"], capture.buffers["t"]

    def waiting() -> int:
        row = owner.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
        return int(str(row[0])) if row else 0

    def more() -> None:
        with shop.connect() as connection:
            widen(connection, relation, mirror_columns(relation), BufferSettings(lock_timeout_ms=10_000))

    def write() -> None:
        with shop.owner() as writer:
            writer.execute("INSERT INTO t VALUES (1, 2)")

    threads = [threading.Thread(target=more), threading.Thread(target=write)]
    with shop.connect() as reader, reader.transaction():
        reader.execute(sql.SQL("SELECT FROM {}").format(buffer.table))  # holds the widening up
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda wanted=number + 1: waiting() >= wanted)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    found = capture.connection.execute(sql.SQL("SELECT a, c FROM {}").format(buffer.table)).fetchall()
    assert found == [(1, 2)]


def test_capture_is_removed_without_a_trace(shop: Shop, owner: Owner, follow: Follow) -> None:
    def traces() -> tuple[object, ...] | None:
        return owner.execute(
            "SELECT (SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal), (SELECT count(*) FROM pg_proc p "
            "JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname LIKE 'millstream%'), "
            "(SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'millstream%')"
        ).fetchone()

    owner.execute("CREATE TABLE t (a int)")
    owner.execute("CREATE TABLE gone (a int)")
    owner.execute("CREATE TABLE p (k int) PARTITION BY LIST (k)")
    owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
    capture = follow("t", "gone", "p")
    owner.execute("DROP TABLE gone")
    connection = capture.connection
    assert captured_tables(connection) == sorted(b.oid for b in capture.buffers.values())
    remove(connection, capture.buffers["t"].oid)
    remove(connection, capture.buffers["t"].oid)
    owner.execute("INSERT INTO t VALUES (1)")
    assert captured_tables(connection) == sorted(capture.buffers[n].oid for n in ("gone", "p"))
    remove_all(connection)
    assert traces() == (0, 0, 0)
    remove_all(connection)
    del capture.relations["gone"]
    capture.start()
    assert traces() != (0, 0, 0)
    script = subprocess.run(
        [str(shop.server.binaries / "psql"), shop.server.url(shop.name, MILLSTREAM), "-v", "ON_ERROR_STOP=1"],
        input=uninstall_sql(SCHEMA, BufferSettings().mark),
        capture_output=True,
        text=True,
        check=False,
    )
    assert script.returncode == 0, script.stderr
    assert traces() == (0, 0, 0)
    owner.execute("INSERT INTO p VALUES (1)")


def test_from_statements_to_rows_and_back(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    capture = follow("t")
    for by_row in (True, False):
        capture.settings = dataclasses.replace(capture.settings, by_row=by_row)
        capture.start()
        assert capture.buffers["t"].by_row is by_row
        owner.execute("INSERT INTO t VALUES (1)")
        capture.poll()
        assert capture.changes == (1 if by_row else 2)


def test_the_role_needs_no_more_than_it_was_given(shop: Shop, owner: Owner) -> None:
    with shop.server.superuser(shop.name) as superuser:
        row = superuser.execute(
            "SELECT rolsuper, rolbypassrls, pg_has_role(%s, %s, 'MEMBER') FROM pg_roles WHERE rolname = %s",
            [MILLSTREAM, OWNER, MILLSTREAM],
        ).fetchone()
    assert row == (False, False, False)
