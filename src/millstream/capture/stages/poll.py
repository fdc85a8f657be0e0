"""Polls a database for the facts that the plan of a tick needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from millstream.capture.drift import NamedSighting, Sighting, needs_closer_look
from millstream.capture.landing import moved
from millstream.catalog.attached import AttachedDatabase, Capture, CaptureMode
from millstream.catalog.numeric_ranges import NumericRanges
from millstream.engine.storage import DeltaStore
from millstream.postgres.connection import Connection
from millstream.sources.postgres.server.relations import Relation, RelationKind, find_named
from millstream.sources.postgres.server.table_fingerprints import read_fingerprints
from millstream.sources.postgres.triggers.trigger_catalog import trigger_fingerprints


def moved_mirrors(store: DeltaStore, captures: Collection[Capture]) -> dict[str, str]:
    """Why mirrors are not at their recorded versions, without those that will be compared anyway."""
    found = {c.id: moved(store, c) for c in captures if c.is_kept and c.state.resync is None}
    return {id_: reason for id_, reason in found.items() if reason is not None}


def named_relation(connection: Connection, capture: Capture) -> Relation | None:
    """The relation that has the name of a captured table now."""
    return find_named(connection, capture.schema, capture.table)


def lockable(connection: Connection, captures: Collection[Capture]) -> dict[str, Relation]:
    """The tables of some captures that can be locked and read as a whole, by the ids of the captures."""
    found = {c.id: named_relation(connection, c) for c in captures}
    return {id_: r for id_, r in found.items() if r is not None and r.kind is not RelationKind.VIEW}


def poll(connection: Connection, database: AttachedDatabase, captures: Mapping[str, Capture]) -> dict[str, Sighting]:
    """What the connection's transaction sees of the captured tables, by the ids of their captures."""
    fingerprints = read_fingerprints(connection, {c.oid: _names(c) for c in captures.values()})
    triggers = _trigger_states(connection, database, captures, list(fingerprints))
    ranges, found = NumericRanges.of(database), dict[str, Sighting]()
    for capture in captures.values():
        fingerprint, named = fingerprints.get(capture.oid), None
        if needs_closer_look(capture, fingerprint, ranges.of_table(capture.schema, capture.table)):
            named = _look_closely(connection, database, captures, capture)
        found[capture.id] = Sighting(fingerprint, triggers.get(capture.oid), named)
    return found


def _look_closely(
    connection: Connection, database: AttachedDatabase, captures: Mapping[str, Capture], capture: Capture
) -> NamedSighting:
    relation = named_relation(connection, capture)
    if relation is None:
        return NamedSighting()
    fingerprint = read_fingerprints(connection, {relation.oid: _names(capture)}).get(relation.oid)
    triggers = _trigger_states(connection, database, captures, [relation.oid])
    return NamedSighting(relation, fingerprint, triggers.get(relation.oid))


def _trigger_states(
    connection: Connection, database: AttachedDatabase, captures: Mapping[str, Capture], oids: Sequence[int]
) -> dict[int, str]:
    """Fingerprints of triggers; in WAL mode triggers do not matter, and count as unchanged."""
    if database.mode is CaptureMode.WAL:
        return {c.oid: c.state.buffer.state for c in captures.values() if c.state.buffer is not None}
    return trigger_fingerprints(connection, oids, database.state.buffer_schema) if oids else {}


def _names(capture: Capture) -> list[str]:
    return [name for name, _, _ in capture.columns]
