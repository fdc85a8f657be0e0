"""Values of every type in a buffer are what they are in the table, and no buffer holds a type of its users'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql

from kits.bags import assert_same, rows_of, table_bag
from kits.capture import Kit, open_kit
from kits.shops import Shop, new_shop
from kits.texts import by_copy
from kits.trigger_capture import Follow, Owner, TriggerCapture, polled
from kits.type_cases import CASES, EXTENSION_CASES, Case, create_extensions, exact
from millstream.naming import WEIGHT
from millstream.sources.postgres.server.privileges import missing_table_grants
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffer_changes import read_changes
from millstream.sources.postgres.triggers.buffers import install
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.sources.postgres.values.types import mirror_columns
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

SCHEMA = BufferSettings().schema
STRANGE_SETTINGS = (
    "SET datestyle = 'SQL, DMY'",
    "SET timezone = 'Asia/Tokyo'",
    "SET intervalstyle = 'sql_standard'",
    "SET bytea_output = 'escape'",
    "SET extra_float_digits = -5",
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_a_copy(typed: Shop, case: Case) -> None:
    captured_as_copied(typed, case)


def test_values_of_extensions_are_those_of_a_copy(old_server: Server) -> None:
    shop = new_shop(old_server)
    create_extensions(shop)
    for case in EXTENSION_CASES:
        captured_as_copied(shop, case)


def captured_as_copied(shop: Shop, case: Case) -> None:
    """By statement and by row, under any settings of the writer."""
    with shop.owner() as writer, shop.connect() as connection:
        writer.execute("DROP TABLE IF EXISTS t")
        writer.execute(sql.SQL("CREATE TABLE t (n serial, v {})").format(sql.SQL(case.type)))  # type: ignore[arg-type]
        relation = find_relation(connection, "t")
        columns = mirror_columns(relation, ["v"])
        kinds = [BufferSettings(), BufferSettings(schema="by_rows", by_row=True)]
        buffers = [install(connection, relation, columns, settings) for settings in kinds]
        with polled(connection) as old:
            pass
        for text, _ in (*case.values, (None, None)):
            row = writer.execute(
                sql.SQL("INSERT INTO t (v) SELECT v FROM (SELECT {}::{} AS v) x RETURNING n").format(
                    sql.Literal(text),
                    sql.SQL(case.type),  # type: ignore[arg-type]
                )
            ).fetchone()
            for setting in STRANGE_SETTINGS:  # by which the value itself would be read otherwise, too
                writer.execute(setting)
            writer.execute("UPDATE t SET v = v WHERE n = %s", [row[0] if row else None])
            writer.execute("RESET ALL")
        expected = [exact(value) for value in by_copy(connection, "t", columns)["v"].to_pylist()]
        assert expected == [exact(value) for _, value in case.values] + [None]
        with polled(connection) as new:
            windows = [read_changes(connection, buffer, columns, old, new).rows for buffer in buffers]
        for rows in windows:
            values, weights = (rows[name].to_pylist() for name in ("v", WEIGHT))
            assert [exact(v) for v in values] == [v for value in expected for v in (value, value, value)]
            assert weights == [1, -1, 1] * len(expected)


MAKING = (
    "CREATE TYPE span AS RANGE (subtype = timestamptz)",
    "CREATE TYPE mood AS ENUM ('sad')",
    "CREATE DOMAIN price AS numeric(10,2)",
    "CREATE TABLE t (id int, s span, ss span[], sm span_multirange, p price, ps price[], m mood, ms mood[], "
    "plain numeric(10,2)[])",
    "INSERT INTO t (id) VALUES (0)",
)
INSERTION = (
    "INSERT INTO t VALUES (1, '[2020-01-01,)', '{\"[2020-01-01,)\"}', '{[2020-01-01,)}', 1.5, '{1.5}', 'sad', '{sad}', "
    "'{2.5}')"
)


@pytest.fixture
def kit(shop: Shop, owner: Owner, tmp_path: Path) -> Iterator[Kit]:
    for statement in MAKING:
        owner.execute(statement)
    with open_kit(tmp_path / "lake", shop.address) as opened:
        opened.read("r", "t", "id", "s", "ss", "sm", "p", "ps", "m", "ms", "plain")
        opened.tick()
        owner.execute(INSERTION)
        opened.tick()
        yield opened


def test_types_can_be_dropped(kit: Kit, owner: Owner) -> None:
    owner.execute("ALTER TABLE t DROP s, DROP ss, DROP sm, DROP p, DROP ps, DROP m, DROP ms")
    for statement in ("DROP TYPE span", "DROP DOMAIN price", "DROP TYPE mood"):
        owner.execute(statement)
        owner.execute("INSERT INTO t VALUES (2)")
    kit.tick()
    owner.execute("INSERT INTO t VALUES (3)")


def test_types_can_be_dropped_with_their_columns(kit: Kit, owner: Owner) -> None:
    for statement in ("DROP TYPE span CASCADE", "DROP DOMAIN price CASCADE", "DROP TYPE mood CASCADE"):
        owner.execute(statement)
        owner.execute("INSERT INTO t VALUES (2)")
        owner.execute("UPDATE t SET id = id")
    kit.tick()
    owner.execute("INSERT INTO t VALUES (3)")


def test_an_extension_can_be_dropped(old_server: Server) -> None:
    shop = new_shop(old_server)
    with old_server.superuser(shop.name) as superuser, shop.owner() as owner:
        superuser.execute("CREATE EXTENSION hstore")
        owner.execute("CREATE TABLE t (id int, h hstore, hs hstore[])")
        capture = TriggerCapture(shop, ["t"])
        capture.start()
        superuser.execute("DROP EXTENSION hstore CASCADE")
        owner.execute("INSERT INTO t VALUES (1)")
        capture.close()


@pytest.mark.parametrize(
    "statements",
    [
        "ALTER TABLE t ALTER plain TYPE price[]",
        "ALTER TABLE t ALTER ps TYPE numeric(10,2)[]",
        "ALTER TABLE t DROP m; DROP TYPE mood CASCADE; CREATE TYPE mood AS RANGE (subtype = timestamptz); "
        "ALTER TABLE t ADD m mood, ADD ms mood[]",
        "ALTER TABLE t DROP s; DROP TYPE span CASCADE; CREATE TYPE span AS ENUM ('[2020-01-01,)'); "
        "CREATE DOMAIN span_multirange AS text; ALTER TABLE t ADD s span, ADD ss span[], ADD sm text",
    ],
)
def test_a_type_of_the_same_name_or_of_the_same_values(kit: Kit, shop: Shop, owner: Owner, statements: str) -> None:
    """What the mirror holds is a text or an array as before; how it is to come there is not as before."""
    path = kit.capture("t").path
    for statement in statements.split("; "):
        owner.execute(statement)
    owner.execute("SET timezone = 'Asia/Tokyo'")
    for _ in range(3):
        owner.execute(
            "INSERT INTO t (id, s, ps, plain, m) VALUES (7, '[2020-01-01,)', '{7.25}', '{8.25}', %s)",
            ["[2020-01-01,)" if "CREATE TYPE mood" in statements else "sad"],
        )
        kit.tick()
        with shop.connect() as connection:
            relation = find_relation(connection, "t")
            names = [name for name, _, _ in kit.capture("t").columns]
            columns = sorted(mirror_columns(relation, names), key=lambda c: names.index(c.name))
            stored = table_bag(connection, relation, columns)
        capture = kit.capture("t")
        assert capture.version is not None
        mirrored = kit.store.rows(capture.path, capture.version, 1_000)
        assert mirrored is not None
        assert_same(Counter(rows_of(mirrored.select(names))), stored)
    assert kit.capture("t").path == path


def test_a_type_in_a_schema_that_is_closed_to_us(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE SCHEMA closed")
    owner.execute("CREATE TYPE closed.span AS RANGE (subtype = int)")
    owner.execute("CREATE DOMAIN closed.moment AS timestamptz")
    owner.execute("CREATE TABLE t (s closed.span, m closed.moment, ms closed.moment[])")
    owner.execute("REVOKE USAGE ON TYPE closed.span, closed.moment FROM PUBLIC")
    with shop.connect() as connection:
        assert missing_table_grants(connection, find_relation(connection, "t"), SCHEMA) == []
    capture = follow("t")
    owner.execute("SET datestyle = 'SQL, DMY'")
    owner.execute("INSERT INTO t VALUES ('[1,2)', now(), ARRAY[now()])")
    capture.poll()
