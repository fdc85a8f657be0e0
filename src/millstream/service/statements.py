"""Runs SQL text: millstream's own statements here, everything else in Spark, with the lake's catalog kept in step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.catalog import Catalog
from millstream.catalog.models import ObjectKind, SourceKind
from millstream.engine.analyzer import explained
from millstream.engine.lake_schemas import spark_schema
from millstream.engine.spark_errors import SPARK_ERRORS
from millstream.errors import Code, MillstreamError
from millstream.lake import Lake
from millstream.lake.dialects import pointing_into
from millstream.naming import DEFAULT_SCHEMA, TableName
from millstream.scheduler.schedule import length_of_time
from millstream.service.attached_reads import with_readable_tables
from millstream.service.wait_points import After
from millstream.settings import Settings
from millstream.sql.statements import (
    AlterStreamTable,
    AttachDatabase,
    CancelRefresh,
    CreateStreamTable,
    DescribeStreamTable,
    DetachDatabase,
    DropStreamTable,
    Effect,
    ExplainStreamTable,
    Other,
    RefreshStreamTable,
    ServeClause,
    ShowStreamTables,
    Target,
    WaitForStreamTable,
    WaitPoint,
    parse_statement,
    position_at,
    relocated,
    schemas_in,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.service.facade import Millstream

_HARMLESS = {Effect.READ, Effect.SESSION}


class Statements:
    """Dispatches statements by their kind."""

    def __init__(
        self, facade: Millstream, lake: Lake, catalog: Catalog, settings: Settings, spark: SparkSession
    ) -> None:
        self._facade = facade
        self._lake = lake
        self._catalog = catalog
        self._settings = settings
        self._spark = spark

    def run(self, text: str) -> DataFrame:
        """Run one statement."""
        statement = parse_statement(text)
        handlers: dict[type, Callable[[Any], DataFrame]] = {
            CreateStreamTable: partial(self._create, text=text),
            AlterStreamTable: partial(self._alter, text=text),
            DropStreamTable: self._drop,
            RefreshStreamTable: self._refresh,
            WaitForStreamTable: self._wait,
            CancelRefresh: self._cancel,
            ShowStreamTables: self._show,
            DescribeStreamTable: self._describe,
            ExplainStreamTable: self._explain,
            AttachDatabase: self._attach,
            DetachDatabase: self._detach,
            Other: self._spark_statement,
        }
        return handlers[type(statement)](statement)

    # millstream's own

    def _create(self, s: CreateStreamTable, text: str) -> DataFrame:
        exists = self._catalog.find(s.name) is not None
        if exists and s.if_not_exists:
            return self._said(f"{s.name} exists")
        schedule, mode = s.schedule or "1m", s.refresh_mode or "AUTO"
        with _pointing_into(text, s.query, s.query_offset):
            if exists and s.or_replace:
                self._facade.replace_stream_table(
                    str(s.name),
                    s.query,
                    schedule=schedule,
                    refresh_mode=mode,
                    initialize=not s.with_no_data,
                    dialect=s.dialect,
                    **_serving(s.serve),
                )
            else:
                self._facade.create_stream_table(
                    str(s.name),
                    s.query,
                    schedule=schedule,
                    refresh_mode=mode,
                    initialize=not s.with_no_data,
                    dialect=s.dialect,
                    **_serving(s.serve),
                )
        return self._said(f"{s.name} created")

    def _alter(self, s: AlterStreamTable, text: str) -> DataFrame:
        if s.serve is not None:
            options = {name: value for name, value in _serving(s.serve).items() if name != "serve_to"}
            self._facade.serve_stream_table(str(s.name), s.serve.to, **options)
            return self._said(f"{s.name} is served as {s.serve.to}")
        if s.stop_serving:
            self._facade.stop_serving(str(s.name), cascade=s.cascade, keep_table=s.keep_table)
            return self._said(f"{s.name} is not served")
        with _pointing_into(text, s.query, s.query_offset):
            self._facade.alter_stream_table(
                str(s.name),
                query=s.query,
                schedule=s.set_schedule,
                refresh_mode=s.set_refresh_mode,
                status=s.set_status,
                dialect=s.dialect,
            )
        return self._said(f"{s.name} altered")

    def _drop(self, s: DropStreamTable) -> DataFrame:
        if s.if_exists and self._catalog.find(s.name) is None:
            return self._said(f"{s.name} does not exist")
        self._facade.drop_stream_table(str(s.name), cascade=s.cascade)
        return self._said(f"{s.name} dropped")

    def _refresh(self, s: RefreshStreamTable) -> DataFrame:
        r = self._facade.refresh_stream_table(str(s.name), mode="FULL" if s.full else None)
        row = (str(r.action), r.rows_inserted, r.rows_updated, r.rows_deleted, r.duration_ms, r.reason)
        return self._frame(
            [row],
            "action string, rows_inserted bigint, rows_updated bigint, rows_deleted bigint, duration_ms double, "
            "reason string",
        )

    def _wait(self, s: WaitForStreamTable) -> DataFrame:
        timeout = None if s.timeout is None else length_of_time(s.timeout)
        found = self._facade.wait_for(str(s.name), self._after(s.points), timeout=timeout)
        return self._frame(
            [(found.name, found.waited_ms, found.data_timestamp)],
            "name string, waited_ms double, data_timestamp timestamp",
        )

    def _after(self, points: Sequence[WaitPoint]) -> After:
        for point in points:
            is_database = point.of is not None and self._catalog.find_database(point.of.lower()) is not None
            if point.of is not None and is_database is (point.kind == "VERSION"):
                wanted = "a table" if point.kind == "VERSION" else "an attached database"
                raise MillstreamError(Code.WAIT_INVALID, f"{point.of} is not {wanted}, which has a {point.kind}")
        if len(points) == 1 and points[0].of is None:
            return points[0].value
        if unclear := next((point for point in points if point.of is None), None):
            message = f"it is not clear of what {unclear.value} is a {unclear.kind}"
            raise MillstreamError(Code.WAIT_INVALID, message, hint="add IN and the name of a database or table")
        return {point.of: point.value for point in points if point.of is not None} or None

    def _cancel(self, s: CancelRefresh) -> DataFrame:
        is_running = self._facade.cancel(str(s.name))
        return self._said(f"the refresh of {s.name} is being cancelled" if is_running else f"{s.name} is not running")

    def _show(self, _: ShowStreamTables) -> DataFrame:
        rows = [
            (
                s.name,
                str(s.status),
                str(s.refresh_mode),
                s.is_populated,
                s.consecutive_errors,
                s.schedule,
                s.data_timestamp,
                s.staleness,
            )
            for s in self._facade.status()
        ]
        return self._frame(
            rows,
            "name string, status string, refresh_mode string, is_populated boolean, consecutive_errors int, "
            "schedule string, data_timestamp timestamp, staleness double",
        )

    def _describe(self, s: DescribeStreamTable) -> DataFrame:
        table = self._catalog.get(s.name)
        facts: list[tuple[str, str | None]] = [(n, t) for n, t in table.definition.columns]
        facts += [
            ("", None),
            ("# Name", str(table.name)),
            ("# Status", str(table.status) + (f" ({table.status_reason})" if table.status_reason else "")),
            ("# Refresh mode", str(table.refresh_mode)),
            ("# Schedule", table.schedule),
            ("# Next due", str(due) if (due := self._facade.next_due(str(s.name))) is not None else None),
            ("# Reads", ", ".join(d.name for d in table.definition.dependencies)),
            ("# Data timestamp", str(table.data_timestamp)),
            ("# Served as", next((v.name for v in self._catalog.servings() if v.table_id == table.id), None)),
            ("# Dialect", table.definition.dialect),
            ("# Query", table.definition.original_query),
        ]
        return self._frame(facts, "col_name string, data_type string")

    def _explain(self, s: ExplainStreamTable) -> DataFrame:
        return self._frame([(str(self._facade.explain(str(s.name))),)], "plan string")

    def _attach(self, s: AttachDatabase) -> DataFrame:
        self._facade.attach(s.name, s.address, cdc=s.cdc, numeric=dict(s.numeric))
        return self._said(f"{s.name} attached")

    def _detach(self, s: DetachDatabase) -> DataFrame:
        self._facade.detach(s.name, cascade=s.cascade)
        return self._said(f"{s.name} detached")

    def _said(self, text: str) -> DataFrame:
        return self._frame([(text,)], "status string")

    def _frame(self, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
        return self._spark.createDataFrame(list(rows), schema)

    # Spark's

    def _spark_statement(self, s: Other) -> DataFrame:
        self._lake.sync()
        if s.effect not in _HARMLESS:
            self._refuse_stored_files(s)
        self._refuse_attached(s)
        if s.kind == "SCHEMA":
            return self._schema_statement(s)
        targets = [(t, name) for t in s.targets if (name := self._lake.resolve(t.parts)) and not s.temporary]
        if s.effect not in _HARMLESS:
            for target, name in targets:
                self._refuse_stream_table(s, target, name)
                self._refuse_source_ddl(s, target, name)
        is_kept = s.if_not_exists and any(self._lake.knows_function(name) for _, name in targets)
        result = self._run(s)
        for _, name in targets:
            if not is_kept:
                self._record(s, name)
        return result

    def _run(self, s: Other) -> DataFrame:
        self._refuse_other_lakes(s)
        text = with_readable_tables(s, self._lake, self._spark, self._settings.trusted_roles)
        with pointing_into(s.text, text):
            try:
                return self._spark.sql(text)
            except SPARK_ERRORS as e:
                raise explained(e, text) from e

    def _refuse_other_lakes(self, s: Other) -> None:
        """If several lakes are open in one process, only the first has its schemas under their own names."""
        if spark_schema(self._spark, DEFAULT_SCHEMA) == DEFAULT_SCHEMA:
            return
        for schema, offset in schemas_in(s.text):
            if spark_schema(self._spark, schema.lower()) != schema.lower():
                raise MillstreamError(
                    Code.UNSUPPORTED_SQL,
                    f"in this Spark session, `{schema}` is not a schema of this lake",
                    position=position_at(s.text, offset),
                    sql=s.text,
                    hint="open the lake in a process of its own, or omit `default.`",
                )

    def _schema_statement(self, s: Other) -> DataFrame:
        """Schemas of the lake are directories in it, and are dropped with their contents."""
        schema = s.targets[0].schema_name() if s.targets else None
        if s.verb == "USE":
            raise MillstreamError(
                Code.UNSUPPORTED_SQL,
                "a lake has one current schema, `default`: in another process the same name would mean another table",
                position=s.targets[0].position if s.targets else None,
                sql=s.text,
                hint="write schema.table",
            )
        if schema is None:
            return self._run(s)
        is_plain = s.verb == "CREATE" and "LOCATION" not in s.text.upper()
        if is_plain and (s.if_not_exists or not self._spark.catalog.databaseExists(schema)):
            self._lake.create_schema(schema)
            return self._said(f"{schema} created")
        if s.verb == "DROP":
            inside = [str(t.name) for t in self._catalog.list() if t.name.schema == schema]
            if inside:
                raise MillstreamError(
                    Code.STREAM_TABLE_READ_ONLY,
                    f"the schema {schema} holds the stream tables {', '.join(inside)}",
                    position=s.targets[0].position,
                    sql=s.text,
                    hint="drop them first, with DROP STREAM TABLE",
                )
        result = self._run(s)
        if s.verb == "DROP":
            self._lake.forget_schema(schema)
        return result

    def _refuse_stored_files(self, s: Other) -> None:
        """Refuse to write a stream table's files by their path."""
        root = str(self._lake.root / "stream_tables")
        for target in s.targets:
            if target.path is not None and target.path.removeprefix("file://").removeprefix("file:").startswith(root):
                raise MillstreamError(
                    Code.STREAM_TABLE_READ_ONLY,
                    f"{s.verb} on the files of a stream table",
                    position=target.position,
                    sql=s.text,
                    hint="change what the stream table reads",
                )

    def _refuse_attached(self, s: Other) -> None:
        """Refuse to change tables of an attached database, and to create a schema with its name."""
        if s.effect in _HARMLESS or s.temporary:
            return
        for target in (*s.targets, *((s.renamed_to,) if s.renamed_to is not None else ())):
            parts = target.parts if s.kind != "SCHEMA" else (*target.parts, "")
            database = self._lake.attached.database(parts)
            if database is None:
                continue
            if s.kind == "SCHEMA" and s.verb == "CREATE":
                code, hint = Code.NAME_TAKEN, "choose another name for the schema"
                message = f"{database.name} is an attached database"
            else:
                code, hint = (
                    Code.ATTACHED_READ_ONLY,
                    f"run it in the database itself; DETACH {database.name} detaches it",
                )
                message = f"{s.verb} on {target}, which is in the attached database {database.name}"
            raise MillstreamError(code, message, position=target.position, sql=s.text, hint=hint)

    def _refuse_stream_table(self, s: Other, target: Target, name: TableName) -> None:
        if s.kind == "FUNCTION" or self._catalog.find(name) is None:
            return
        if s.verb == "CREATE":
            raise MillstreamError(
                Code.NAME_TAKEN,
                f"{name} is a stream table",
                position=target.position,
                sql=s.text,
                hint="choose another name",
            )
        raise MillstreamError(
            Code.STREAM_TABLE_READ_ONLY,
            f"{s.verb} on the stream table {name}",
            position=target.position,
            sql=s.text,
            hint="change what it reads, or its definition with ALTER STREAM TABLE; DROP STREAM TABLE drops it",
        )

    def _refuse_source_ddl(self, s: Other, target: Target, name: TableName) -> None:
        """With block_source_ddl, refuse DDL on columns that a stream table reads, and dropping the table."""
        if not self._settings.block_source_ddl or s.verb not in {"ALTER", "DROP", "CREATE"}:
            return
        if s.verb == "ALTER" and not s.changes_columns and s.renamed_to is None:
            return
        readers = [t for t in self._catalog.list() if self._reads(t.definition.dependencies, name, s.columns)]
        if readers and (s.verb != "CREATE" or s.or_replace):
            raise MillstreamError(
                Code.SOURCE_DDL_BLOCKED,
                f"{name} is read by {', '.join(str(t.name) for t in readers)}",
                position=target.position,
                sql=s.text,
                hint="set block_source_ddl = false to have them reinitialised instead",
            )

    def _reads(self, dependencies: Sequence[Any], name: TableName, columns: Sequence[str]) -> bool:
        touched = {c.lower() for c in columns}
        for dependency in dependencies:
            if dependency.kind in {SourceKind.TABLE, SourceKind.VIEW} and dependency.name == str(name):
                used = {c.lower() for c in dependency.columns_used}
                if not touched or not used or touched & used:
                    return True
        return False

    def _record(self, s: Other, name: TableName) -> None:
        """Keep the catalog in step with what a statement created or dropped."""
        match s.verb, s.kind:
            case "CREATE" | "REPLACE", "TABLE":
                self._lake.adopt(name)
            case "CREATE", "VIEW":
                self._lake.record_view(name)
            case "CREATE", "FUNCTION":
                self._lake.record_function(name, s.text)
            case "DROP", "TABLE":
                self._lake.forget(ObjectKind.TABLE, name)
            case "DROP", "VIEW":
                self._lake.forget(ObjectKind.VIEW, name)
            case "DROP", "FUNCTION":
                self._lake.forget(ObjectKind.FUNCTION, name)
            case "ALTER", "TABLE" | "VIEW" if s.renamed_to is not None:
                # a managed table's files may have moved: the old name is forgotten, nothing is deleted
                for kind in (ObjectKind.TABLE, ObjectKind.VIEW):
                    self._catalog.drop_lake_object(kind, name)
                new = self._lake.resolve(s.renamed_to.parts)
                if new is not None:
                    self._lake.reconcile(new)
            case ("ALTER", "VIEW") | ("CONVERT", _) | (_, "SCRIPT"):
                self._lake.reconcile(name)


def _serving(clause: ServeClause | None) -> dict[str, Any]:
    """The arguments that say how a stream table is served."""
    if clause is None:
        return {}
    return {
        "serve_to": clause.to,
        "user_triggers": clause.user_triggers,
        "owner": clause.owner,
        "grants": clause.grants,
    }


@contextmanager
def _pointing_into(text: str, query: str | None, offset: int) -> Iterator[None]:
    """Errors about the query of a statement point into the whole statement."""
    try:
        yield
    except MillstreamError as error:
        if error.sql is None or error.sql != query:
            raise
        raise relocated(error, text, offset) from error.__cause__
