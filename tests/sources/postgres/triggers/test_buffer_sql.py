"""Triggers see every change: replayed onto a bag, the buffered changes give the table after each poll."""

from __future__ import annotations

import pytest
from psycopg import sql

from kits.shops import MILLSTREAM, OWNER, Shop, new_shop
from kits.trigger_capture import Follow, Owner, polled, wait_until
from millstream.sources.postgres.server.privileges import missing_table_grants
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffer_changes import read_changes
from millstream.sources.postgres.triggers.trigger_catalog import (
    BufferSettings,
    trigger_fingerprints,
)
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

SCHEMA = BufferSettings().schema


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
    assert (
        trigger_fingerprints(capture.connection, [capture.buffers["p"].oid], SCHEMA)[capture.buffers["p"].oid] != state
    )


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


def test_what_a_subscription_writes(server: Server, shop: Shop, owner: Owner, follow: Follow) -> None:
    there = new_shop(server)
    with there.owner() as publisher, server.superuser(there.name) as elsewhere, server.superuser(shop.name) as here:
        publisher.execute("CREATE TABLE t (a int PRIMARY KEY)")
        owner.execute("CREATE TABLE t (a int PRIMARY KEY)")
        elsewhere.execute("CREATE PUBLICATION p FOR TABLE t")
        elsewhere.execute(f"SELECT pg_create_logical_replication_slot('{shop.name}', 'pgoutput')")
        here.execute(
            f"CREATE SUBSCRIPTION {shop.name} CONNECTION '{server.url(there.name)}' PUBLICATION p "
            "WITH (create_slot = false, copy_data = false)"
        )
        try:
            with shop.connect() as connection:  # such triggers must fire always, which takes the owner
                missing = missing_table_grants(connection, find_relation(connection, "t"), SCHEMA)
            assert missing == [f'GRANT "{OWNER}" TO "{MILLSTREAM}";']
            here.execute(missing[0])
            capture = follow("t")
            assert (capture.buffers["t"].by_row, capture.buffers["t"].is_always) == (True, True)
            publisher.execute("INSERT INTO t VALUES (1), (2)")
            publisher.execute("UPDATE t SET a = 3 WHERE a = 1")
            publisher.execute("INSERT INTO t VALUES (4)")
            wait_until(lambda: owner.execute("SELECT count(*) FROM t").fetchone() == (3,))
            capture.poll()
            assert set(capture.bags["t"]) == {(2,), (3,), (4,)}
            publisher.execute("TRUNCATE t")
            wait_until(lambda: owner.execute("SELECT count(*) FROM t").fetchone() == (0,))
            capture.poll()
        finally:
            here.execute(f"REVOKE {OWNER} FROM {MILLSTREAM}")
            here.execute(f"DROP SUBSCRIPTION {shop.name}")


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
        assert (capture.changes, capture.rereads) == (3, 0)
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


def test_a_window_is_the_same_when_it_is_read_again(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    capture = follow("t")
    old, connection, buffer = capture.position, capture.connection, capture.buffers["t"]
    with shop.owner() as late:
        late.autocommit = False
        late.execute("INSERT INTO t VALUES (1)")
        owner.execute("INSERT INTO t VALUES (2)")
        with polled(connection) as new:
            first = read_changes(connection, buffer, capture.columns["t"], old, new)
        late.commit()
    owner.execute("INSERT INTO t VALUES (3)")
    again = read_changes(connection, buffer, capture.columns["t"], old, new)
    assert first.rows["a"].to_pylist() == [2]
    assert again.rows.equals(first.rows)
