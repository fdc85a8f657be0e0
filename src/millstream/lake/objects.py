"""The lake's objects: recorded in the catalog, known to Spark, found by name.

Spark's own catalog lives in memory, so each process registers what the lake's catalog lists, and again when another
process has added to it (the catalog's generation has moved).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from millstream.catalog import Catalog
from millstream.catalog.models import LakeObject, ObjectKind, StreamTable
from millstream.engine.session import create_lake_schema, spark_name
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.naming import DEFAULT_SCHEMA, VISIBLE, TableName, quote
from millstream.ops import Column
from millstream.sql.sources import Source, View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Lake:
    """Tables, views, functions and stream tables of one lake."""

    def __init__(self, root: Path, spark: SparkSession, workers: Workers, catalog: Catalog) -> None:
        self.root = root
        self.warehouse = root / "tables"
        self.catalog = catalog
        self._spark = spark
        self._workers = workers
        self._generation = -1
        self._known: dict[TableName, str] = {}

    # Names

    def resolve(self, parts: Sequence[str]) -> TableName | None:
        """The lake's name for a name in a query; None for names of other catalogs."""
        lowered = [p.lower() for p in parts]
        if len(lowered) == 3 and lowered[0] == "spark_catalog":
            lowered = lowered[1:]
        if len(lowered) > 2:
            return None
        schema = lowered[0] if len(lowered) == 2 else DEFAULT_SCHEMA
        return TableName(schema, lowered[-1])

    def find(self, parts: Sequence[str]) -> Source | View | None:
        """What the front end asks: the table, stream table or view of a name."""
        name = self.resolve(parts)
        if name is None:
            return None
        stream_table = self.catalog.find(name)
        if stream_table is not None:
            return Source(str(name), tuple(Column(n, t) for n, t in stream_table.definition.columns))
        view = self.catalog.lake_object(ObjectKind.VIEW, name)
        if view is not None:
            return View(str(name), view.text or "")
        table = self.catalog.lake_object(ObjectKind.TABLE, name) or self.adopt(name)
        if table is None:
            return None
        return Source(str(name), self.table_columns(table))

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

    # The catalog and Spark in step

    def sync(self) -> None:
        """Make Spark know what the catalog lists; costs one look at the catalog where nothing changed."""
        generation = self.catalog.generation()
        if generation == self._generation:
            return
        wanted = {item.name: self._statement(item) for item in self.catalog.lake_objects()}
        wanted |= {table.name: self._view_of(table) for table in self.catalog.list()}
        for name in set(self._known) - set(wanted):
            self._forget(name)
        for name, statement in wanted.items():
            if self._known.get(name) != statement:
                self._ensure_schema(name.schema)
                self._spark.sql(statement)
        self._known = wanted
        self._generation = generation

    def _view_of(self, table: StreamTable) -> str:
        """A stream table's view: the query's columns under their names, hidden rows left out."""
        body = table.definition.body
        selected = ", ".join(
            f"{quote(stored)} AS {quote(name)}"
            for stored, (name, _) in zip(body["outputs"], table.definition.columns, strict=True)
        )
        where = f" WHERE {quote(VISIBLE)}" if body["hides_rows"] else ""
        text = f"SELECT {selected} FROM delta.{quote(table.public_stage.path)}{where}"
        return f"CREATE OR REPLACE VIEW {self.spark_name(table.name)} AS {text}"

    def adopt(self, name: TableName) -> LakeObject | None:
        """Record a table Spark knows and the catalog does not, e.g. one written with `saveAsTable`."""
        full = self.spark_name(name)
        try:
            if not self._spark.catalog.tableExists(full):
                return None
            details = {
                str(r["col_name"]): str(r["data_type"])
                for r in self._spark.sql(f"DESCRIBE TABLE EXTENDED {full}").collect()
            }
        except AnalysisException:
            return None
        if details.get("Type") == "VIEW":
            return None
        location = _local(details.get("Location", ""))
        table = LakeObject(
            kind=ObjectKind.TABLE,
            name=name,
            location=location,
            provider=details.get("Provider", "").lower(),
            details={"managed": details.get("Type") == "MANAGED"},
        )
        self.catalog.put_lake_object(table, replace=True)
        self._known[name] = self._statement(table)
        return table

    def record_view(self, name: TableName) -> None:
        """Record a view Spark has just been given."""
        rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self.spark_name(name)}").collect()
        text = next(str(r["data_type"]) for r in rows if r["col_name"] == "View Text")
        columns = [str(r["col_name"]) for r in rows[: next(i for i, r in enumerate(rows) if not r["col_name"])]]
        view = LakeObject(
            kind=ObjectKind.VIEW, name=name, text=text, fingerprint=fingerprint(text), details={"columns": columns}
        )
        self.catalog.put_lake_object(view, replace=True)
        self._known[name] = self._statement(view)

    def record_function(self, name: TableName, statement: str) -> None:
        """Record a SQL function by the statement that made it."""
        item = LakeObject(kind=ObjectKind.FUNCTION, name=name, text=statement, fingerprint=fingerprint(statement))
        self.catalog.put_lake_object(item, replace=True)

    def forget(self, kind: ObjectKind, name: TableName) -> None:
        """Drop an object from the catalog; a table of the lake's own goes with its files."""
        found = self.catalog.lake_object(kind, name)
        self.catalog.drop_lake_object(kind, name)
        self._known.pop(name, None)
        if found is not None and found.location and Path(found.location).is_relative_to(self.warehouse):
            shutil.rmtree(found.location, ignore_errors=True)

    def require_free(self, name: TableName) -> None:
        """Refuse a name that is taken by a table or view."""
        taken = any(self.catalog.lake_object(kind, name) for kind in (ObjectKind.TABLE, ObjectKind.VIEW))
        if taken or self.adopt(name) is not None:
            raise MillstreamError(Code.NAME_TAKEN, f"a table or view named {name} exists", hint="choose another name")

    def _statement(self, item: LakeObject) -> str:
        full = self.spark_name(item.name)
        match item.kind:
            case ObjectKind.TABLE:
                location = (item.location or "").replace("\\", "\\\\").replace("'", "\\'")
                return f"CREATE TABLE IF NOT EXISTS {full} USING {item.provider} LOCATION '{location}'"
            case ObjectKind.VIEW:
                columns = ", ".join(quote(c) for c in item.details.get("columns", ()))
                return f"CREATE OR REPLACE VIEW {full} {f'({columns}) ' if columns else ''}AS {item.text}"
            case ObjectKind.FUNCTION:
                return item.text or ""

    def _ensure_schema(self, schema: str) -> None:
        create_lake_schema(self._spark, self.warehouse, schema)

    def _forget(self, name: TableName) -> None:
        for kind in ("VIEW", "TABLE"):
            try:
                self._spark.sql(f"DROP {kind} IF EXISTS {self.spark_name(name)}")
            except AnalysisException:
                continue  # it is of the other kind


def fingerprint(text: str) -> str:
    """A short hash of a definition."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _local(location: str) -> str:
    return location.removeprefix("file://").removeprefix("file:")
