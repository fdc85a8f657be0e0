"""Triggers see every change: replayed onto a bag, the windows give the table, after each drain."""

from __future__ import annotations

import dataclasses
import subprocess
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from captures import TriggerCapture
from psycopg import sql
from shops import MILLSTREAM, OWNER, STRANGER, Shop

from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.buffer_sql import uninstall_sql
from millstream.sources.postgres.buffers import install, remove, remove_all, widen
from millstream.sources.postgres.grants import required_grants
from millstream.sources.postgres.installed import (
    BufferSettings,
    always_statements,
    capture_states,
    captured_tables,
    find_buffer,
)
from millstream.sources.postgres.relations import find_relation, read_relations
from millstream.sources.postgres.types import mirror_columns
from millstream.sources.postgres.windows import cut, read_window

pytestmark = pytest.mark.postgres

SCHEMA = BufferSettings().schema
IMPATIENT = BufferSettings(lock_timeout_ms=100, patience_seconds=0.3)
Owner = psycopg.Connection[tuple[object, ...]]
Follow = Callable[..., TriggerCapture]


@pytest.fixture
def owner(shop: Shop) -> Iterator[Owner]:
    with shop.owner() as connection:
        yield connection


@pytest.fixture
def follow(shop: Shop) -> Iterator[Follow]:
    """Begin to follow some tables; every poll compares with them."""
    begun: list[TriggerCapture] = []

    def start(*names: str, settings: BufferSettings | None = None, columns: list[str] | None = None) -> TriggerCapture:
        begun.append(TriggerCapture(shop, names, settings, columns=columns))
        begun[-1].start()
        return begun[-1]

    yield start
    for capture in begun:
        capture.close()


