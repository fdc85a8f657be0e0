"""All reads of the catalog. Each call is one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from millstream.catalog import pulse
from millstream.catalog.attached import AttachedDatabase, Capture, Serving
from millstream.catalog.leadership import Leadership
from millstream.catalog.loading import dependency, intent, refresh, stage, stream_table
from millstream.catalog.loading import lake_object as loaded_object
from millstream.catalog.models import (
    Dependency,
    Intent,
    LakeObject,
    ObjectKind,
    Refresh,
    SourceKind,
    Stage,
    StreamTable,
)
from millstream.catalog.paths import LakePaths
from millstream.catalog.pulse import Pulse
from millstream.catalog.schema import (
    dependencies,
    intents,
    lake,
    lake_objects,
    refresh_history,
    stages,
    stream_tables,
)
from millstream.catalog.stats import age, stats_of, stats_query
from millstream.catalog.stores import databases, leadership
from millstream.catalog.stores import events as event_store
from millstream.catalog.stores.dependencies import stream_edges
from millstream.catalog.stores.lake import namespace
from millstream.cycles import find_cycles
from millstream.errors import Code, MillstreamError
from millstream.events import Event, EventName
from millstream.naming import TableName
from millstream.results import RefreshMode, RefreshStats, Status, StreamTableStatus

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Row

    from millstream.catalog.database import Database

_TABLE = sa.select(stream_tables, intents.c.refresh_id.label("open_refresh_id")).outerjoin_from(stream_tables, intents)
# Built once: every refresh starts with them.
_BY_ID = _TABLE.where(stream_tables.c.id == sa.bindparam("of_id"))
_BY_NAME = _TABLE.where(
    stream_tables.c.schema_name == sa.bindparam("of_schema"), stream_tables.c.name == sa.bindparam("of_name")
)
_STAGES = sa.select(stages).where(stages.c.stream_table_id == sa.bindparam("of_id")).order_by(stages.c.ordinal)
_DEPENDENCIES = (
    sa.select(dependencies)
    .where(dependencies.c.stream_table_id == sa.bindparam("of_id"))
    .order_by(dependencies.c.ordinal)
)
_INTENT = sa.select(intents).where(intents.c.stream_table_id == sa.bindparam("of_id"))
_ID_BY_NAME = sa.select(stream_tables.c.id).where(
    stream_tables.c.schema_name == sa.bindparam("of_schema"), stream_tables.c.name == sa.bindparam("of_name")
)
_HISTORY = (
    sa.select(refresh_history, stream_tables.c.schema_name, stream_tables.c.name)
    .join_from(refresh_history, stream_tables)
    .order_by(refresh_history.c.refresh_id.desc())
    .limit(sa.bindparam("at_most"))
)
_HISTORY_OF_ONE = _HISTORY.where(refresh_history.c.stream_table_id == sa.bindparam("of_id"))
_GENERATION = sa.select(lake.c.generation)


class CatalogReader:
    """Reads a catalog.

    Args:
        clock: returns the time at which staleness is measured.
        root: the lake's directory, against which paths are resolved; without it they stay as recorded.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime], root: Path | None = None) -> None:
        self._database = database
        self._clock = clock
        self._paths = LakePaths(root)

    def lake_id(self) -> str:
        """The id that the lake was given when its catalog was created."""
        with self._database.read() as connection:
            return str(connection.execute(sa.select(lake.c.lake_id)).scalar_one())

    def generation(self) -> int:
        """A number that changes whenever a stream table, table, view or function is created, altered or dropped."""
        with self._database.read() as connection:
            return int(connection.execute(_GENERATION).scalar_one())

    def get(self, name: TableName) -> StreamTable:
        """The stream table of a name.

        Raises:
            MillstreamError: `NOT_A_STREAM_TABLE`.
        """
        table = self.find(name)
        if table is None:
            raise _no_stream_table(name)
        return table

    def find(self, name: TableName) -> StreamTable | None:
        """The stream table of a name, or None."""
        with self._database.read() as connection:
            return self._resolved(find_named(connection, name))

    def find_by_id(self, table_id: str) -> StreamTable | None:
        """The stream table of an id, or None."""
        with self._database.read() as connection:
            return self._resolved(find_by_id(connection, table_id))

    def list(self) -> tuple[StreamTable, ...]:
        """All stream tables by name."""
        with self._database.read() as connection:
            return tuple(map(self._paths.resolve_table, _all_tables(connection)))

    def dependents(self, name: TableName | str) -> tuple[TableName, ...]:
        """The stream tables that read a table, view or stream table directly, by name."""
        chosen = (
            sa.select(stream_tables.c.schema_name, stream_tables.c.name)
            .join_from(dependencies, stream_tables)
            .where(dependencies.c.source_name == str(name), dependencies.c.source_kind != SourceKind.FUNCTION)
            .distinct()
        )
        with self._database.read() as connection:
            return tuple(sorted(TableName(row.schema_name, row.name) for row in connection.execute(chosen)))

    def open_intent(self, table_id: str) -> Intent | None:
        """The intent of the refresh that is running or was interrupted."""
        with self._database.read() as connection:
            row = connection.execute(_INTENT, {"of_id": table_id}).first()
        return None if row is None else intent(row)

    def open_intents(self) -> tuple[Intent, ...]:
        """All intents, oldest first."""
        with self._database.read() as connection:
            return tuple(intent(row) for row in connection.execute(sa.select(intents).order_by(intents.c.refresh_id)))

    def history(self, name: TableName | None = None, limit: int = 20) -> tuple[Refresh, ...]:
        """The last refreshes of one stream table or of all, newest first."""
        with self._database.read() as connection:
            if name is None:
                rows = connection.execute(_HISTORY, {"at_most": limit})
            else:
                named = {"of_schema": name.schema, "of_name": name.name}
                table_id = connection.execute(_ID_BY_NAME, named).scalar()
                if table_id is None:
                    raise _no_stream_table(name)
                rows = connection.execute(_HISTORY_OF_ONE, {"at_most": limit, "of_id": table_id})
            return tuple(refresh(row) for row in rows)

    def statuses(self) -> tuple[StreamTableStatus, ...]:
        """One line per stream table, by name."""
        c = stream_tables.c
        chosen = sa.select(
            c.id,
            c.schema_name,
            c.name,
            c.status,
            c.refresh_mode,
            c.is_populated,
            c.consecutive_errors,
            c.schedule,
            c.data_timestamp,
        ).order_by(c.schema_name, c.name)
        edges: dict[str, list[str]] = {}
        with self._database.read() as connection:
            rows = connection.execute(chosen).all()
            for edge in connection.execute(stream_edges()):
                edges.setdefault(edge.stream_table_id, []).append(edge.source_id)
        names = {row.id: str(TableName(row.schema_name, row.name)) for row in rows}
        cycles = {i: tuple(sorted(names[m] for m in cycle)) for cycle in find_cycles(edges) for i in cycle}
        now = self._clock()
        return tuple(
            StreamTableStatus(
                name=names[row.id],
                status=Status(row.status),
                refresh_mode=RefreshMode(row.refresh_mode),
                is_populated=row.is_populated,
                consecutive_errors=row.consecutive_errors,
                schedule=row.schedule,
                data_timestamp=row.data_timestamp,
                staleness=age(row.data_timestamp, now),
                cycle=cycles.get(row.id, ()),
            )
            for row in rows
        )

    def pulse(self) -> Pulse:
        """How all stream tables stand: what the scheduler reads each time it wakes."""
        with self._database.read() as connection:
            return pulse.read(connection)

    def stats(self, stale_after: Mapping[TableName, float] | None = None) -> tuple[RefreshStats, ...]:
        """Totals over all refreshes per stream table, by name; also of those whose history was pruned.

        Args:
            stale_after: the effective schedule in seconds of the tables that have one. For a table without one (cron,
                or CALCULATED without dependents) `stale` is None.
        """
        with self._database.read() as connection:
            rows = connection.execute(stats_query()).all()
        now = self._clock()
        return tuple(stats_of(row, now, stale_after or {}) for row in rows)

    def events(
        self,
        after_id: int | None = None,
        since: datetime | None = None,
        names: Collection[EventName] | None = None,
        limit: int | None = None,
    ) -> tuple[Event, ...]:
        """What happened, in the order of recording.

        Args:
            after_id: only events after this one; with a limit the first of them, without `after_id` the last ones.
            since: only events of this time or later.
            names: only these events.
        """
        with self._database.read() as connection:
            return event_store.read(connection, after_id, since, names, limit)

    def leadership(self) -> Leadership:
        """Who leads the lake."""
        with self._database.read() as connection:
            return leadership.read(connection)

    def lake_object(self, kind: ObjectKind, name: TableName) -> LakeObject | None:
        """A table, view or function; None if there is none of that kind and name."""
        c = lake_objects.c
        chosen = sa.select(lake_objects).where(
            c.namespace == namespace(kind), c.schema_name == name.schema, c.name == name.name, c.kind == kind
        )
        with self._database.read() as connection:
            row = connection.execute(chosen).first()
        return None if row is None else self._paths.resolve_object(loaded_object(row))

    def lake_objects(self, kind: ObjectKind | None = None) -> tuple[LakeObject, ...]:
        """All tables, views and functions, or those of a kind, in the order of their creation.

        In that order a view comes after the views it reads, unless one was replaced.
        """
        c = lake_objects.c
        chosen = sa.select(lake_objects).order_by(c.created_at, c.kind, c.schema_name, c.name)
        if kind is not None:
            chosen = chosen.where(c.kind == kind)
        with self._database.read() as connection:
            return tuple(self._paths.resolve_object(loaded_object(row)) for row in connection.execute(chosen))

    def databases(self) -> tuple[AttachedDatabase, ...]:
        """The attached databases, by name."""
        with self._database.read() as connection:
            return databases.read(connection)

    def find_database(self, name: str) -> AttachedDatabase | None:
        """The attached database of that name."""
        return next((d for d in self.databases() if d.name == name.lower()), None)

    def captures(self, database: str | None = None) -> tuple[Capture, ...]:
        """The captured tables of a database, or of all."""
        with self._database.read() as connection:
            return tuple(map(self._paths.resolve_capture, databases.read_captures(connection, database)))

    def servings(self, database: str | None = None) -> tuple[Serving, ...]:
        """The served tables of a database, or of all."""
        with self._database.read() as connection:
            return databases.read_servings(connection, database)

    def _resolved(self, table: StreamTable | None) -> StreamTable | None:
        return None if table is None else self._paths.resolve_table(table)


