"""Triggers that replica sessions switch off, until their owner enables them for these sessions too."""

from __future__ import annotations

import pytest

from kits.shops import MILLSTREAM, Shop
from kits.trigger_capture import Follow, Owner
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.triggers.buffers import install, widen
from millstream.sources.postgres.triggers.trigger_catalog import (
    BufferSettings,
    enable_always_statements,
)
from millstream.sources.postgres.values.types import mirror_columns

pytestmark = pytest.mark.postgres

SCHEMA = BufferSettings().schema


def test_switched_off_triggers_fire_once_the_owner_says_so(shop: Shop, owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE t (a int)")
    capture = follow("t")
    assert not capture.buffers["t"].is_always  # only the owner may do this
    for statement in enable_always_statements(capture.connection, capture.relations["t"], SCHEMA):
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
