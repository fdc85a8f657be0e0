"""`verify` against PostgreSQL: compares a table with PostgreSQL's own answer in the snapshot of a refresh.

The refresh is an ordinary one; `HeldSnapshot` takes over the snapshot of its tick. So the contents and the answer show
the same state, regardless of concurrent writes.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from millstream.catalog import Catalog
from millstream.catalog.attached import Capture
from millstream.catalog.models import Dependency, SourceKind, StreamTable
from millstream.engine.worker import Worker
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.lake.attached_names import UNREADABLE
from millstream.naming import TableName
from millstream.passes.held_snapshot import HeldSnapshot
from millstream.postgres.address import Address
from millstream.refresh.verify import compare, contents_of
from millstream.results import VerifyResult
from millstream.settings import Settings
from millstream.sources.postgres.server.query_answers import AlteredError, Answer, Answers, answering
from millstream.sql.postgres.query_on_postgres import open_constructs, over_tables, quoted, unanswerable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRIES = 5
_TIME_ZONE = "spark.sql.session.timeZone"
_NO_FIXED_RESULT = " has no fixed result"


class AgainstPostgres:
    """Compares a stream table with PostgreSQL's answer to its query.

    Args:
        chain: the stream tables it reads, and itself last.
        refresh: refreshes the chain and holds the snapshot of its tick.
        directory: the directory for answers that are too large for memory.

    Raises:
        MillstreamError: NOT_COMPARABLE.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        compiled: Callable[[StreamTable], Compiled],
        chain: Sequence[StreamTable],
        refresh: Callable[[HeldSnapshot], None],
        directory: Path,
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._compiled = compiled
        self._refresh = refresh
        self._directory = directory
        self._name = chain[-1].name
        self._database = _one_database(chain)

    def verify(self, worker: Worker) -> VerifyResult:
        """Refresh the chain and compare its last table.

        Raises:
            MillstreamError: what made the refresh fail; NOT_COMPARABLE, ORACLE_FAILED, VALUE_UNSUPPORTED, ...
        """
        database = self._catalog.find_database(self._database)
        assert database is not None, "a database that is read cannot be detached"
        for _ in range(_TRIES):
            try:
                with HeldSnapshot(Address(database.address)) as held:
                    self._refresh(held)
                    if held.is_at_one_snapshot:
                        return self._compare(held, worker)
            except AlteredError:
                continue
        raise MillstreamError(
            Code.LOCK_TIMEOUT,
            f"the tables of {self._database} that {self._name} reads kept changing through concurrent DDL; "
            f"gave up after {_TRIES} attempts",
            hint="verify again when the DDL has finished",
        )

    def _compare(self, held: HeldSnapshot, worker: Worker) -> VerifyResult:
        table = held.tables[str(self._name)]
        chain = [_Native(t, self._compiled(t)) for t in held.tables.values()]
        _one_database([native.table for native in chain])  # a view may have been replaced and read other tables
        captures = {c.name: c for c in self._catalog.captures(self._database)}
        read = _columns_read(chain, captures)
        zone = str(table.definition.settings[_TIME_ZONE])
        worker.use(table.definition.settings)
        assert held.snapshot is not None
        settings = self._settings
        with answering(held.snapshot, read, zone, settings.verify_timeout_seconds, settings.trusted_roles) as answers:
            before, query = _Writer(answers, chain, captures).write()
            answer = answers.ask(before, query, [type_ for _, type_ in table.definition.columns])
            spool = _Spool(answer, worker, self._directory / uuid.uuid4().hex, settings.direct_max_rows)
            with spool as expected:
                result = self._compare_with(expected, answer, table, worker)
        self._refuse_open(result, chain)
        return result

    def _compare_with(self, expected: DataFrame, answer: Answer, table: StreamTable, worker: Worker) -> VerifyResult:
        contents = contents_of(worker.store, table, self._compiled(table))
        names = [f"c{i}" for i in range(len(contents.columns))]
        wanted = [f.col(f"{n}_near" if n in answer.inexact else n).alias(n) for n in names]
        actual = [f.col(n).cast("double").alias(n) if n in answer.inexact else f.col(n) for n in names]
        return compare(
            contents.toDF(*names).select(*actual),
            expected.select(*wanted),
            self._settings.verify_relative_tolerance,
        )

    def _refuse_open(self, result: VerifyResult, chain: Sequence[_Native]) -> None:
        """Refuse to report a difference where PostgreSQL may choose another result; agreement is always meaningful."""
        constructs = dict.fromkeys(c for native in chain for c in native.open_constructs)
        if result.ok or not constructs:
            return
        raise MillstreamError(
            Code.NOT_COMPARABLE,
            f"{self._name} differs from PostgreSQL's answer ({result.missing} rows missing, {result.extra} extra), "
            f"but the query does not determine its result: {', '.join(constructs)}",
            hint="make each ORDER BY unique, or verify without PostgreSQL",
        )


@dataclass
class _Native:
    """A stream table in the PostgreSQL dialect."""

    table: StreamTable
    compiled: Compiled
    views: list[str] = field(default_factory=list)
    """The texts of the views it reads, once they have been looked up."""

    @property
    def open_constructs(self) -> list[str]:
        """The constructs of its query that have more than one correct result."""
        if self.compiled.is_incremental:
            return [n.partition(_NO_FIXED_RESULT)[0] for n in self.compiled.notices if _NO_FIXED_RESULT in n]
        texts = [self.table.definition.original_query, *self.views]
        return [construct for text in texts for construct in open_constructs(text)]