def find_named(connection: Connection, name: TableName) -> StreamTable | None:
    """The stream table of a name, inside a transaction."""
    return _whole(connection, connection.execute(_BY_NAME, {"of_schema": name.schema, "of_name": name.name}).first())


def find_by_id(connection: Connection, table_id: str) -> StreamTable | None:
    """The stream table of an id, inside a transaction."""
    return _whole(connection, connection.execute(_BY_ID, {"of_id": table_id}).first())


def _no_stream_table(name: TableName) -> MillstreamError:
    return MillstreamError(
        Code.NOT_A_STREAM_TABLE, f"there is no stream table {name}", hint="SHOW STREAM TABLES lists them"
    )


def _whole(connection: Connection, row: Row[Any] | None) -> StreamTable | None:
    if row is None:
        return None
    own = {"of_id": row.id}
    return stream_table(
        row,
        tuple(stage(s) for s in connection.execute(_STAGES, own)),
        tuple(dependency(d) for d in connection.execute(_DEPENDENCIES, own)),
    )


def _all_tables(connection: Connection) -> tuple[StreamTable, ...]:
    own_stages: dict[str, list[Stage]] = {}
    for row in connection.execute(sa.select(stages).order_by(stages.c.ordinal)):
        own_stages.setdefault(row.stream_table_id, []).append(stage(row))
    own_sources: dict[str, list[Dependency]] = {}
    for row in connection.execute(sa.select(dependencies).order_by(dependencies.c.ordinal)):
        own_sources.setdefault(row.stream_table_id, []).append(dependency(row))
    ordered = _TABLE.order_by(stream_tables.c.schema_name, stream_tables.c.name)
    return tuple(
        stream_table(row, tuple(own_stages.get(row.id, [])), tuple(own_sources.get(row.id, [])))
        for row in connection.execute(ordered)
    )
