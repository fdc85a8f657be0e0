"""The lake's own row (generation, refresh ids) and its tables, views and SQL functions."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from millstream.catalog.models import LakeObject, ObjectKind
from millstream.catalog.schema import lake, lake_objects, stream_tables
from millstream.errors import Code, MillstreamError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from millstream.naming import TableName


_floor = sa.bindparam("floor", type_=sa.BigInteger)
_highest = sa.case((lake.c.last_refresh_id > _floor, lake.c.last_refresh_id), else_=_floor)
_LOCK = sa.select(lake.c.only_row).with_for_update(key_share=True)
_GENERATION = sa.select(lake.c.generation)
_NEXT_ID = sa.update(lake).values(last_refresh_id=_highest + 1).returning(lake.c.last_refresh_id)


def bump_generation(connection: Connection) -> int:
    """Let other processes see that definitions changed. The row's lock serialises all transactions that change them."""
    change = sa.update(lake).values(generation=lake.c.generation + 1).returning(lake.c.generation)
    return int(connection.execute(change).scalar_one())


def generation(connection: Connection) -> int:
    """The number of changes to definitions, as the transaction sees it."""
    return int(connection.execute(_GENERATION).scalar_one())


def lock(connection: Connection) -> None:
    """Lock the lake's row against other writers until the commit; SQLite's write lock makes that unnecessary there."""
    connection.execute(_LOCK)


def next_refresh_ids(connection: Connection, count: int) -> range:
    """As many refresh ids above all earlier ones."""
    change = sa.update(lake).values(last_refresh_id=lake.c.last_refresh_id + count).returning(lake.c.last_refresh_id)
    last = int(connection.execute(change).scalar_one())
    return range(last - count + 1, last + 1)


def next_refresh_id(connection: Connection, floor: int) -> int:
    """A refresh id above all earlier ones and above `floor`."""
    return int(connection.execute(_NEXT_ID, {"floor": floor}).scalar_one())


def namespace(kind: ObjectKind) -> str:
    """The namespace of a kind: tables and views share one, functions have their own."""
    return "FUNCTION" if kind is ObjectKind.FUNCTION else "RELATION"


def put(connection: Connection, item: LakeObject, now: datetime, *, is_replaced: bool) -> None:
    """Insert an object, or replace one of the same kind."""
    if item.kind is not ObjectKind.FUNCTION:
        _refuse_stream_table(connection, item.name)
    old_kind = connection.execute(sa.select(lake_objects.c.kind).where(_is(item.kind, item.name))).scalar()
    if old_kind is not None and not (is_replaced and old_kind == item.kind):
        raise MillstreamError(
            Code.NAME_TAKEN,
            f"a {old_kind.lower()} named {item.name} exists",
            hint="drop it first, or choose another name",
        )
    values = {
        "kind": item.kind,
        "location": item.location,
        "provider": item.provider,
        "text": item.text,
        "fingerprint": item.fingerprint,
        "details": item.details.dump(),
        "updated_at": now,
    }
    if old_kind is not None:
        connection.execute(sa.update(lake_objects).where(_is(item.kind, item.name)).values(values))
        return
    values |= {
        "namespace": namespace(item.kind),
        "schema_name": item.name.schema,
        "name": item.name.name,
        "created_at": now,
    }
    connection.execute(sa.insert(lake_objects).values(values))


def drop(connection: Connection, kind: ObjectKind, name: TableName) -> bool:
    """Remove an object; false if there was none of that kind."""
    statement = sa.delete(lake_objects).where(_is(kind, name), lake_objects.c.kind == kind)
    return connection.execute(statement).rowcount == 1


def refuse_relation(connection: Connection, name: TableName) -> None:
    """Raise `NAME_TAKEN` if a table or view has the name."""
    kind = connection.execute(sa.select(lake_objects.c.kind).where(_is(ObjectKind.TABLE, name))).scalar()
    if kind is not None:
        raise MillstreamError(Code.NAME_TAKEN, f"a {kind.lower()} named {name} exists", hint="choose another name")


def _refuse_stream_table(connection: Connection, name: TableName) -> None:
    same = (stream_tables.c.schema_name == name.schema) & (stream_tables.c.name == name.name)
    if connection.execute(sa.select(stream_tables.c.id).where(same)).first():
        raise MillstreamError(Code.NAME_TAKEN, f"a stream table named {name} exists", hint="choose another name")


def _is(kind: ObjectKind, name: TableName) -> sa.ColumnElement[bool]:
    return (
        (lake_objects.c.namespace == namespace(kind))
        & (lake_objects.c.schema_name == name.schema)
        & (lake_objects.c.name == name.name)
    )
