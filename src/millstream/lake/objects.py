"""The lake's objects: recorded in the catalog, known to Spark, found by name.

Spark's own catalog is in memory, so each process registers the objects that the lake's catalog lists, and registers
them again when another process has changed it (the catalog's generation has increased).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from millstream.catalog import Catalog
from millstream.catalog.models import LakeObject, ObjectKind, StreamTable
from millstream.catalog.object_details import ObjectDetails
from millstream.engine.lake_schemas import create_lake_schema, spark_name
from millstream.engine.spark_errors import SPARK_ERRORS, first_line
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake.attached_names import AttachedNames, native_types
from millstream.lake.exact_names import Exactly
from millstream.lake.stand_ins import analysable
from millstream.naming import DEFAULT_SCHEMA, VISIBLE, TableName, attached_name, quote
from millstream.ops import Column
from millstream.sources.landing import land
from millstream.sources.postgres.server.view_rights import ViewRights
from millstream.sql.postgres import translate
from millstream.sql.postgres.references import qualified, table_names
from millstream.sql.sources import NativeType, Source, View
from millstream.sql.text.table_exchange import words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOCATION = re.compile(r"^LOCATION '(?:[^'\\]|\\.)*'$\n?", re.MULTILINE)
_DEFAULT_COLLATION = re.compile(r"\b(STRING) COLLATE UTF8_BINARY\b")
_Key = tuple[str, TableName]  # tables and views share a namespace, functions have their own


class Lake:
    """Tables, views, functions and stream tables of one lake."""

    def __init__(self, root: Path, spark: SparkSession, workers: Workers, catalog: Catalog) -> None:
        self.root = root
        self.warehouse = root / "tables"
        self.catalog = catalog
        self.attached = AttachedNames(catalog)
        self._attached_views: dict[TableName, View] = {}
        self._spark = spark
        self._workers = workers
        self._generation = -1
        self._known: dict[_Key, str] = {}
        self._lock = threading.RLock()

    # Names

    def resolve(self, parts: Sequence[str], *, exact: bool = False) -> TableName | None:
        """The full name for a name in a query; None for paths and names of other catalogs.

        Args:
            exact: names in an attached database are case-sensitive, as in PostgreSQL.

        Raises:
            MillstreamError: in an attached database NAME_AMBIGUOUS; for two parts UNKNOWN_TABLE, DATABASE_UNREACHABLE.
        """
        if len(parts) == 3 and parts[0].lower() == "spark_catalog":
            parts = parts[1:]
        if self.attached.database(parts) is not None:
            return self.attached.resolve(parts, exact=exact)
        lowered = [p.lower() for p in parts]
        if not 1 <= len(lowered) <= 2:
            return None
        schema = lowered[0] if len(lowered) == 2 else DEFAULT_SCHEMA
        return TableName(schema, lowered[-1]) if "." not in schema else None

    def find(self, parts: Sequence[str], *, exact: bool = False) -> Source | View | None:
        """The table, stream table or view of a name; for `exact` see `resolve`."""
        name = self.resolve(parts, exact=exact)
        if name is None:
            return None
        if name.database is not None:
            return self._find_attached(name)
        stream_table = self.catalog.find(name)
        if stream_table is not None:
            return self._as_source(stream_table)
        view = self.catalog.lake_object(ObjectKind.VIEW, name)
        if view is not None:
            return View(str(name), view_text(view))
        table = self.catalog.lake_object(ObjectKind.TABLE, name) or self.adopt(name)
        if table is None:
            return None
        obstacle = None if table.provider == "delta" else f"a {table.provider} table records no changes"
        return Source(str(name), self.table_columns(table), obstacle)

    def _find_attached(self, name: TableName) -> Source | View:
        """A table or view of an attached database; for a served table, its stream table."""
        for serving in self.catalog.servings(name.database):
            if attached_name(serving.database, serving.schema, serving.table) == name:
                stream_table = self.catalog.find_by_id(serving.table_id)
                if stream_table is not None:
                    return self._as_source(stream_table)
        rights = self.attached.view(name.parts, exact=True)
        if rights is None:
            return self.attached.source(name)
        if name not in self._attached_views:
            self._attached_views[name] = self._attached_view(name, rights)
        return self._attached_views[name]

    def _attached_view(self, name: TableName, rights: ViewRights) -> View:
        """A view of an attached database, if PostgreSQL would show through it what its text reads.

        Raises:
            MillstreamError: PRIVILEGE_MISSING; UNSUPPORTED_SQL, SOURCE_CHANGED for a text that cannot be read through.
        """
        assert name.database is not None
        analyzer = self._workers.here().analyzer
        if (error := rights.reading_error()) is not None:
            raise error
        text = qualified(rights.text, name.database)
        self._refuse_others(name, rights, table_names(text))
        translated = translate(text, Exactly(self), analyzer).spark_text
        columns = analyzer.describe_text(self.analysable(translated))
        has_scales = not self.attached.has_ranges(name.database)
        native = native_types(self.attached.relation(name.parts, exact=True), has_scales=has_scales)
        return View(str(name), translated, columns, native, rights.mark)

    def _refuse_others(self, name: TableName, rights: ViewRights, named: Iterable[Sequence[str]]) -> None:
        """Refuse names in a view's text that do not refer to the tables whose rights were checked.

        That happens for the server's own catalogs, and if a table was renamed in between.
        """
        for parts in named:
            if self.attached.database(parts) is None:
                raise MillstreamError(
                    Code.UNSUPPORTED_SQL,
                    f"the view {name} reads {'.'.join(parts)}, which is not a user table",
                    hint="the server's own catalogs cannot be read through a view",
                )
            if self.attached.relation(parts, exact=True).oid not in rights.reads:
                raise MillstreamError(
                    Code.SOURCE_CHANGED,
                    f"{'.'.join(parts[1:])}, which the view {name} reads, changed while it was looked up",
                    hint="try again",
                )

    def _as_source(self, table: StreamTable) -> Source:
        columns = tuple(Column(n, t) for n, t in table.definition.columns)
        free = NativeType("numeric", has_free_scale=True)
        native = tuple((c.name, free) for c in columns if "decimal" in c.type) if self._reads_ranges(table) else ()
        return Source(str(table.name), columns, native_types=native)

    def _reads_ranges(self, table: StreamTable, above: frozenset[str] = frozenset()) -> bool:
        """Whether a stream table reads, directly or indirectly, a database with declared ranges."""
        above = above | {table.id}
        for dependency in table.definition.dependencies:
            name = TableName.parse(dependency.name)
            if name.database is not None and self.attached.has_ranges(name.database):
                return True
            read = self.catalog.find(name) if name.database is None else None
            if read is not None and read.id not in above and self._reads_ranges(read, above):
                return True
        return False

    def analysable(self, text: str) -> str:
        """A query that Spark can analyse although it does not know attached databases."""
        return analysable(text, self.attached, self.find)

    def table_columns(self, table: LakeObject) -> tuple[Column, ...]:
        """The columns a table has now."""
        if table.provider == "delta" and table.location:
            snapshot = self._workers.here().store.snapshot(table.location)
            return tuple(Column(name, type_) for name, type_, _ in snapshot.schema)
        schema = self._spark.table(self.spark_name(table.name)).schema
        return tuple(Column(f.name, f.dataType.simpleString()) for f in schema.fields)

    def spark_name(self, name: TableName) -> str:
        """The name to use in a text given to Spark."""
        return spark_name(self._spark, name)

    def functions_in(self, texts: Iterable[str]) -> dict[str, str]:
        """The lake's SQL functions that the texts call, directly or through other functions, with their texts."""
        known = {item.name: item.text or "" for item in self.catalog.lake_objects(ObjectKind.FUNCTION)}
        found: dict[str, str] = {}
        pending = list(texts) if known else []
        while pending:
            said = words(pending.pop())
            for name, text in known.items():
                if name.name in said and str(name) not in found:
                    found[str(name)] = text
                    pending.append(_after_name(text, name))
        return found

    def knows_function(self, name: TableName) -> bool:
        """Whether the lake has a SQL function of that name."""
        return self.catalog.lake_object(ObjectKind.FUNCTION, name) is not None

    # Synchronising Spark with the catalog

    def sync(self) -> None:
        """Register the catalog's objects in Spark; costs one query of the catalog if nothing has changed.

        Names of attached databases are looked up again from here on.
        """
        self.attached.forget()
        self._attached_views.clear()
        generation = self.catalog.generation()
        if generation == self._generation:
            return
        with self._lock:
            wanted = self._wanted()
            for key in set(self._known) - set(wanted):
                self._forget(*key)
            changed = {key: s for key, s in wanted.items() if self._known.get(key) != s}
            failed = self._register(changed)
            functions = [n for kind, n in (*changed, *(set(self._known) - set(wanted))) if kind == "FUNCTION"]
            if functions:
                self._workers.renew()
            self._known = {key: "" if key in failed else text for key, text in wanted.items()}
            if all(failed.values()):
                self._generation = generation

    def _wanted(self) -> dict[_Key, str]:
        """Every object, with the statement that registers it. Schemas come first: they may be renamed in Spark."""
        items, tables = self.catalog.lake_objects(), self.catalog.list()
        named = {_key(item.kind, item.name) for item in items} | {_key(ObjectKind.VIEW, t.name) for t in tables}
        for schema in {name.schema for _, name in named - set(self._known)}:
            create_lake_schema(self._spark, self.warehouse, schema)
        wanted = {_key(item.kind, item.name): self._statement(item) for item in items}
        wanted |= {_key(ObjectKind.VIEW, table.name): self._view_of(table) for table in tables}
        return wanted

    def _register(self, statements: Mapping[_Key, str]) -> dict[_Key, bool]:
        """Run the statements in an order that works: a view or a function may need another one.

        Returns:
            The objects that could not be registered, with whether the failure is permanent: such an object reads
            something that was dropped. Other failures, e.g. if another process is dropping a table, may be temporary.
        """
        waiting = dict(statements)
        while waiting:
            failed: dict[_Key, bool] = {}
            for key, text in waiting.items():
                try:
                    self._spark.sql(text)
                except SPARK_ERRORS as e:
                    failed[key] = isinstance(e, AnalysisException)
            if len(failed) == len(waiting):
                return failed
            waiting = {key: waiting[key] for key in failed}
        return {}

    def _view_of(self, table: StreamTable) -> str:
        """The statement that creates a stream table's view: the query's columns, without hidden rows."""
        body = table.definition.body
        path, names = table.public_stage.path, [name for name, _ in table.definition.columns]
        selected = ", ".join(
            f"{quote(stored)} AS {quote(name)}" for stored, name in zip(body.outputs, names, strict=True)
        )
        where = f" WHERE {quote(VISIBLE)}" if body.hides_rows else ""
        text = f"SELECT {selected} FROM delta.{quote(path)}{where}"
        return f"CREATE OR REPLACE VIEW {self.spark_name(table.name)} AS {text}"

    def create_schema(self, schema: str) -> None:
        """Create a schema in the lake.

        Raises:
            MillstreamError: NAME_TAKEN if another lake that is open in this process has one of that name, or an
                attached database.
        """
        self._refuse_database(schema)
        if create_lake_schema(self._spark, self.warehouse, schema) != schema:
            raise MillstreamError(
                Code.NAME_TAKEN,
                f"the schema {schema} belongs to another lake in this Spark session",
                hint="use another name, or open the two lakes in separate processes",
            )

    def adopt(self, name: TableName) -> LakeObject | None:
        """Record a table that Spark knows but the catalog does not, e.g. one written with `saveAsTable`."""
        described = self._described(name)
        if described is None or described.get("Type") == "VIEW":
            return None
        provider = described.get("Provider", "").lower()
        more = ObjectDetails(managed=described.get("Type") == "MANAGED")
        if provider != "delta":
            create = self._spark.sql(f"SHOW CREATE TABLE {self.spark_name(name)}").collect()[0][0]
            landing = str(self.root / "landed" / f"{name.schema}.{name.name}")
            more = replace(more, landing=landing, create=_recordable(create))
        table = LakeObject(
            kind=ObjectKind.TABLE,
            name=name,
            location=_local(described.get("Location", "")),
            provider=provider,
            details=more,
        )
        self.catalog.put_lake_object(table, replace=True)
        self._known[_key(table.kind, name)] = self._statement(table)
        return table

    def record_view(self, name: TableName) -> None:
        """Record a view that was just created in Spark."""
        rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self.spark_name(name)}").collect()
        text = next(str(r["data_type"]) for r in rows if r["col_name"] == "View Text")
        columns = [str(r["col_name"]) for r in rows[: next(i for i, r in enumerate(rows) if not r["col_name"])]]
        view = LakeObject(
            kind=ObjectKind.VIEW,
            name=name,
            text=text,
            fingerprint=fingerprint(text, *columns),
            details=ObjectDetails(columns=tuple(columns)),
        )
        self.catalog.put_lake_object(view, replace=True)
        self._known[_key(view.kind, name)] = self._statement(view)

    def record_function(self, name: TableName, statement: str) -> None:
        """Record a SQL function by the statement that created it; OR REPLACE does not change its fingerprint."""
        mark = fingerprint(_after_name(statement, name).strip())
        item = LakeObject(kind=ObjectKind.FUNCTION, name=name, text=statement, fingerprint=mark)
        self.catalog.put_lake_object(item, replace=True)
        self._known[_key(item.kind, name)] = self._statement(item)
        self._workers.renew()

    def reconcile(self, name: TableName) -> None:
        """Record or forget a table or view after a statement that may have created or dropped it."""
        described = self._described(name)
        if described is None:
            for kind in (ObjectKind.TABLE, ObjectKind.VIEW):
                self.forget(kind, name)
        elif described.get("Type") == "VIEW":
            if self.catalog.find(name) is None:
                self.record_view(name)
        else:
            self.adopt(name)

    def forget(self, kind: ObjectKind, name: TableName) -> None:
        """Remove an object from the catalog, with its files if they are in the lake."""
        found = self.catalog.lake_object(kind, name)
        if found is None:
            return
        self.catalog.drop_lake_object(kind, name)
        self._known.pop(_key(kind, name), None)
        if kind is ObjectKind.FUNCTION:
            self._workers.renew()
        for directory in (found.location, found.details.landing):
            if directory and Path(directory).is_relative_to(self.root):
                shutil.rmtree(directory, ignore_errors=True)

    def forget_schema(self, schema: str) -> None:
        """Forget everything in a schema that was dropped."""
        for item in self.catalog.lake_objects():
            if item.name.schema == schema:
                self.forget(item.kind, item.name)

    def _refuse_database(self, schema: str) -> None:
        if self.catalog.find_database(schema) is not None:
            raise MillstreamError(
                Code.NAME_TAKEN,
                f"{schema} is an attached database, not a schema of the lake",
                hint="use another schema",
            )

    def require_free(self, name: TableName) -> None:
        """Refuse a name that a table or view already has, or that is in an attached database."""
        self._refuse_database(name.schema)
        taken = any(self.catalog.lake_object(kind, name) for kind in (ObjectKind.TABLE, ObjectKind.VIEW))
        if taken or self._described(name) is not None:
            raise MillstreamError(
                Code.NAME_TAKEN, f"a table or view named {name} already exists", hint="choose another name"
            )

    def land(self, item: LakeObject) -> None:
        """Copy a table that records no changes into the lake, so that a refresh can read it.

        Raises:
            MillstreamError: SOURCE_MISSING if it cannot be read.
        """
        assert item.details.landing is not None
        used = {int(v) for t in self.catalog.list() if (v := t.frontier.get(str(item.name))) is not None}
        try:
            land(self._spark.table(self.spark_name(item.name)), Path(item.details.landing), used)
        except SPARK_ERRORS as e:
            raise MillstreamError(
                Code.SOURCE_MISSING,
                f"{item.name} cannot be read: {first_line(e)}",
                hint=f"repair {item.name}, or drop the stream tables that read it",
            ) from e

    def _described(self, name: TableName) -> dict[str, str] | None:
        full = self.spark_name(name)
        try:
            if not self._spark.catalog.tableExists(full):
                return None
            rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {full}").collect()
        except AnalysisException:
            return None
        return {str(r["col_name"]): str(r["data_type"]) for r in rows}

    def _statement(self, item: LakeObject) -> str:
        full = self.spark_name(item.name)
        match item.kind:
            case ObjectKind.TABLE:
                location = (item.location or "").replace("\\", "\\\\").replace("'", "\\'")
                if (create := item.details.create) is not None:
                    # the files do not contain its columns and options
                    clauses = create[create.index("(") :] if "(" in create else create[create.index("\n") :]
                    return f"CREATE TABLE IF NOT EXISTS {full} {clauses}LOCATION '{location}'"
                return f"CREATE TABLE IF NOT EXISTS {full} USING {item.provider} LOCATION '{location}'"
            case ObjectKind.VIEW:
                columns = ", ".join(quote(c) for c in item.details.columns or ())
                return f"CREATE OR REPLACE VIEW {full} {f'({columns}) ' if columns else ''}AS {item.text}"
            case ObjectKind.FUNCTION:
                text = item.text or ""
                return f"CREATE OR REPLACE FUNCTION {full}{_after_name(text, item.name)}"

    def _forget(self, namespace: str, name: TableName) -> None:
        for kind in ("FUNCTION",) if namespace == "FUNCTION" else ("VIEW", "TABLE"):
            try:
                self._spark.sql(f"DROP {kind} IF EXISTS {self.spark_name(name)}")
            except AnalysisException:
                continue  # the object is of the other kind


def view_text(view: LakeObject) -> str:
    """A view's query, with the column names of the view."""
    names = ", ".join(quote(c) for c in view.details.columns or ())
    return f"SELECT * FROM ({view.text}\n) AS {quote(view.name.name)}({names})" if names else view.text or ""


def fingerprint(*texts: str) -> str:
    """A short hash of a definition."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _key(kind: ObjectKind, name: TableName) -> _Key:
    return ("FUNCTION" if kind is ObjectKind.FUNCTION else "RELATION", name)


def _after_name(text: str, name: TableName) -> str:
    """What follows the name in a CREATE FUNCTION statement."""
    found = re.search(rf"\bFUNCTION\b.*?\b{re.escape(name.name)}\b`?", text, re.IGNORECASE | re.DOTALL)
    return text[found.end() :] if found else text


def _recordable(create: str) -> str:
    """The output of SHOW CREATE TABLE, without its location and the default collation.

    The location is recorded separately, relative to the lake. A table that names the default collation would get
    columns of a type that Delta tables do not have.
    """
    return _DEFAULT_COLLATION.sub(r"\1", _LOCATION.sub("", create))


def _local(location: str) -> str:
    return location.removeprefix("file://").removeprefix("file:")