def test_every_kind_of_statement(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    owner.execute("INSERT INTO t SELECT i, 'old' FROM generate_series(1, 10) i")
    capture = follow("t")
    assert capture.bags["t"].total() == 10
    with owner.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
        copy.write("11\tcopied\n12\t\\N\n")
    statements = [
        "INSERT INTO t VALUES (20, 'a'), (21, 'b'), (22, NULL)",
        "UPDATE t SET v = v || '!' WHERE id < 5",
        "UPDATE t SET id = id + 100 WHERE id BETWEEN 3 AND 6",
        "DELETE FROM t WHERE id IN (1, 103)",
        "DELETE FROM t WHERE false",
        "INSERT INTO t VALUES (20, 'x'), (23, 'y') ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        "INSERT INTO t VALUES (20, 'z') ON CONFLICT DO NOTHING",
        "MERGE INTO t USING (VALUES (20, 'm'), (21, NULL), (99, 'n')) AS s (id, v) ON t.id = s.id "
        "WHEN MATCHED AND s.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v)",
        "WITH gone AS (DELETE FROM t WHERE id = 22 RETURNING *) INSERT INTO t SELECT id + 1000, v FROM gone",
    ]
    for statement in statements:
        owner.execute(statement)
        capture.poll()
    owner.execute("DELETE FROM t WHERE id IN (20, 21, 22, 1022)")
    for statement in statements:  # several of them in one window
        owner.execute(statement)
    capture.poll()
    assert capture.changes > 30


def test_a_table_without_a_key_keeps_its_duplicates(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int, b text)")
    owner.execute("INSERT INTO t VALUES (1, 'x'), (1, 'x'), (NULL, NULL), (NULL, NULL)")
    capture = follow("t")
    owner.execute("INSERT INTO t VALUES (1, 'x'), (NULL, NULL)")
    owner.execute("DELETE FROM t WHERE ctid IN (SELECT ctid FROM t WHERE a = 1 LIMIT 2)")
    capture.poll()
    assert capture.bags["t"] == {(1, "x"): 1, (None, None): 3}
    owner.execute("UPDATE t SET a = 1, b = 'x' WHERE a IS NULL")
    capture.poll()
    assert capture.bags["t"] == {(1, "x"): 4}


def test_cascades_of_foreign_keys(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE c (id int PRIMARY KEY)")
    owner.execute("CREATE TABLE o (id int PRIMARY KEY, c int REFERENCES c ON DELETE CASCADE ON UPDATE CASCADE)")
    owner.execute("CREATE TABLE n (o int REFERENCES o ON DELETE SET NULL)")
    capture = follow("c", "o", "n")
    owner.execute("INSERT INTO c SELECT generate_series(1, 4)")
    owner.execute("INSERT INTO o SELECT i, i % 4 + 1 FROM generate_series(1, 12) i")
    owner.execute("INSERT INTO n SELECT i FROM generate_series(1, 12) i")
    owner.execute("UPDATE c SET id = id * 10")
    capture.poll()
    owner.execute("DELETE FROM c WHERE id = 20")
    capture.poll()
    assert (capture.bags["o"].total(), capture.bags["n"][(None,)]) == (9, 3)


def test_truncate_between_other_changes(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    owner.execute("INSERT INTO t VALUES (1), (2)")
    capture = follow("t")
    owner.execute("TRUNCATE t")
    capture.poll()
    assert not capture.bags["t"]
    owner.execute("INSERT INTO t VALUES (3)")
    capture.poll()
    with owner.transaction():
        owner.execute("INSERT INTO t VALUES (4)")
        owner.execute("TRUNCATE t")
        owner.execute("INSERT INTO t VALUES (5), (5)")
        owner.execute("TRUNCATE t RESTART IDENTITY")
        owner.execute("INSERT INTO t VALUES (6), (7)")
        owner.execute("DELETE FROM t WHERE a = 7")
    owner.execute("INSERT INTO t VALUES (8)")
    capture.poll()
    assert (set(capture.bags["t"]), capture.truncations) == ({(6,), (8,)}, 2)
    with owner.transaction(force_rollback=True):
        owner.execute("TRUNCATE t")
    with owner.transaction():
        owner.execute("SAVEPOINT s")
        owner.execute("TRUNCATE t")
        owner.execute("ROLLBACK TO s")
        owner.execute("INSERT INTO t VALUES (9)")
    capture.poll()
    assert (set(capture.bags["t"]), capture.truncations) == ({(6,), (8,), (9,)}, 2)


def test_savepoints_aborts_and_prepared_transactions(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    capture = follow("t")
    with shop.owner() as late:
        late.autocommit = False
        late.execute("INSERT INTO t VALUES (1)")  # open while others commit and are polled
        with owner.transaction():
            owner.execute("SAVEPOINT a")
            owner.execute("INSERT INTO t VALUES (10)")
            owner.execute("SAVEPOINT b")
            owner.execute("INSERT INTO t VALUES (11)")
            owner.execute("ROLLBACK TO b")
            owner.execute("INSERT INTO t VALUES (12)")
        owner.execute("BEGIN")
        owner.execute("INSERT INTO t VALUES (20)")
        owner.execute("PREPARE TRANSACTION 'keep'")
        owner.execute("BEGIN")
        owner.execute("INSERT INTO t VALUES (30)")
        owner.execute("PREPARE TRANSACTION 'forget'")
        owner.execute("BEGIN")
        owner.execute("INSERT INTO t VALUES (40)")
        owner.execute("ROLLBACK")
        capture.poll()
        assert set(capture.bags["t"]) == {(10,), (12,)}
        owner.execute("INSERT INTO t VALUES (50)")
        owner.execute("COMMIT PREPARED 'keep'")
        capture.poll()
        late.execute("INSERT INTO t VALUES (2)")
        late.commit()
        owner.execute("ROLLBACK PREPARED 'forget'")
        capture.poll()
    assert set(capture.bags["t"]) == {(1,), (2,), (10,), (12,), (20,), (50,)}


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
        with cut(connection):
            assert connection.execute("SELECT count(*) FROM public.t").fetchone() == (1,)


def test_switched_off_triggers_fire_once_the_owner_says_so(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    capture = follow("t")
    assert not capture.buffers["t"].is_always  # only the owner may do this
    for statement in always_statements(capture.connection, capture.relations["t"], SCHEMA):
        owner.execute(statement)
    with shop.server.superuser(shop.name) as replica:
        replica.execute("SET session_replication_role = replica")
        replica.execute("INSERT INTO t VALUES (1)")
        replica.execute("UPDATE t SET a = 2")
        capture.poll()
        replica.execute("TRUNCATE t")
        capture.poll()
    # to widen does not undo it
    owner.execute("ALTER TABLE t ADD COLUMN b int")
    relation = find_relation(capture.connection, "t")
    assert widen(capture.connection, relation, mirror_columns(relation)).is_always
    assert install(capture.connection, relation, mirror_columns(relation)).is_always


def test_switched_off_triggers_fire_where_we_are_the_owner(shop: Shop, owner: Owner, follow: Follow) -> None:
    with shop.server.superuser(shop.name) as replica:
        for name, definition in (("t", "(a int)"), ("p", "(a int) PARTITION BY LIST (a)")):
            replica.execute(f"CREATE TABLE {name} {definition}")
        replica.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
        replica.execute(f"ALTER TABLE t OWNER TO {MILLSTREAM}")
        replica.execute(f"ALTER TABLE p OWNER TO {MILLSTREAM}")
        replica.execute(f"ALTER TABLE p1 OWNER TO {MILLSTREAM}")
        capture = follow("t", "p")
        assert capture.buffers["t"].is_always
        assert capture.buffers["p"].is_always
        replica.execute("SET session_replication_role = replica")
        replica.execute("INSERT INTO t VALUES (1)")
        replica.execute("INSERT INTO p VALUES (1)")
        capture.poll()


def test_partitions_by_all_ways_in(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE p (k int, v text) PARTITION BY LIST (k)")
    owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
    owner.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2, 3) PARTITION BY LIST (k)")
    owner.execute("CREATE TABLE p23 (v text, gone int, k int)")  # another order of columns
    owner.execute("ALTER TABLE p23 DROP COLUMN gone")
    owner.execute("ALTER TABLE p2 ATTACH PARTITION p23 DEFAULT")
    owner.execute("INSERT INTO p VALUES (1, 'a'), (2, 'b')")
    capture = follow("p")
    assert capture.buffers["p"].by_row
    owner.execute("INSERT INTO p VALUES (1, 'c'), (2, 'd'), (3, 'e')")
    owner.execute("INSERT INTO p1 VALUES (1, 'direct')")
    owner.execute("INSERT INTO p23 (k, v) VALUES (3, 'direct')")
    capture.poll()
    owner.execute("UPDATE p SET k = 2 WHERE k = 1")  # moves between partitions
    owner.execute("UPDATE p2 SET v = v || '!'")
    owner.execute("DELETE FROM p23 WHERE k = 3")
    capture.poll()
    owner.execute("TRUNCATE p")  # reported by all its leaves too
    owner.execute("INSERT INTO p VALUES (1, 'new')")
    capture.poll()
    assert (capture.truncations, capture.rereads) == (1, 0)
    owner.execute("INSERT INTO p VALUES (2, 'more')")
    capture.poll()
    owner.execute("TRUNCATE p23")
    capture.poll()
    assert (capture.truncations, capture.rereads) == (1, 1)
    owner.execute("INSERT INTO p VALUES (1, 'x'), (2, 'y')")
    with owner.transaction():
        owner.execute("TRUNCATE p")
        owner.execute("INSERT INTO p VALUES (1, 'x'), (2, 'y')")
        owner.execute("TRUNCATE p2")
    capture.poll()
    assert capture.rereads == 2
    assert capture.bags["p"] == {(1, "x"): 1}


def test_owners_can_add_partitions_and_the_fingerprint_tells(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE p (k int) PARTITION BY LIST (k)")
    owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
    capture = follow("p")
    owner.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)")
    owner.execute("CREATE TABLE p3 (k int)")
    owner.execute("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES IN (3)")
    owner.execute("INSERT INTO p3 VALUES (3)")  # the new partitions have the triggers, too
    buffer, relation = capture.buffers["p"], capture.relations["p"]
    now = read_relations(capture.connection, [relation.oid])[relation.oid]
    assert now.shape(("k",)) != relation.shape(("k",))
    assert capture_states(capture.connection, [relation.oid], SCHEMA)[relation.oid] != buffer.state
    capture.relations["p"] = now
    capture.start()
    owner.execute("INSERT INTO p2 VALUES (2)")
    owner.execute("TRUNCATE p3")
    capture.poll()
    assert capture.rereads == 1


def test_a_partition_that_came_and_went_unseen(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE p (k int) PARTITION BY LIST (k)")
    owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
    capture = follow("p")
    owner.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)")
    owner.execute("INSERT INTO p VALUES (1), (2)")
    owner.execute("ALTER TABLE p DETACH PARTITION p2")
    capture.poll()
    assert capture.rereads == 1
    owner.execute("ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)")
    owner.execute("ALTER TABLE p DETACH PARTITION p2")
    owner.execute("INSERT INTO p2 VALUES (2)")
    capture.poll()
    assert capture.rereads == 1
    # detached, written and attached again: its triggers are new ones
    state = capture.buffers["p"].state
    owner.execute("ALTER TABLE p DETACH PARTITION p1")
    owner.execute("INSERT INTO p1 VALUES (1)")
    owner.execute("ALTER TABLE p ATTACH PARTITION p1 FOR VALUES IN (1)")
    assert capture_states(capture.connection, [capture.buffers["p"].oid], SCHEMA)[capture.buffers["p"].oid] != state


def test_tables_that_inherit_and_tables_that_are_parts(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE parent (a int)")
    owner.execute("CREATE TABLE child (b int) INHERITS (parent)")
    owner.execute("CREATE TABLE p (k int) PARTITION BY LIST (k)")
    owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
    capture = follow("parent", "child", "p1")
    assert all(buffer.by_row for buffer in capture.buffers.values())
    owner.execute("INSERT INTO parent VALUES (1), (2)")
    owner.execute("INSERT INTO child VALUES (3, 4), (5, 6)")
    owner.execute("INSERT INTO p VALUES (1)")
    capture.poll()
    owner.execute("UPDATE parent SET a = a + 10")
    owner.execute("DELETE FROM parent WHERE a = 13")
    capture.poll()
    owner.execute("TRUNCATE ONLY parent")
    capture.poll()
    owner.execute("TRUNCATE parent")
    owner.execute("TRUNCATE p")
    capture.poll()
    assert (capture.rereads, capture.truncations) == (2, 2)


def test_disabled_triggers_are_noticed_even_when_they_are_enabled_again(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    capture = follow("t")
    oid, state = capture.buffers["t"].oid, capture.buffers["t"].state
    assert capture_states(capture.connection, [oid], SCHEMA) == {oid: state}
    owner.execute("ALTER TABLE t DISABLE TRIGGER USER")
    owner.execute("INSERT INTO t VALUES (1)")
    owner.execute("ALTER TABLE t ENABLE TRIGGER USER")
    assert capture_states(capture.connection, [oid], SCHEMA)[oid] != state
    owner.execute("DROP TABLE t")
    assert capture_states(capture.connection, [oid], SCHEMA) == {}


def test_odd_names(owner: Owner, follow: Follow) -> None:
    table = "Or'ders %s {}"
    schema, name = sql.Identifier('My "Sh"op'), sql.Identifier('My "Sh"op', table)
    columns = ["Id", 'a"b', "select", "found", "tg_relid", "added", "missing", "image", "new", "w"]
    typed = [sql.SQL("{} {}").format(sql.Identifier(c), sql.SQL("text" if c == 'a"b' else "int")) for c in columns]
    owner.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
    owner.execute(sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(typed)))
    owner.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, sql.Identifier(MILLSTREAM)))
    owner.execute(sql.SQL("GRANT SELECT, TRIGGER ON {} TO {}").format(name, sql.Identifier(MILLSTREAM)))
    for settings in (BufferSettings(), BufferSettings(schema="Odd 'sch\"ema", by_row=True)):
        capture = follow(table, settings=settings)
        owner.execute(sql.SQL("INSERT INTO {} VALUES (1, 'x''y\"z', 2, 3, 4, 5, 6, 7, 8, 9)").format(name))
        owner.execute(sql.SQL('UPDATE {} SET "Id" = 2, found = NULL').format(name))
        capture.poll()
        assert capture.bags[table] == {(2, "x'y\"z", 2, None, 4, 5, 6, 7, 8, 9): 1}
        owner.execute(sql.SQL("DELETE FROM {}").format(name))
        capture.poll()


def test_types(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TYPE mood AS ENUM ('sad', 'o k', '')")
    owner.execute("CREATE DOMAIN price AS numeric(10,2) CHECK (value > 0)")
    owner.execute("CREATE TYPE span AS RANGE (subtype = timestamptz)")
    owner.execute(
        "CREATE TABLE t (m mood, ms mood[], p price, ps price[], n numeric(12,3), c char(5), v varchar(9), "
        "tags text[], b bit(3), f float8, ts timestamptz, i interval, j jsonb, u uuid, y bytea, r int4range, s span, "
        "g int GENERATED ALWAYS AS (length(v)) STORED)"
    )
    capture = follow("t")
    assert (capture.buffers["t"].by_row, len(capture.buffers["t"].columns)) == (False, 18)
    rows = follow("t", settings=BufferSettings(schema="by_rows", by_row=True))
    owner.execute("SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Tokyo'; SET bytea_output = 'escape'")
    owner.execute("SET intervalstyle = 'sql_standard'; SET extra_float_digits = -5")
    owner.execute(
        "INSERT INTO t VALUES ('o k', '{sad,\"o k\",NULL}', 1.5, '{1,2.25}', 3, 'ab', '', '{\"a,b\",NULL,\"\"}', "
        "'101', 0.1, '2020-02-29 12:00+00', '1 mon 2 days 03:00', '{\"b\": 1, \"a\": [2]}', "
        "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '\\x00ff', '[1,5)', '[2020-01-01,)')"
    )
    owner.execute("INSERT INTO t (m, ms) VALUES ('', '{}'), (NULL, NULL)")
    owner.execute("UPDATE t SET f = 'NaN' WHERE m IS NULL")
    capture.poll()
    rows.poll()


def test_only_the_columns_used(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int, secret text, b int)")
    capture = follow("t", columns=["b", "a"])
    owner.execute("INSERT INTO t VALUES (1, 'secret', 2)")
    capture.poll()
    owner.execute("UPDATE t SET secret = 'other'")
    capture.poll()
    assert capture.buffers["t"].columns == ("a", "b")


@pytest.mark.parametrize("by_row", [False, True])
def test_ddl_on_the_source_never_fails_its_writers(shop: Shop, owner: Owner, follow: Follow, by_row: bool) -> None:
    owner.execute("CREATE TYPE mood AS ENUM ('sad')")
    owner.execute("CREATE DOMAIN price AS numeric(10,2)")
    owner.execute("CREATE TABLE t (a int, b varchar(3), c numeric(4,2), m mood, p price, k int)")
    follow("t", settings=BufferSettings(by_row=by_row))
    insert = "INSERT INTO t VALUES (1, 'abc', 12.34)"
    owner.execute(insert)
    for statement in (
        "ALTER TABLE t ALTER b TYPE varchar(10)",
        "ALTER TABLE t ALTER c TYPE numeric(12, 2)",
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
        if not by_row:  # a function that fires per row and that a session has used does not learn of a new type
            owner.execute(f"INSERT INTO {table} DEFAULT VALUES")
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
            stranger.execute(f"CREATE TEMP TABLE {name} (__ms_seq bigint, __ms_xid xid8, __ms_w smallint, a int)")
        for function in ("pg_current_xact_id() RETURNS xid8", "fitting(a int, b int, c int) RETURNS int"):
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
            f"SELECT {SCHEMA}.fitting(1, 2, 0)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                stranger.execute(statement)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        owner.execute(f"SELECT * FROM {SCHEMA}.changes_{oid}")
    with shop.server.superuser(shop.name) as superuser:
        rights = superuser.execute(
            "SELECT bool_or(has_function_privilege(%s, p.oid, 'EXECUTE')) FROM pg_proc p "
            "JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %s",
            [STRANGER, SCHEMA],
        ).fetchone()
    assert rights == (False,)
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
        missing = required_grants(connection, relation, SCHEMA)
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
                assert required_grants(connection, relation, SCHEMA) == []
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
    with cut(capture.connection) as position:
        capture.columns["t"], capture.buffers["t"] = mirror_columns(relation, ["a", "c"]), wide
        capture.bags["t"], capture.position = capture.table("t"), position
    owner.execute("DELETE FROM t WHERE a = 1")
    capture.poll()
    assert capture.bags["t"] == {(2, 3): 1}


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
        input=uninstall_sql(SCHEMA),
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


def test_a_window_is_the_same_when_it_is_read_again(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    capture = follow("t")
    owner.execute("INSERT INTO t VALUES (1)")
    old, connection, buffer = capture.position, capture.connection, capture.buffers["t"]
    with cut(connection) as new:
        first = read_window(connection, buffer, capture.columns["t"], old, new)
    owner.execute("INSERT INTO t VALUES (2)")
    again = read_window(connection, buffer, capture.columns["t"], old, new)
    assert again.rows.equals(first.rows)
