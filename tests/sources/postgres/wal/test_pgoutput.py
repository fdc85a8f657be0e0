"""The messages of pgoutput, as a real server writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kits.shops import Shop, new_shop
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.wal.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    RelationMessage,
    Truncate,
    TypeMessage,
    Update,
    parse,
)
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def captured(server: Server) -> list[bytes]:
    """Every kind of message, in an order that the tests name."""
    shop: Shop = new_shop(server)
    with server.superuser(shop.name) as superuser:
        superuser.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        superuser.execute("CREATE TABLE keyed (id int, m mood, wide text, PRIMARY KEY (id))")
        superuser.execute("CREATE TABLE whole (a text, b int, wide text)")
        superuser.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
        superuser.execute("CREATE PUBLICATION p FOR TABLE keyed, whole")
        superuser.execute("SELECT pg_create_logical_replication_slot('messages', 'pgoutput')")
        superuser.execute("SELECT pg_replication_origin_create('elsewhere')")
        superuser.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
        with superuser.transaction():
            superuser.execute("SELECT pg_replication_origin_xact_setup('0/ABC', now())")
            wide = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i)"  # lies outside its row
            superuser.execute(f"INSERT INTO keyed VALUES (1, 'ok', {wide}), (2, NULL, '')".encode())
            superuser.execute("UPDATE keyed SET m = 'sad' WHERE id = 1")
            superuser.execute("UPDATE keyed SET id = 3 WHERE id = 2")
            superuser.execute("DELETE FROM keyed WHERE id = 3")
            superuser.execute(f"INSERT INTO whole VALUES ('ü', NULL, {wide})".encode())
            superuser.execute("UPDATE whole SET b = 7")
            superuser.execute("DELETE FROM whole")
            superuser.execute("SELECT pg_logical_emit_message(true, 'millstream', 'cut:1')")
            superuser.execute("TRUNCATE keyed, whole RESTART IDENTITY CASCADE")
        superuser.execute("SELECT pg_replication_origin_session_reset()")
        superuser.execute("SELECT pg_replication_origin_drop('elsewhere')")
        rows = superuser.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('messages', NULL, NULL, 'proto_version', '2',"
            " 'publication_names', 'p', 'messages', 'true')"
        ).fetchall()
        superuser.execute("SELECT pg_drop_replication_slot('messages')")
    return [bytes(row[0]) for row in rows]


Kind = TypeVar("Kind")


def of(kind: type[Kind], captured: list[bytes]) -> list[Kind]:
    return [m for m in map(parse, captured) if isinstance(m, kind)]


def test_a_transaction_is_framed(captured: list[bytes]) -> None:
    first, last = parse(captured[0]), parse(captured[-1])
    assert isinstance(first, Begin)
    assert isinstance(last, Commit)
    assert first.final_lsn == last.commit_lsn < last.end_lsn
    assert first.committed_at == last.committed_at
    assert abs(first.committed_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert first.xid > 0
    assert of(Origin, captured) == [Origin(0xABC, "elsewhere")]


def test_tables_and_types_are_described(captured: list[bytes]) -> None:
    keyed, whole = of(RelationMessage, captured)[:2]
    assert (keyed.schema, keyed.name, keyed.replica_identity) == ("public", "keyed", "d")
    assert [(c.name, c.is_key) for c in keyed.columns] == [("id", True), ("m", False), ("wide", False)]
    assert [c.type_oid for c in whole.columns] == [25, 23, 25]
    assert (whole.replica_identity, [c.is_key for c in whole.columns]) == ("f", [True, True, True])
    (mood,) = set(of(TypeMessage, captured))
    assert (mood.schema, mood.name, mood.oid) == ("public", "mood", keyed.columns[1].type_oid)


def test_rows_of_a_table_with_a_key(captured: list[bytes]) -> None:
    oid = of(RelationMessage, captured)[0].oid
    inserts = [m for m in of(Insert, captured) if m.oid == oid]
    assert [m.new[:2] for m in inserts] == [("1", "ok"), ("2", None)]
    updates = [m for m in of(Update, captured) if m.oid == oid]
    assert updates == [
        Update(oid, None, False, ("1", "sad", UNCHANGED)),
        Update(oid, ("2", None, None), False, ("3", None, "")),
    ]
    assert Delete(oid, ("3", None, None), False) in of(Delete, captured)


def test_whole_old_rows(captured: list[bytes]) -> None:
    oid = of(RelationMessage, captured)[1].oid
    (update,) = (m for m in of(Update, captured) if m.oid == oid)
    assert update.is_old_whole
    assert update.old is not None
    assert update.old[:2] == ("ü", None)
    assert len(str(update.old[2])) == 400 * 32
    assert update.new == ("ü", "7", UNCHANGED)
    assert Delete(oid, ("ü", "7", update.old[2]), True) in of(Delete, captured)


def test_truncations_and_messages(captured: list[bytes]) -> None:
    oids = tuple(m.oid for m in of(RelationMessage, captured)[:2])
    (truncate,) = of(Truncate, captured)
    assert (set(truncate.oids), truncate.is_cascade, truncate.restarts_identity) == (set(oids), True, True)
    (message,) = of(LogicalMessage, captured)
    assert (message.is_transactional, message.prefix, message.content) == (True, "millstream", b"cut:1")


def test_every_kind_was_met(captured: list[bytes]) -> None:
    assert {chr(m[0]) for m in captured} == set("BCORYIUDTM")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=400)
@given(data=st.data())
def test_damaged_messages_are_refused_or_read_but_never_fail_otherwise(
    captured: list[bytes], data: st.DataObject
) -> None:
    message = data.draw(st.sampled_from(captured))
    length = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(MillstreamError) as caught:
        parse(message[:length])
    assert caught.value.code is Code.DATABASE_UNFIT
    with pytest.raises(MillstreamError):
        parse(message + data.draw(st.binary(min_size=1, max_size=9)))
    place = data.draw(st.integers(0, len(message) - 1))
    damaged = bytearray(message)
    damaged[place] = data.draw(st.integers(0, 255))
    assert outcome(bytes(damaged)) in ("read", Code.DATABASE_UNFIT)


@given(st.binary(max_size=200))
def test_noise_is_refused_with_a_code(noise: bytes) -> None:
    assert outcome(noise) in ("read", Code.DATABASE_UNFIT)


def outcome(data: bytes) -> str:
    try:
        parse(data)
    except MillstreamError as e:
        return e.code
    return "read"
