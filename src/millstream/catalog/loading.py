"""The catalog's records, loaded from rows of its tables; paths are as they were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.catalog.definition_body import DefinitionBody
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
from millstream.catalog.object_details import ObjectDetails
from millstream.catalog.refresh_details import RefreshDetails
from millstream.naming import TableName
from millstream.results import Action, InitiatedBy, RefreshMode, RefreshStatus, Status

if TYPE_CHECKING:
    from sqlalchemy.engine import Row


def stream_table(row: Row[Any], own_stages: tuple[Stage, ...], sources: tuple[Dependency, ...]) -> StreamTable:
    """A stream table from its row, its stages and its sources."""
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
            body=DefinitionBody.load(row.definition),
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


def stage(row: Row[Any]) -> Stage:
    """A stage."""
    return Stage(id=row.id, ordinal=row.ordinal, path=row.path, is_public=row.is_public, version=row.version)


def dependency(row: Row[Any]) -> Dependency:
    """A source of a stream table."""
    return Dependency(
        kind=SourceKind(row.source_kind),
        name=row.source_name,
        source_id=row.source_id,
        columns_used=tuple(row.columns_used),
        fingerprint=row.fingerprint,
    )


def intent(row: Row[Any]) -> Intent:
    """The intent of a refresh."""
    return Intent(
        table_id=row.stream_table_id,
        refresh_id=row.refresh_id,
        action=Action(row.action),
        data_timestamp=row.data_timestamp,
        old_frontier=row.old_frontier,
        new_frontier=row.new_frontier,
        base_frontier=row.base_frontier,
        reinit_mark=row.reinit_mark,
        created_at=row.created_at,
    )


def refresh(row: Row[Any]) -> Refresh:
    """A row of the history."""
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
        repeats=row.repeats,
        details=RefreshDetails.load(row.details),
    )


def lake_object(row: Row[Any]) -> LakeObject:
    """A table, view or function."""
    return LakeObject(
        kind=ObjectKind(row.kind),
        name=TableName(row.schema_name, row.name),
        location=row.location,
        provider=row.provider,
        text=row.text,
        fingerprint=row.fingerprint,
        details=ObjectDetails.load(row.details),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
