"""PostgreSQL's answers: under a snapshot, with nobody else's code, in the types of a stream table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from kits.shops import Shop, new_shop
from millstream import Code, MillstreamError
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.server.query_answers import AlteredError, Answers, answering
from millstream.sources.postgres.server.relations import find_relation
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres
Owner = psycopg.Connection[Any]


@pytest.fixture
def owner(shop: Shop) -> Iterator[Owner]:
    with shop.owner() as connection:
        for statement in (
            "CREATE TYPE mood AS ENUM ('sad', 'happy')",
            "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, m mood, at timestamptz)",
            "INSERT INTO t VALUES (1, 'b', 1.50, 'happy', '2024-07-01 12:00:00+00'), (2, 'A', NULL, 'sad', NULL)",
            "INSERT INTO t VALUES (3, 'Ä', -2, NULL, '1900-01-01 00:00:00+00')",
        ):
            connection.execute(statement)
        yield connection


@contextmanager
def asking(shop: Shop, *columns: str, zone: str = "UTC", timeout: int = 60) -> Iterator[tuple[Answers, str]]:
    """Answers, and the SQL for some columns of the table."""
    with shop.connect() as connection:
        oid = find_relation(connection, "t").oid
    with ExportedSnapshot(shop.address) as snapshot, answering(snapshot, {oid: columns}, zone, timeout) as answers:
        yield answers, answers.table(oid, columns)


def rows(answers: Answers, query: str, *types: str, before: str = "") -> list[tuple[Any, ...]]:
    answer = answers.ask(before, query, types)
    table = pa.Table.from_batches(list(answer.batches()), schema=answer.schema)
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def test_values(shop: Shop, owner: Owner) -> None:
    with asking(shop, "id", "v", "n", "m") as (answers, t):
        assert rows(answers, f"SELECT id, v, m FROM {t} x", "bigint", "string", "string") == [
            (1, "b", "happy"),
            (2, "A", "sad"),
            (3, "Ä", None),
        ]
        assert rows(answers, "SELECT s FROM ts", "bigint", before=f"WITH ts(s) AS (SELECT sum(id) FROM {t} x)") == [
            (6,)
        ]


def test_decimals_that_fit_and_others(shop: Shop, owner: Owner) -> None:
    with asking(shop, "n") as (answers, t):
        exact = answers.ask("", f"SELECT n FROM {t} x WHERE n > 0", ["decimal(10,2)"])
        assert [b.to_pylist() for b in exact.batches()] == [[{"c0": Decimal("1.50"), "c0_near": 1.5}]]
        assert exact.inexact == set()
        for value in ("1.555", "1e20", "'NaN'::numeric", "1/3.0"):
            answer = answers.ask("", f"SELECT {value}", ["decimal(10,2)"])
            [[row]] = [b.to_pylist() for b in answer.batches()]
            assert row["c0"] is None
            assert answer.inexact == {"c0"}


def test_moments_in_the_zone_of_the_query(shop: Shop, owner: Owner) -> None:
    for zone, hour in (("UTC", 12), ("America/New_York", 8), ("+05:30", 17), ("-03:00", 9)):
        with asking(shop, "id", "at", zone=zone) as (answers, t):
            [(shown, moment)] = rows(
                answers, f"SELECT extract(hour FROM at), at FROM {t} x WHERE id = 1", "int", "timestamp"
            )
            assert (shown, moment.hour) == (hour, 12)
            rows(answers, f"SELECT at FROM {t} x", "timestamp")  # offsets with seconds, too
    with pytest.raises(MillstreamError) as caught, asking(shop, "id", zone="GMT+2"):
        pass
    assert caught.value.code is Code.NOT_COMPARABLE


def test_functions_and_operators_of_others_are_not_called(shop: Shop, owner: Owner) -> None:
    for statement in (
        "CREATE FUNCTION public.upper(text) RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE division_by_zero; END'",
        "CREATE FUNCTION public.same(int, int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE division_by_zero; END'",
        "CREATE OPERATOR public.= (LEFTARG = int, RIGHTARG = int, FUNCTION = public.same)",
    ):
        owner.execute(statement)
    with asking(shop, "id", "v") as (answers, t):
        assert rows(answers, f"SELECT upper(v) FROM {t} x WHERE id = 1", "string") == [("B",)]


def test_a_cast_of_others_is_refused(shop: Shop, owner: Owner) -> None:
    owner.execute("CREATE FUNCTION f(mood) RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE division_by_zero; END'")
    owner.execute("CREATE CAST (mood AS text) WITH FUNCTION f(mood) AS IMPLICIT")
    with pytest.raises(MillstreamError) as caught, asking(shop, "m"):
        pass
    assert caught.value.code is Code.NOT_COMPARABLE


def test_no_view_is_expanded(shop: Shop, owner: Owner) -> None:
    owner.execute("CREATE VIEW v AS SELECT * FROM t")
    with asking(shop, "id") as (answers, _), pytest.raises(MillstreamError) as caught:
        rows(answers, "SELECT id FROM public.v", "int")
    assert caught.value.code in (Code.ORACLE_FAILED, Code.PRIVILEGE_MISSING)


def test_nothing_can_be_written(shop: Shop, owner: Owner) -> None:
    owner.execute("GRANT INSERT ON t TO millstream")
    with asking(shop, "id") as (answers, _), pytest.raises(MillstreamError) as caught:
        rows(answers, "WITH x AS (INSERT INTO public.t VALUES (9) RETURNING id) SELECT id FROM x", "int")
    assert caught.value.code is Code.ORACLE_FAILED
    with asking(shop, "id") as (answers, _), pytest.raises(MillstreamError) as caught:
        rows(answers, "SELECT nextval('x')", "bigint")
    assert caught.value.code is Code.ORACLE_FAILED


def test_time_out(shop: Shop, owner: Owner) -> None:
    with asking(shop, "id", timeout=1) as (answers, t), pytest.raises(MillstreamError) as caught:
        rows(answers, f"SELECT count(*) FROM {t} x, generate_series(1, 1000000000)", "bigint")
    assert caught.value.code is Code.ORACLE_FAILED


def test_what_fails_there(shop: Shop, owner: Owner) -> None:
    with asking(shop, "id") as (answers, t), pytest.raises(MillstreamError) as caught:
        rows(answers, f"SELECT 1 / (id - 1) FROM {t} x", "int")
    assert caught.value.code is Code.ORACLE_FAILED
    with asking(shop, "id") as (answers, t), pytest.raises(MillstreamError) as caught:
        rows(answers, f"SELECT id FROM {t} x", "int", "int")
    assert caught.value.code in (Code.ORACLE_FAILED, Code.NOT_COMPARABLE)
    with asking(shop, "id") as (answers, t), pytest.raises(MillstreamError) as caught:
        rows(answers, f"SELECT id, id FROM {t} x", "int")
    assert caught.value.code is Code.NOT_COMPARABLE


def test_columns_that_are_gone_are_null(shop: Shop, owner: Owner) -> None:
    with asking(shop, "id") as (answers, _):
        [oid] = answers.relations
        t = answers.table(oid, ["id", "dropped"])
        assert rows(answers, f"SELECT id, dropped FROM {t} x WHERE id = 1", "int", "string") == [(1, None)]


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE t",
        "ALTER TABLE t ALTER v TYPE varchar(80) USING v || '!'",
        "DROP TABLE t",
        "ALTER TABLE t RENAME TO gone",
        "ALTER SCHEMA public RENAME TO gone",
    ],
)
def test_what_snapshots_do_not_show_is_found(shop: Shop, owner: Owner, statement: str) -> None:
    with shop.connect() as connection:
        oid = find_relation(connection, "t").oid
    with ExportedSnapshot(shop.address) as snapshot:
        owner.execute(statement.encode())
        with pytest.raises(AlteredError), answering(snapshot, {oid: ["id", "v"]}, "UTC", 60):
            pass


def test_a_partition_that_comes_meanwhile_is_found(shop: Shop, owner: Owner) -> None:
    owner.execute("CREATE TABLE p (id int, v text) PARTITION BY LIST (id)")
    owner.execute("CREATE TABLE p1 AS SELECT 1 AS id, 'before' AS v")
    with shop.connect() as connection:
        oid = find_relation(connection, "p").oid

    def attach(snapshot: ExportedSnapshot) -> None:
        with answering(snapshot, {oid: ["id", "v"]}, "UTC", 60) as answers:
            owner.execute("ALTER TABLE p ATTACH PARTITION p1 FOR VALUES IN (1)")
            assert rows(answers, f"SELECT v FROM {answers.table(oid, ['id', 'v'])} x", "string") == [("before",)]

    with ExportedSnapshot(shop.address) as snapshot, pytest.raises(AlteredError):
        attach(snapshot)


def test_texts_are_ordered_by_code_points(old_server: Server) -> None:
    """Under any collation of the column: that is how the stream table orders them."""
    shop = new_shop(old_server)
    with shop.owner() as owner:
        owner.execute('CREATE TABLE t (v text COLLATE "en-x-icu")')
        owner.execute("INSERT INTO t VALUES ('b'), ('A'), ('a'), ('Ä')")
        assert owner.execute("SELECT min(v), max(v), max(upper(v)) FROM t").fetchone() == ("a", "b", "B")
    with asking(shop, "v") as (answers, t):
        assert rows(answers, f"SELECT min(v), max(v), max(upper(v)) FROM {t} x", "string", "string", "string") == [
            ("A", "Ä", "Ä")
        ]
        assert rows(answers, f"SELECT lower(v) FROM {t} x WHERE v > 'b'", "string") == [("ä",)]
