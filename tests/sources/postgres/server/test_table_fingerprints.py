"""What moves the fingerprints of a captured table, and what does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kits.shops import Shop
from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.relations import find_named
from millstream.sources.postgres.server.snapshot_transaction import tick_transaction
from millstream.sources.postgres.server.table_fingerprints import TableFingerprint, read_fingerprints

pytestmark = pytest.mark.postgres


@pytest.fixture
def connection(shop: Shop) -> Iterator[Connection]:
    with shop.connect() as opened, shop.owner() as owner:
        owner.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        owner.execute("CREATE TABLE t (id int, a text, b varchar(10), m mood, unused int, PRIMARY KEY (b, id))")
        owner.execute("CREATE TABLE p (k int, v text) PARTITION BY LIST (k)")
        owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
        owner.execute("CREATE TABLE parent (id int PRIMARY KEY)")
        owner.execute("CREATE TABLE child () INHERITS (parent)")
        yield opened


def fingerprint(connection: Connection, table: str, *columns: str) -> TableFingerprint:
    relation = find_named(connection, "public", table)
    assert relation is not None
    with tick_transaction(connection):
        return read_fingerprints(connection, {relation.oid: columns})[relation.oid]


@pytest.mark.parametrize(
    ("statements", "moves"),
    [
        (["INSERT INTO t VALUES (1, 'x', 'y', 'sad', 1)", "DELETE FROM t"], set()),
        (["VACUUM t", "ANALYZE t", "CREATE INDEX ON t (a)"], set()),
        (["ALTER TABLE t ADD c int DEFAULT 1", "ALTER TABLE t DROP unused"], set()),
        (["ALTER TABLE t ADD c float DEFAULT random()"], {"storage"}),
        (["VACUUM FULL t"], {"storage"}),
        (["TRUNCATE t"], {"storage"}),
        (["ALTER TABLE t ALTER a TYPE text USING a || 'x'"], {"storage"}),
        (["ALTER TABLE t ALTER b TYPE varchar(20)"], {"shape", "storage"}),
        (["ALTER TABLE t ALTER id TYPE bigint"], {"shape", "storage"}),
        (["ALTER TABLE t DROP a", "ALTER TABLE t ADD a text"], {"shape", "storage"}),
        (["ALTER TABLE t RENAME a TO z"], {"shape", "storage"}),
        (["ALTER TABLE t RENAME a TO z", "ALTER TABLE t RENAME z TO a"], {"storage"}),
        (["ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"], {"shape"}),
        (["ALTER TYPE mood ADD VALUE 'calm' BEFORE 'happy'"], {"shape"}),
        (["ALTER TABLE t ENABLE ROW LEVEL SECURITY"], {"storage"}),
        (["ALTER TABLE t RENAME TO u"], {"name"}),
        (["ALTER TABLE t DROP CONSTRAINT t_pkey"], {"key"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_moves(connection: Connection, shop: Shop, statements: list[str], moves: set[str]) -> None:
    relation = find_named(connection, "public", "t")
    assert relation is not None
    with tick_transaction(connection):
        before = read_fingerprints(connection, {relation.oid: ("id", "a", "b", "m")})[relation.oid]
    assert before.key == ("b", "id")
    with shop.owner() as owner:
        for statement in statements:
            owner.execute(statement)
    with tick_transaction(connection):
        after = read_fingerprints(connection, {relation.oid: ("id", "a", "b", "m")})[relation.oid]
    names = ("name", "shape", "storage", "key")
    assert {name for name in names if getattr(before, name) != getattr(after, name)} == moves


@pytest.mark.parametrize(
    ("types", "column"),
    [
        ([], "mood[]"),
        (["CREATE DOMAIN inner_d AS mood", "CREATE DOMAIN d AS inner_d"], "d"),
        (["CREATE DOMAIN d AS mood"], "d[]"),
        (["CREATE DOMAIN d AS mood[]"], "d"),
        (["CREATE TYPE moods AS RANGE (subtype = mood, multirange_type_name = many_moods)"], "moods"),
        (["CREATE TYPE moods AS RANGE (subtype = mood, multirange_type_name = many_moods)"], "many_moods"),
        (["CREATE DOMAIN inner_d AS mood", "CREATE DOMAIN d AS inner_d[]", "CREATE DOMAIN e AS d"], "e[]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_labels_of_an_enum_inside_of_other_types(
    connection: Connection, shop: Shop, types: list[str], column: str
) -> None:
    with shop.owner() as owner:
        for statement in [*types, f"CREATE TABLE nested (m {column}, n int)"]:
            owner.execute(statement)  # type: ignore[call-overload]
        before, other = fingerprint(connection, "nested", "m"), fingerprint(connection, "nested", "n")
        owner.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
        assert fingerprint(connection, "nested", "m").shape != before.shape
        assert fingerprint(connection, "nested", "n").shape == other.shape


def test_harmless_changes_are_distinguished_from_others(connection: Connection, shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("CREATE TABLE u (id int PRIMARY KEY, a int, b text)")
        before = fingerprint(connection, "u", "id", "a")

        def now() -> tuple[bool, bool]:
            found = fingerprint(connection, "u", "id", "a")
            return found.shape == before.shape, found.storage == before.storage

        owner.execute("ALTER TABLE u ADD COLUMN c int")
        assert now() == (True, True)
        owner.execute("ALTER TABLE u ALTER COLUMN a TYPE int USING a * 2")
        assert now() == (True, False)
        owner.execute("ALTER TABLE u ALTER COLUMN a TYPE bigint")
        assert now() == (False, False)
        owner.execute("DROP TABLE u")
        with tick_transaction(connection):
            assert read_fingerprints(connection, {before.oid: ("id", "a")}) == {}


def test_partitions_that_come_and_go(connection: Connection, shop: Shop) -> None:
    with shop.owner() as owner:
        seen = [fingerprint(connection, "p", "k")]
        for statement in (
            "CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)",
            "ALTER TABLE p DETACH PARTITION p2",
            "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)",
            "TRUNCATE p2",
        ):
            owner.execute(statement)
            seen.append(fingerprint(connection, "p", "k"))
        assert len({s.storage for s in seen}) == 4, "without the partition it is as it was before"
        assert seen[1].storage != seen[3].storage, "detached and attached again: writes in between were not seen"
        assert len({s.shape for s in seen}) == 1


def test_a_key_that_children_do_not_share_is_none(connection: Connection) -> None:
    assert fingerprint(connection, "parent", "id").key == ()
    assert fingerprint(connection, "t", "id").key == ("b", "id")


def test_the_primary_key_comes_before_a_replica_identity(connection: Connection, shop: Shop) -> None:
    with shop.owner() as owner:
        owner.execute("ALTER TABLE t ALTER m SET NOT NULL")
        owner.execute("CREATE UNIQUE INDEX chosen ON t (m)")
        owner.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX chosen")
        assert fingerprint(connection, "t", "id").key == ("b", "id")
        owner.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        assert fingerprint(connection, "t", "id").key == ("m",)


def test_a_table_that_is_gone(connection: Connection) -> None:
    with tick_transaction(connection):
        assert read_fingerprints(connection, {1: ("a",)}) == {}
        assert read_fingerprints(connection, {}) == {}


def test_columns_that_are_never_null(connection: Connection, shop: Shop) -> None:
    assert fingerprint(connection, "t", "id", "a").not_null == ("id",)
    assert fingerprint(connection, "parent", "id").not_null == (), "its child may be without"
    assert fingerprint(connection, "p", "k", "v").not_null == ()
    with shop.owner() as owner:
        owner.execute("ALTER TABLE p ALTER v SET NOT NULL")
        assert fingerprint(connection, "p", "k", "v").not_null == ("v",)
        if owner.info.server_version >= 180_000:
            owner.execute("INSERT INTO t (id, b) VALUES (1, 'x')")
            owner.execute("ALTER TABLE t ADD CONSTRAINT later NOT NULL a NOT VALID")
            assert fingerprint(connection, "t", "id", "a").not_null == ("id",)