class _Writer:
    """Writes the query of a chain's last table, with the stream tables it reads as common table expressions."""

    def __init__(self, answers: Answers, chain: Sequence[_Native], captures: Mapping[str, Capture]) -> None:
        self._answers = answers
        self._chain = chain
        self._captures = captures
        self._written = {str(native.table.name): f"__ms_t{i}" for i, native in enumerate(chain)}

    def write(self) -> tuple[str, str]:
        """The WITH clause, or an empty text; and the query."""
        before = []
        for native in self._chain[:-1]:
            names = ", ".join(quoted(name.lower()) for name, _ in native.table.definition.columns)
            before.append(f"{self._written[str(native.table.name)]}({names}) AS ({self._text(native)}\n)")
        return f"WITH {', '.join(before)}" if before else "", self._text(self._chain[-1])

    def _text(self, native: _Native) -> str:
        moment = native.table.data_timestamp
        assert moment is not None, "it was refreshed"
        return self._over(native, native.table.definition.original_query, (), moment)

    def _over(self, native: _Native, text: str, within: tuple[str, ...], moment: datetime) -> str:
        """A query with its names replaced by what they refer to; names in a view's text lack the database."""
        if (why := unanswerable(text)) is not None:
            raise _not_comparable(native.table, why)
        body = native.table.definition.body

        def table(parts: tuple[str, ...]) -> str:
            name = body.names[(*within, *parts)]
            if name in body.views:
                return f"({self._view(native, name, moment)}\n)"
            if name in self._written:
                return self._written[name]
            columns = [n for n, type_ in body.sources[name].columns if type_ != UNREADABLE]
            return self._answers.table(self._captures[name].oid, columns)

        return over_tables(text, table, moment)

    def _view(self, native: _Native, name: str, moment: datetime) -> str:
        """The text of a view as it was translated: the view itself may have been replaced since."""
        database, schema, view = TableName.parse(name).parts
        found = self._answers.view(schema, view)
        known = next(d for d in native.table.definition.dependencies if d.kind is SourceKind.VIEW and d.name == name)
        if found is None or found.mark != known.fingerprint:
            raise AlteredError
        if "\\" in found.text:
            raise _not_comparable(native.table, f"the text of the view {name} contains a backslash")
        native.views.append(found.text.strip().removesuffix(";"))
        return self._over(native, native.views[-1], (database,), moment)


class _Spool:
    """PostgreSQL's rows as a frame: from memory if there are few, otherwise from a file."""

    def __init__(self, answer: Answer, worker: Worker, directory: Path, most_rows: int) -> None:
        self._answer = answer
        self._worker = worker
        self._directory = directory
        self._most_rows = most_rows

    def __enter__(self) -> DataFrame:
        held: list[pa.RecordBatch] = []
        batches = self._answer.batches()
        for batch in batches:
            held.append(batch)
            if sum(b.num_rows for b in held) > self._most_rows:
                break
        else:
            nothing = self._answer.schema.empty_table()  # Spark fails on a table without any chunk
            return self._worker.frame(pa.Table.from_batches(held) if held else nothing)
        self._directory.mkdir(parents=True)
        path = self._directory / "rows.parquet"
        with parquet.ParquetWriter(path, self._answer.schema) as writer:
            for batch in held:
                writer.write_batch(batch)
            held.clear()
            for batch in batches:
                writer.write_batch(batch)
        schema = from_arrow_schema(self._answer.schema, prefer_timestamp_ntz=True)
        return self._worker.spark.read.schema(schema).parquet(str(path))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _one_database(chain: Sequence[StreamTable]) -> str:
    """The database that contains all base tables of a chain.

    Raises:
        MillstreamError: NOT_COMPARABLE.
    """
    databases: dict[str, str] = {}
    for table in chain:
        if table.definition.dialect != "postgres":
            raise _not_comparable(chain[-1], f"the query of {table.name} is Spark SQL")
        if (why := unanswerable(table.definition.original_query)) is not None:
            raise _not_comparable(table, why)
        if table.definition.settings[_TIME_ZONE] != chain[-1].definition.settings[_TIME_ZONE]:
            raise _not_comparable(chain[-1], f"{table.name} has a different time zone")
        for dependency in table.definition.dependencies:
            if dependency.kind is not SourceKind.STREAM_TABLE:
                databases[_database_of(dependency, chain[-1])] = dependency.name
    if len(databases) != 1:
        what = (
            f"it reads {' and '.join(sorted(databases.values()))}, which are in different databases"
            if databases
            else "it reads no table"
        )
        raise _not_comparable(chain[-1], what)
    return next(iter(databases))


def _database_of(dependency: Dependency, table: StreamTable) -> str:
    database = TableName.parse(dependency.name).database if dependency.kind is not SourceKind.FUNCTION else None
    if database is None:
        what = {SourceKind.FUNCTION: "a function", SourceKind.VIEW: "a view"}.get(dependency.kind, "a table")
        raise _not_comparable(table, f"{dependency.name} is {what} of the lake, not of PostgreSQL")
    return database


def _columns_read(chain: Sequence[_Native], captures: Mapping[str, Capture]) -> dict[int, list[str]]:
    """The columns of each captured table that the chain uses, by the table's OID."""
    found: dict[int, set[str]] = {}
    for native in chain:
        for dependency in native.table.definition.dependencies:
            if dependency.kind is not SourceKind.TABLE:
                continue
            capture = captures[dependency.name]
            if capture.is_whole:
                raise _not_comparable(native.table, f"a snapshot of the database does not cover {capture.name}")
            found.setdefault(capture.oid, set()).update(dependency.columns_used)
    return {oid: sorted(names) for oid, names in found.items()}


def _not_comparable(table: StreamTable, why: str) -> MillstreamError:
    return MillstreamError(
        Code.NOT_COMPARABLE,
        f"{table.name} cannot be compared with PostgreSQL's answer: {why}",
        hint="call verify without `against` to compare with Spark's answer",
    )
