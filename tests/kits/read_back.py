"""Contents of a lake as delta-rs reads them, and queries over these contents.

Spark's Delta connector takes half a second to a second to read a table that has just changed; most tests only want to
know what is in it. delta-rs shares no code with millstream, nor with Spark: it reads the rows, and Spark merely runs
the query over them, or shows them as a user sees them. What delta-rs cannot read is read through the connector.
`tests/engine/storage` and `tests/spark/test_other_readers.py` compare the readers with each other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql.types import StructField, StructType
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from millstream import MillstreamError
from millstream.catalog.models import ObjectKind
from millstream.engine.session import new_worker_session
from millstream.naming import VISIBLE, TableName, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream import Millstream

_READABLE = {"deletionVectors", "timestampNtz"}


class _Elsewhere(Exception):
    """Only Delta's connector can read this."""


@dataclass
class ReadBack:
    """Reads the tables of an open lake."""

    ms: Millstream
    _session: SparkSession | None = field(default=None, init=False)

    def table(self, name: str) -> DataFrame:
        """A table or stream table, with the columns that a user sees."""
        try:
            return self._frame(name)
        except (_Elsewhere, MillstreamError):
            return self.ms.table(name)

    def query(self, text: str) -> DataFrame:
        """A query over tables and stream tables, each with one part to its name."""
        try:
            names = _names(text)
            frames = {name: self._frame(name) for name in names}
        except (_Elsewhere, MillstreamError, SqlglotError):
            return self.ms.spark.sql(text)
        session = self._reader()
        for name, frame in frames.items():
            frame.createOrReplaceTempView(quote(name))
        try:
            return session.sql(text)
        finally:
            for name in frames:
                session.catalog.dropTempView(name)

    def _reader(self) -> SparkSession:
        if self._session is None:
            self._session = new_worker_session(self.ms.spark)
        for key, value in self.ms.spark.conf.getAll.items():
            if key in _SEMANTICS:
                self._session.conf.set(key, value)
        return self._session

    def _frame(self, name: str) -> DataFrame:
        catalog, parsed = self.ms._catalog, TableName.parse(name)
        if (stream := catalog.find(parsed)) is not None:
            body, columns = stream.definition.body, [column for column, _ in stream.definition.columns]
            where = f" WHERE {_quoted(VISIBLE)}" if body.hides_rows else ""
            return self._read(stream.public_stage.path, list(body.outputs), columns, where)
        found = catalog.lake_object(ObjectKind.TABLE, parsed)
        if found is None or found.location is None or found.provider != "delta":
            raise _Elsewhere
        return self._read(found.location, None, None, "")

    def _read(self, path: str, stored: list[str] | None, names: list[str] | None, where: str) -> DataFrame:
        table = DeltaTable(path)
        if set(table.protocol().reader_features or ()) - _READABLE:
            raise _Elsewhere
        schema_text = table.schema().to_json()
        if (
            '"timestamp"' in schema_text
        ):  # Spark stores them as INT96, in which delta-rs overflows before 1677 and after 2262
            raise _Elsewhere
        fields = {f["name"]: f for f in json.loads(schema_text)["fields"]}
        stored = stored if stored is not None else list(fields)
        selected = ", ".join(f"{_quoted(column)} AS c{i}" for i, column in enumerate(stored))  # one may be shown twice
        rows = pa.table(QueryBuilder().register("t", table).execute(f"SELECT {selected} FROM t{where}").read_all())
        schema = StructType([_renamed(fields[column], f"c{i}") for i, column in enumerate(stored)])
        return self._reader().createDataFrame(rows, schema).toDF(*(names if names is not None else stored))


_SEMANTICS = {"spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive"}


def _renamed(field_: dict[str, Any], name: str) -> StructField:
    return StructField.fromJson({**field_, "name": name, "nullable": True, "metadata": {}})


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _names(text: str) -> set[str]:
    """The tables of a query."""
    tree = parse_one(text, dialect="spark")
    defined = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    tables = list(tree.find_all(exp.Table))
    if any(table.args.get("db") or not isinstance(table.this, exp.Identifier) for table in tables):
        raise _Elsewhere
    return {table.name for table in tables if table.name.lower() not in defined}
