"""All that reads the catalog. Each call is one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from millstream.catalog.attached import AttachedDatabase, Capture, Serving
from millstream.catalog.models import (
    Definition,
    Dependency,
    Intent,
    LakeObject,
    ObjectKind,
    Refresh,
    SourceKind,
    Stage,
    StreamTable,
)
from millstream.catalog.schema import (
    dependencies,
    intents,
    lake,
    lake_objects,
    refresh_history,
    stages,
    stream_tables,
)
from millstream.catalog.stores import databases
from millstream.catalog.stores.lake import namespace
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName
from millstream.results import (
    Action,
    InitiatedBy,
    RefreshMode,
    RefreshStats,
    RefreshStatus,
    Status,
    StreamTableStatus,
)

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
    """Reads a catalog; `clock` gives the time staleness is measured at."""

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def lake_id(self) -> str:
        """The id the lake was given when its catalog was made."""
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
            return find_named(connection, name)

    def find_by_id(self, table_id: str) -> StreamTable | None:
        """The stream table of an id, or None."""
        with self._database.read() as connection:
            return find_by_id(connection, table_id)

    def list(self) -> tuple[StreamTable, ...]:
        """All stream tables by name."""
        with self._database.read() as connection:
            return _all_tables(connection)

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
        """The intent of the refresh that is running or was cut short."""
        with self._database.read() as connection:
            row = connection.execute(_INTENT, {"of_id": table_id}).first()
        return None if row is None else _intent(row)

    def open_intents(self) -> tuple[Intent, ...]:
        """All intents, oldest first."""
        with self._database.read() as connection:
            return tuple(_intent(row) for row in connection.execute(sa.select(intents).order_by(intents.c.refresh_id)))

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
            return tuple(_refresh(row) for row in rows)

    def statuses(self) -> tuple[StreamTableStatus, ...]:
        """One line per stream table, by name."""
        c = stream_tables.c
        chosen = sa.select(
            c.schema_name,
            c.name,
            c.status,
            c.refresh_mode,
            c.is_populated,
            c.consecutive_errors,
            c.schedule,
            c.data_timestamp,
        ).order_by(c.schema_name, c.name)
        with self._database.read() as connection:
            rows = connection.execute(chosen).all()
        now = self._clock()
        return tuple(
            StreamTableStatus(
                name=str(TableName(row.schema_name, row.name)),
                status=Status(row.status),
                refresh_mode=RefreshMode(row.refresh_mode),
                is_populated=row.is_populated,
                consecutive_errors=row.consecutive_errors,
                schedule=row.schedule,
                data_timestamp=row.data_timestamp,
                staleness=_age(row.data_timestamp, now),
            )
            for row in rows
        )

    def stats(self, stale_after: Mapping[TableName, float] | None = None) -> tuple[RefreshStats, ...]:
        """Figures of the whole history per stream table, by name.

        Args:
            stale_after: the effective schedule in seconds of the tables that have one. A table without (cron, or
                CALCULATED with nothing downstream) is never stale.
        """
        with self._database.read() as connection:
            rows = connection.execute(_stats_query()).all()
        now = self._clock()
        return tuple(_stats(row, now, stale_after or {}) for row in rows)

    def lake_object(self, kind: ObjectKind, name: TableName) -> LakeObject | None:
        """A table, view or function; None if there is none of that kind and name."""
        c = lake_objects.c
        chosen = sa.select(lake_objects).where(
            c.namespace == namespace(kind), c.schema_name == name.schema, c.name == name.name, c.kind == kind
        )
        with self._database.read() as connection:
            row = connection.execute(chosen).first()
        return None if row is None else _lake_object(row)

    def lake_objects(self, kind: ObjectKind | None = None) -> tuple[LakeObject, ...]:
        """All tables, views and functions, or those of a kind, in the order of their creation.

        In that order a view comes after the views it reads, unless one was replaced.
        """
        c = lake_objects.c
        chosen = sa.select(lake_objects).order_by(c.created_at, c.kind, c.schema_name, c.name)
        if kind is not None:
            chosen = chosen.where(c.kind == kind)
        with self._database.read() as connection:
            return tuple(_lake_object(row) for row in connection.execute(chosen))

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
            return databases.read_captures(connection, database)

    def servings(self, database: str | None = None) -> tuple[Serving, ...]:
        """What is served into a database, or into all."""
        with self._database.read() as connection:
            return databases.read_servings(connection, database)


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
    return _stream_table(
        row,
        tuple(_stage(s) for s in connection.execute(_STAGES, own)),
        tuple(_dependency(d) for d in connection.execute(_DEPENDENCIES, own)),
    )


def _all_tables(connection: Connection) -> tuple[StreamTable, ...]:
    own_stages: dict[str, list[Stage]] = {}
    for row in connection.execute(sa.select(stages).order_by(stages.c.ordinal)):
        own_stages.setdefault(row.stream_table_id, []).append(_stage(row))
    own_sources: dict[str, list[Dependency]] = {}
    for row in connection.execute(sa.select(dependencies).order_by(dependencies.c.ordinal)):
        own_sources.setdefault(row.stream_table_id, []).append(_dependency(row))
    ordered = _TABLE.order_by(stream_tables.c.schema_name, stream_tables.c.name)
    return tuple(
        _stream_table(row, tuple(own_stages.get(row.id, [])), tuple(own_sources.get(row.id, [])))
        for row in connection.execute(ordered)
    )


def _stats_query() -> sa.Select[Any]:
    h = refresh_history.c

    def count(status: RefreshStatus) -> sa.ColumnElement[int]:
        return sa.func.sum(sa.case((h.status == status, 1), else_=0))

    totals = (
        sa.select(
            h.stream_table_id,
            sa.func.count().label("total"),
            count(RefreshStatus.COMPLETED).label("completed"),
            count(RefreshStatus.FAILED).label("failed"),
            sa.func.sum(h.rows_inserted).label("inserted"),
            sa.func.sum(h.rows_updated).label("updated"),
            sa.func.sum(h.rows_deleted).label("deleted"),
            sa.func.avg(sa.case((h.status == RefreshStatus.COMPLETED, h.duration_ms))).label("average_ms"),
            sa.func.max(h.refresh_id).label("last_id"),
        )
        .group_by(h.stream_table_id)
        .subquery()
    )
    t = stream_tables.c
    return (
        sa.select(
            t.schema_name,
            t.name,
            t.status,
            t.refresh_mode,
            t.is_populated,
            t.data_timestamp,
            totals,
            h.action.label("last_action"),
            h.status.label("last_status"),
            sa.func.coalesce(h.end_time, h.start_time).label("last_at"),
        )
        .select_from(stream_tables)
        .outerjoin(totals, totals.c.stream_table_id == t.id)
        .outerjoin(refresh_history, h.refresh_id == totals.c.last_id)
        .order_by(t.schema_name, t.name)
    )


def _stats(row: Row[Any], now: datetime, stale_after: Mapping[TableName, float]) -> RefreshStats:
    name = TableName(row.schema_name, row.name)
    staleness = _age(row.data_timestamp, now)
    limit = stale_after.get(name)
    return RefreshStats(
        name=row.name,
        schema=row.schema_name,
        status=Status(row.status),
        refresh_mode=RefreshMode(row.refresh_mode),
        is_populated=row.is_populated,
        total_refreshes=row.total or 0,
        successful_refreshes=row.completed or 0,
        failed_refreshes=row.failed or 0,
        # PostgreSQL sums BIGINT as NUMERIC.
        total_rows_inserted=int(row.inserted or 0),
        total_rows_updated=int(row.updated or 0),
        total_rows_deleted=int(row.deleted or 0),
        avg_duration_ms=row.average_ms,
        last_refresh_action=None if row.last_action is None else Action(row.last_action),
        last_refresh_status=None if row.last_status is None else RefreshStatus(row.last_status),
        last_refresh_at=row.last_at,
        staleness_secs=staleness,
        stale=staleness is not None and limit is not None and staleness > limit,
    )


def _age(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else (now - moment).total_seconds()


def _stream_table(row: Row[Any], own_stages: tuple[Stage, ...], sources: tuple[Dependency, ...]) -> StreamTable:
    return StreamTable(
        id=row.id,
        name=TableName(row.schema_name, row.name),
        schedule=row.schedule,
        refresh_mode=RefreshMode(row.refresh_mode),
        status=Status(row.status),
        status_reason=row.status_reason,
        is_populated=row.is_populated,
        data_timestamp=row.data_timestamp,
        frontier=row.frontier,
        base_frontier=row.base_frontier,
        last_refresh_at=row.last_refresh_at,
        consecutive_errors=row.consecutive_errors,
        needs_reinit=row.needs_reinit,
        reinit_reason=row.reinit_reason,
        definition=Definition(
            original_query=row.original_query,
            dialect=row.dialect,
            body=row.definition,
            settings=row.settings,
            columns=tuple((name, type_) for name, type_ in row.columns),
            dependencies=sources,
            functions_used=tuple(row.functions_used),
        ),
        definition_version=row.definition_version,
        created_at=row.created_at,
        updated_at=row.updated_at,
        stages=own_stages,
        open_refresh_id=row.open_refresh_id,
    )


def _stage(row: Row[Any]) -> Stage:
    return Stage(id=row.id, ordinal=row.ordinal, path=row.path, is_public=row.is_public, version=row.version)


def _dependency(row: Row[Any]) -> Dependency:
    return Dependency(
        kind=SourceKind(row.source_kind),
        name=row.source_name,
        source_id=row.source_id,
        columns_used=tuple(row.columns_used),
        fingerprint=row.fingerprint,
    )


def _intent(row: Row[Any]) -> Intent:
    return Intent(
        table_id=row.stream_table_id,
        refresh_id=row.refresh_id,
        action=Action(row.action),
        data_timestamp=row.data_timestamp,
        old_frontier=row.old_frontier,
        new_frontier=row.new_frontier,
        base_frontier=row.base_frontier,
        plan=row.plan,
        reinit_mark=row.reinit_mark,
        created_at=row.created_at,
    )


def _refresh(row: Row[Any]) -> Refresh:
    return Refresh(
        refresh_id=row.refresh_id,
        table_id=row.stream_table_id,
        table_name=TableName(row.schema_name, row.name),
        data_timestamp=row.data_timestamp,
        start_time=row.start_time,
        end_time=row.end_time,
        action=None if row.action is None else Action(row.action),
        status=RefreshStatus(row.status),
        initiated_by=InitiatedBy(row.initiated_by),
        rows_inserted=row.rows_inserted,
        rows_updated=row.rows_updated,
        rows_deleted=row.rows_deleted,
        duration_ms=row.duration_ms,
        reason=row.reason,
        error_code=row.error_code,
        error_message=row.error_message,
        freshness_deadline=row.freshness_deadline,
        details=row.details,
    )


def _lake_object(row: Row[Any]) -> LakeObject:
    return LakeObject(
        kind=ObjectKind(row.kind),
        name=TableName(row.schema_name, row.name),
        location=row.location,
        provider=row.provider,
        text=row.text,
        fingerprint=row.fingerprint,
        details=row.details,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
