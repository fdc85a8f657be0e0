"""What we make in a database is for nobody else, and nobody else can keep us waiting by it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from kits.capture import open_kit
from kits.serving import BAG, KEYED, LEDGER, Table, connected, served
from kits.shops import Shop, new_shop
from kits.swapped_names import evil_runs, make_evil
from kits.trigger_capture import Owner
from millstream.errors import Code, MillstreamError
from millstream.settings import Settings
from millstream.sinks.postgres import locks
from millstream.sinks.postgres.serve import PostgresSink
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffers import install
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.sources.postgres.values.types import mirror_columns
from millstream.sources.postgres.wal.slot import drop_slot
from millstream.sources.postgres.wal.slot_creation import create_slot
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

OURS = ("millstream_changes", "millstream")
# Every object of every catalog that has rights, in our schemas; a row type has those of its table.
_OBJECTS = """
WITH ours AS (SELECT * FROM pg_namespace WHERE nspname = ANY(%(schemas)s))
SELECT o.kind, o.name, pg_get_userbyid(o.owner)::text, coalesce(pg_get_userbyid(NULLIF(a.grantee, 0))::text, 'PUBLIC'),
       a.privilege_type
FROM (
  SELECT 'schema', nspname::text, nspowner, coalesce(nspacl, acldefault('n', nspowner)) FROM ours
  UNION ALL SELECT 'relation', c.oid::regclass::text, c.relowner,
    coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))
    FROM pg_class c JOIN ours ON ours.oid = c.relnamespace WHERE c.relkind NOT IN ('i', 'I', 't', 'c')
  UNION ALL SELECT 'function', p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
    FROM pg_proc p JOIN ours ON ours.oid = p.pronamespace
  UNION ALL SELECT 'type', t.oid::regtype::text, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner))
    FROM pg_type t JOIN ours ON ours.oid = t.typnamespace WHERE t.typrelid = 0 AND t.typelem = 0
  UNION ALL SELECT 'column', a.attrelid::regclass || '.' || a.attname, c.relowner, a.attacl FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid JOIN ours ON ours.oid = c.relnamespace WHERE a.attacl IS NOT NULL
) o(kind, name, owner, acl) LEFT JOIN LATERAL aclexplode(o.acl) a ON true
"""
_KINDS = ("TABLES", "SEQUENCES", "FUNCTIONS", "TYPES", "SCHEMAS")


def open_by_default(shop: Shop) -> None:
    """The role has given everybody, and a stranger by name, all rights on whatever it makes."""
    with connected(shop) as connection:
        for kind in _KINDS:
            connection.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO PUBLIC, stranger")


def rights(shop: Shop) -> tuple[set[tuple[str, str]], set[tuple[str, str, str, str]]]:
    """All objects that we have made, and all rights that others have on them."""
    with shop.server.superuser(shop.name) as admin:
        rows = admin.execute(_OBJECTS, {"schemas": list(OURS)}).fetchall()
    objects = {(str(kind), str(name)) for kind, name, *_ in rows}
    return objects, {(str(k), str(n), str(g), str(p)) for k, n, owner, g, p in rows if p is not None and g != owner}


MEANT = {
    ("schema", "millstream", "PUBLIC", "USAGE"),
    ("relation", "millstream.served_tables", "PUBLIC", "SELECT"),
}


@contextmanager
def all_made(shop: Shop, owner: Owner, root: Path) -> Iterator[list[Table]]:
    """Every kind of object that capture and serving make, and all of it in use."""
    owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    owner.execute("CREATE TABLE p (id int, v text) PARTITION BY LIST (id)")
    owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
    with shop.server.superuser() as admin:
        admin.execute("ALTER ROLE millstream SUPERUSER")  # for the guard's event triggers
    try:
        with open_kit(root, shop.address, Settings(block_source_ddl=True)) as kit:
            kit.read("r", "t", "id", "v")
            kit.read("q", "p", "id")
            kit.read("s", "p", "v")  # is widened
            owner.execute("INSERT INTO p VALUES (1, 'x')")
            kit.tick("t", "p")
            keyed, bag = served(shop, KEYED, ["k"]), served(shop, BAG, None, name="rows")
            keyed.serve((1, 10))
            bag.serve(("a", 1))
            yield [keyed, bag]
    finally:
        with shop.server.superuser() as admin:
            admin.execute("ALTER ROLE millstream NOSUPERUSER")


def test_default_privileges_open_nothing_of_ours(shop: Shop, owner: Owner, tmp_path: Path) -> None:
    open_by_default(shop)
    with all_made(shop, owner, tmp_path / "lake"):
        objects, granted = rights(shop)
        kinds = {kind for kind, _ in objects}
        assert kinds == {"schema", "relation", "function"}
        assert len(objects) > 25
        assert granted >= MEANT
        others = {right for right in granted if right not in MEANT}
        # Whoever owns a partitioned table makes partitions, which get its triggers. What all may do the stranger may.
        assert {(kind, grantee, right) for kind, _, grantee, right in others} == {
            ("function", "shop_owner", "EXECUTE"),
            *((kind, "stranger", right) for kind, _, _, right in MEANT),
        }


def test_what_was_open_is_closed_when_something_is_made(shop: Shop, owner: Owner, tmp_path: Path) -> None:
    with all_made(shop, owner, tmp_path / "lake") as tables:
        with connected(shop) as connection:
            for schema in OURS:
                for what in ("TABLES", "FUNCTIONS"):
                    connection.execute(f"GRANT ALL ON ALL {what} IN SCHEMA {schema} TO stranger, PUBLIC")
                connection.execute(f"GRANT ALL ON SCHEMA {schema} TO stranger, PUBLIC")
            relation = find_relation(connection, "t")
            install(connection, relation, mirror_columns(relation, None), BufferSettings(lake=_lake(shop)))
        tables[0].serve((2, 20), full=True)
        _, granted = rights(shop)
        kinds = {(kind, grantee, right) for kind, _, grantee, right in granted - MEANT}
        assert kinds == {("function", "shop_owner", "EXECUTE"), ("schema", "stranger", "USAGE"),
                         ("relation", "stranger", "SELECT")}  # fmt: skip
        assert {n for _, n, g, _ in granted if g == "stranger"} == {"millstream", "millstream.served_tables"}


def _lake(shop: Shop) -> str:
    with shop.server.superuser(shop.name) as admin:
        row = admin.execute(
            "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'millstream_changes'"
        ).fetchone()
    assert row is not None
    return str(row[0]).rpartition(" ")[2]


def test_grants_on_served_tables_are_their_users(shop: Shop) -> None:
    table = served(shop, KEYED, ["k"])
    table.as_owner("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO stranger")
    table.serve((1, 10))
    with psycopg.connect(shop.server.url(shop.name, "stranger"), autocommit=True) as stranger:
        assert stranger.execute("SELECT * FROM public.totals").fetchall() == [(1, 10)]


_MODES = ("ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE",
          "EXCLUSIVE", "ACCESS EXCLUSIVE")  # fmt: skip
_NUMBERS = (
    "SELECT pg_advisory_lock(hashtext('millstream millstream_changes'))",
    "SELECT pg_advisory_lock(7205759403792811)",
)
# Locks that a statement takes when it is parsed, before anybody asks for rights.
_PARSED = (
    "PREPARE a{n} AS SELECT FROM {t} FOR UPDATE",
    "PREPARE b{n} AS DELETE FROM {t}",
    "PREPARE c{n} AS INSERT INTO {t} DEFAULT VALUES",
)


def test_a_stranger_can_lock_nothing_of_ours(shop: Shop, owner: Owner, tmp_path: Path) -> None:
    open_by_default(shop)
    with all_made(shop, owner, tmp_path / "lake"):
        objects, _ = rights(shop)
        relations = [name for kind, name in objects if kind == "relation" and name != "millstream.served_tables"]
        assert {"millstream_changes.ddl_lock", "millstream.ddl_lock", "millstream_changes.trims"} <= set(relations)
        with psycopg.connect(shop.server.url(shop.name, "stranger"), autocommit=True) as stranger:
            for name in relations:
                for mode in _MODES:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
                        stranger.execute(f"LOCK TABLE {name} IN {mode} MODE")


@contextmanager
def held_by_a_stranger(shop: Shop, *statements: str) -> Iterator[None]:
    with psycopg.connect(shop.server.url(shop.name, "stranger")) as stranger:
        for statement in statements:
            with suppress(psycopg.Error), stranger.transaction():
                stranger.execute(statement)
        yield


def test_a_stranger_cannot_stall_capture_or_serving(shop: Shop, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PATIENCE_SECONDS", 3.0)
    owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    owner.execute("CREATE TABLE u (id int PRIMARY KEY, v numeric)")
    owner.execute(f"ALTER DATABASE {shop.name} SET lock_timeout = '5s'")
    first, second = served(shop, KEYED, ["k"]), served(shop, KEYED, ["k"], name="others")
    settings = BufferSettings(patience_seconds=3)
    with shop.connect() as connection:
        relations = [find_relation(connection, name) for name in ("t", "u")]
        connection.execute("SET lock_timeout = '5s'; SET statement_timeout = '10s'")
        with held_by_a_stranger(shop, *_NUMBERS):
            install(connection, relations[0], mirror_columns(relations[0], None), settings)
            first.serve((1, 10))
        tables = [f"{schema}.ddl_lock" for schema in OURS] + ["millstream_changes.trims", "millstream.serving"]
        parsed = [s.format(n=n, t=t) for n, t in enumerate(tables) for s in _PARSED]
        with held_by_a_stranger(shop, *_NUMBERS, *parsed):
            install(connection, relations[1], mirror_columns(relations[1], None), settings)
            second.serve((1, 10))
            first.serve((2, 20))
            first.serve((3, 30), full=True)
            with connected(shop) as serving:
                PostgresSink(serving, LEDGER).drop(first.target, cascade=False)


def test_what_holds_the_turn_is_told_of_by_a_code(shop: Shop, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PATIENCE_SECONDS", 0.2)
    owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    table = served(shop, KEYED, ["k"])
    table.serve((1, 10))
    with connected(shop) as holder, holder.transaction():
        holder.execute("LOCK TABLE millstream.ddl_lock IN SHARE UPDATE EXCLUSIVE MODE")
        with pytest.raises(MillstreamError) as caught, connected(shop) as serving:
            PostgresSink(serving, LEDGER).release(table.target)
    assert caught.value.code is Code.LOCK_TIMEOUT
    with shop.connect() as connection:
        relation = find_relation(connection, "t")
        settings = BufferSettings(patience_seconds=0.2, lock_timeout_ms=100)
        install(connection, relation, mirror_columns(relation, None), settings)
        with connected(shop) as holder, holder.transaction():
            holder.execute("LOCK TABLE millstream_changes.ddl_lock IN SHARE UPDATE EXCLUSIVE MODE")
            with pytest.raises(MillstreamError) as caught:
                install(connection, relation, mirror_columns(relation, None), settings)
    assert caught.value.code is Code.LOCK_TIMEOUT


def test_who_holds_the_turn_keeps_no_slot_waiting(shop: Shop, owner: Owner) -> None:
    owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with shop.server.superuser() as admin:
        admin.execute("ALTER ROLE millstream REPLICATION")
    try:
        with shop.connect() as connection, connected(shop) as holder:
            relation = find_relation(connection, "t")
            install(connection, relation, mirror_columns(relation, None))
            with holder.transaction():
                holder.execute("LOCK TABLE millstream_changes.ddl_lock IN SHARE UPDATE EXCLUSIVE MODE")
                create_slot(shop.address, f"turn_{shop.name}", 10.0)
                drop_slot(connection, f"turn_{shop.name}")
    finally:
        with shop.server.superuser() as admin:
            admin.execute("ALTER ROLE millstream NOREPLICATION")


@pytest.mark.parametrize("what", ["capture", "serving"])
def test_sessions_that_begin_at_once_all_succeed(server: Server, what: str) -> None:
    for _ in range(4):
        assert begun_at_once(new_shop(server), what) == []


def begun_at_once(shop: Shop, what: str, sessions: int = 4) -> list[Exception]:
    """What sessions fail by that make the same schema at the same time."""
    with shop.owner() as owner:
        for i in range(sessions):
            owner.execute(f"CREATE TABLE t{i} (id int PRIMARY KEY, v text, n numeric)")
    tables = [served(shop, KEYED, ["k"], name=f"s{i}") for i in range(sessions)]
    failed: list[Exception] = []
    gate = threading.Barrier(sessions)

    def begin(i: int) -> None:
        try:
            with shop.connect() as connection:
                relation = find_relation(connection, f"t{i}")
                gate.wait()
                if what == "capture":
                    install(connection, relation, mirror_columns(relation, None))
                else:
                    tables[i].serve((i, i))
        except (MillstreamError, psycopg.Error) as error:
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(i,)) for i in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def test_a_schema_of_somebody_elses_is_not_read(shop: Shop, owner: Owner, tmp_path: Path) -> None:
    """If ours was dropped, whoever may create schemas can make one of its name, with views for buffers."""
    make_evil(owner)
    owner.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    owner.execute("INSERT INTO t VALUES (1, 1)")
    with open_kit(tmp_path / "lake", shop.address) as kit:
        kit.read("r", "t", "id", "v")
        oid = kit.capture("t").oid
        with connected(shop) as connection:
            connection.execute("DROP SCHEMA millstream_changes CASCADE")
        owner.execute("CREATE SCHEMA millstream_changes")
        owner.execute("GRANT USAGE ON SCHEMA millstream_changes TO millstream")
        for name in (f"changes_{oid}", "trims"):
            owner.execute(
                sql.SQL(
                    "CREATE VIEW millstream_changes.{0} AS SELECT public.evil() AS source, NULL::pg_snapshot AS "
                    "snapshot, '0/0'::pg_lsn AS __ms_lsn, '1'::xid8 AS __ms_xid, 1::int2 AS __ms_w, 1 AS id, 1 AS v;"
                ).format(sql.Identifier(name))
            )
            owner.execute(sql.SQL("GRANT ALL ON millstream_changes.{} TO millstream").format(sql.Identifier(name)))
        for _ in range(2):
            owner.execute("INSERT INTO t VALUES ((SELECT max(id) + 1 FROM t), 1)")
            with pytest.raises(MillstreamError) as caught:
                kit.tick("t")
            assert caught.value.code is Code.NAME_TAKEN
        assert evil_runs(shop) == []


@pytest.mark.parametrize("name", ["serving", "ddl_lock", "rows"])
def test_bookkeeping_that_somebody_has_planted_is_not_used(shop: Shop, owner: Owner, name: str) -> None:
    """While the schema was open to others, they may have made what we would make later, with triggers of theirs."""
    make_evil(owner)
    table = served(shop, BAG, None)
    table.as_owner("CREATE SCHEMA millstream", "GRANT ALL ON SCHEMA millstream TO shop_owner")
    planted = LEDGER.ctid_table(table.target) if name == "rows" else sql.Identifier("millstream", name)
    owner.execute(sql.SQL("CREATE TABLE {} (key text, place tid, seen xid)").format(planted))
    owner.execute(sql.SQL("GRANT ALL ON {} TO millstream").format(planted))
    owner.execute(
        "CREATE FUNCTION t() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM public.evil(); RETURN NEW; END $$"
    )
    owner.execute(
        sql.SQL("CREATE TRIGGER t BEFORE INSERT OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION t()").format(planted)
    )
    with pytest.raises(MillstreamError) as caught:
        table.serve(("a", 1))
    assert caught.value.code is Code.NAME_TAKEN
    assert evil_runs(shop) == []


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TABLE millstream_changes.trims (source oid PRIMARY KEY, snapshot pg_snapshot)",
        "CREATE TABLE millstream_changes.ddl_lock ()",
        "CREATE FUNCTION millstream_changes.fitting_text(text, int8, int8) RETURNS text LANGUAGE sql IMMUTABLE AS "
        "'SELECT public.evil()::text'",
    ],
)
def test_what_somebody_has_planted_among_the_buffers_is_not_used(shop: Shop, owner: Owner, planted: str) -> None:
    make_evil(owner)
    owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with connected(shop) as connection:
        connection.execute("CREATE SCHEMA millstream_changes")
        connection.execute("COMMENT ON SCHEMA millstream_changes IS 'millstream''s capture, lake unnamed'")
        connection.execute("GRANT ALL ON SCHEMA millstream_changes TO shop_owner")
    owner.execute(planted)
    with shop.connect() as connection:
        relation = find_relation(connection, "t")
        with pytest.raises(MillstreamError) as caught:
            install(connection, relation, mirror_columns(relation, None))
    assert caught.value.code is Code.NAME_TAKEN
    owner.execute("INSERT INTO t VALUES (1, 'x')")
    assert evil_runs(shop) == []
