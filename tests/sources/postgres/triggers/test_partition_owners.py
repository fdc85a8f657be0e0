"""Owners of captured partitioned tables can add partitions."""

from __future__ import annotations

import pytest

from kits.trigger_capture import Follow, Owner
from millstream.sources.postgres.server.relations import read_relations
from millstream.sources.postgres.triggers.trigger_catalog import (
    BufferSettings,
    trigger_fingerprints,
)

pytestmark = pytest.mark.postgres

SCHEMA = BufferSettings().schema


def test_owners_can_add_partitions_and_the_fingerprint_shows_it(owner: Owner, follow: Follow) -> None:
    owner.execute("CREATE TABLE p (k int) PARTITION BY LIST (k)")
    owner.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
    capture = follow("p")
    owner.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)")
    owner.execute("CREATE TABLE p3 (k int)")
    owner.execute("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES IN (3)")
    owner.execute("INSERT INTO p3 VALUES (3)")  # the new partitions have the triggers, too
    buffer, relation = capture.buffers["p"], capture.relations["p"]
    now = read_relations(capture.connection, [relation.oid])[relation.oid]
    assert [leaf.name for leaf in now.leaves] == ["p1", "p2", "p3"]
    assert trigger_fingerprints(capture.connection, [relation.oid], SCHEMA)[relation.oid] != buffer.state
    capture.relations["p"] = now
    capture.start()
    owner.execute("INSERT INTO p2 VALUES (2)")
    owner.execute("TRUNCATE p3")
    capture.poll()
    assert capture.rereads == 1
