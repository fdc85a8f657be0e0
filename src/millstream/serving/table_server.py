"""Serves stream tables after their refreshes: applies the changes of the public stage since the served version.

Only the served database records which version a table is at; the catalog does not.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from millstream import naming
from millstream.cancellation import check
from millstream.catalog import Catalog
from millstream.catalog.attached import Serving
from millstream.catalog.models import StreamTable
from millstream.catalog.serving_details import FormerServing
from millstream.engine.spark_errors import SPARK_ERRORS, environment_error, first_line
from millstream.engine.storage import DeltaStore, RangeKind
from millstream.engine.storage.files.exact_cast import exactly
from millstream.engine.storage.files.schema import UnsupportedTypeError, arrow_schema, narrowed
from millstream.errors import Code, MillstreamError
from millstream.lake.served_key import ServedKey
from millstream.postgres.pool import ConnectionPool, SessionKind
from millstream.reasons import Reason
from millstream.settings import Settings
from millstream.sinks.postgres.ledger import Ledger
from millstream.sinks.postgres.search_path import pin_path
from millstream.sinks.postgres.serve import PostgresSink
from millstream.sinks.postgres.table_writer import Served
from millstream.sinks.postgres.target import Mark, Target, UserTriggers
from millstream.sinks.postgres.types import served_columns
from millstream.sources.delta import DeltaInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


_log = logging.getLogger(__name__)

# a result or change of more rows goes through files instead of the driver's memory
_MAX_COLLECTED_ROWS = 200_000
_BATCH_ROWS = 50_000
_LOOK_AGAIN_SECONDS = 60.0
"""How long a served table is taken to be as it was served, if there is nothing new to serve."""
_SERVING = SessionKind(pin_path, for_users=True, checks_identity=True)


@dataclass(frozen=True)
class StageFeed:
    """The public stage of a stream table at its current version, as the source of a served table."""

    store: DeltaStore
    table: StreamTable
    spill: Path

    @property
    def version(self) -> int:
        """The version to serve."""
        version = self.table.public_stage.version
        if version is None:
            raise MillstreamError(Code.NOT_POPULATED, f"{self.table.name} has never been refreshed")
        return version

    @property
    def schema(self) -> pa.Schema:
        """The columns the user sees.

        Raises:
            MillstreamError: UNSUPPORTED_TYPE.
        """
        stage = self.table.public_stage
        fields = narrowed(self.store.snapshot(stage.path, stage.version).spark_schema, self._outputs)
        stored = served_schema(self.table.name, fields)
        return pa.schema([pa.field(n, f.type) for n, f in zip(self._names, stored, strict=True)])

    def commit_id(self, version: int) -> str | None:
        """Distinguishes a version from the same number in a restored lake; None if it is no longer known."""
        return self.store.commit_id(self.table.public_stage.path, version)

    def delta(self, after: int) -> pa.Table | Iterable[pa.Table] | str:
        """The change since a version, in pieces if it is large; or the reason why there is none."""
        path, upto = self.table.public_stage.path, self.version
        columns = [*dict.fromkeys(self._outputs), *([naming.VISIBLE] if self._hides_rows else [])]
        summary = self.store.classify(path, after, upto, columns)
        if summary.kind is RangeKind.REPLACED:
            return f"{Reason.NO_DELTA}: the stream table was recomputed"
        if not summary.kind.has_delta:
            return f"{Reason.NO_DELTA}: {summary.reason}"
        changes = self.store.changes(path, after, upto, columns, summary=summary)
        if changes.arrow is not None:
            rows = changes.arrow
            if rows.num_rows <= _MAX_COLLECTED_ROWS:
                return self._shown(rows)
            return map(self._shown, (rows.slice(i, _BATCH_ROWS) for i in range(0, rows.num_rows, _BATCH_ROWS)))
        if summary.feed_rows <= _MAX_COLLECTED_ROWS:  # which may be an estimate from the files' sizes
            rows = changes.frame.limit(_MAX_COLLECTED_ROWS + 1).toArrow()
            if rows.num_rows <= _MAX_COLLECTED_ROWS:
                return self._shown(rows)
        return map(self._shown, self._spilled(changes.frame))

    def _shown(self, rows: pa.Table) -> pa.Table:
        """The part of a change that users see."""
        if self._hides_rows:
            rows = rows.filter(pc.fill_null(rows[naming.VISIBLE], fill_value=False))
        wanted = [*self._outputs, naming.WEIGHT]
        typed = self.schema.append(pa.field(naming.WEIGHT, pa.int64()))
        named = pa.Table.from_arrays([rows[c] for c in wanted], names=[*self._names, naming.WEIGHT])
        return exactly(named, typed)

    def contents(self) -> Iterable[pa.Table]:
        """All rows, in pieces."""
        stage = self.table.public_stage
        stored = dict(zip(self._names, self._outputs, strict=True))
        source = DeltaInput(str(self.table.name), stage.path, stored, self._hides_rows)
        frame = source.contents(self.store, self.version, self._names)
        rows = self.store.snapshot(stage.path, self.version).num_rows
        if rows is not None and rows <= _MAX_COLLECTED_ROWS:
            yield exactly(frame.toArrow(), self.schema)
            return
        for piece in self._spilled(frame):
            yield exactly(piece.select(self._names), self.schema)

    def _spilled(self, frame: DataFrame) -> Iterator[pa.Table]:
        """Rows in pieces, through files."""
        directory = self.spill / f"serving-{uuid.uuid4().hex[:8]}"
        try:
            frame.write.parquet(str(directory))
            # Spark writes INT96 timestamps, whose nanoseconds overflow after the year 2262
            options = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
            files = ds.dataset(directory, format=ds.ParquetFileFormat(read_options=options))
            for batch in files.to_batches(batch_size=_BATCH_ROWS):
                yield pa.Table.from_batches([batch])
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @property
    def _names(self) -> list[str]:
        return [name for name, _ in self.table.definition.columns]

    @property
    def _outputs(self) -> list[str]:
        return list(self.table.definition.body.outputs)

    @property
    def _hides_rows(self) -> bool:
        return self.table.definition.body.hides_rows


class TableServer:
    """Serves stream tables.

    Args:
        spill: a directory for results that are too large for memory.
        key_of: returns the current key of a stream table's result.
        notify: called with warnings for the user.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        spill: Path,
        key_of: Callable[[StreamTable], ServedKey],
        notify: Callable[[str], None],
        connections: ConnectionPool,
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self.spill = spill
        self.key_of = key_of
        self._notify = notify
        self._connections = connections
        self._served: dict[str, tuple[str, int, float]] = {}

    def serving_of(self, table: StreamTable) -> Serving | None:
        """Where a stream table is served, or None."""
        return next((s for s in self._catalog.servings() if s.table_id == table.id), None)

    def serve(self, table: StreamTable, store: DeltaStore) -> Served | None:
        """Bring the served table up to the stream table's contents; None if it is not served.

        Raises:
            MillstreamError: SERVE_FAILED, PRIVILEGE_MISSING, DATABASE_UNREACHABLE, ...; the served table is unchanged.
        """
        serving = self.serving_of(table)
        self._served.pop(table.id, None)
        if serving is None:
            return None
        check()
        self.finish_move(table)
        with self.sink(serving, table) as sink:
            served = self._serve(sink, serving, table, store)
        if (version := table.public_stage.version) is not None:
            self._served[table.id] = table.public_stage.id, version, time.monotonic()
        return served

    def is_served(self, table_id: str, stage_id: str, version: int | None) -> bool:
        """Whether this process has served a version, not long ago: somebody may have dropped the served table since."""
        known_id, known, at = self._served.get(table_id, ("", None, -math.inf))
        return (known_id, known) == (stage_id, version) and time.monotonic() - at < _LOOK_AGAIN_SECONDS

    def served_version(self, table: StreamTable) -> int | None:
        """The version of the public stage from which a served table will be brought forward; None if from none.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, ...
        """
        serving = self.serving_of(table)
        if serving is None:
            return None
        with self.sink(serving, table) as sink:
            found = sink.entry(target_of(serving))
        return found.version if found is not None and found.stage_id == table.public_stage.id else None

    @contextmanager
    def replacing(
        self, table: StreamTable, store: DeltaStore, old: Serving | None, new: Serving | None
    ) -> Iterator[None]:
        """Serve the new contents of a stream table, perhaps under another name, while the block updates the catalog.

        The changes in the databases are committed at the end of the block, and rolled back if the block fails. Only if
        the process dies or the connection is lost during this commit is the served table older than the stream table;
        then the next refresh serves it.

        Args:
            table: as it will be; without contents its served table is created, but not filled.
            old: where it is served until now.
            new: where it will be served.

        Raises:
            MillstreamError: what `serve` raises, NAME_TAKEN, DEPENDENTS_EXIST; nothing has changed.
        """
        if new is None:
            yield
            return
        is_moved = old is not None and old.name != new.name
        live = {s.table_id for s in self._catalog.servings() if s.table_id != table.id}
        with ExitStack() as stack:
            if old is not None and is_moved and old.database != new.database:
                other = stack.enter_context(self.sink(old, table))
                stack.enter_context(other.together(target_of(old)))
                other.drop(target_of(old), cascade=False)
            target = self._target(new, table, store)
            sink = stack.enter_context(self.sink(new, table))
            stack.enter_context(sink.together(target))
            if old is not None and is_moved and old.database == new.database:
                sink.accounting_in(self.ledger(old)).drop(target_of(old), cascade=False)
            if old is None or is_moved:
                sink.declare(target, self._catalog.lake_id(), str(table.name), live)
            elif old.details != new.details:
                sink.grant(target)
            if table.public_stage.version is not None:
                self._serve(sink, new, table, store)
            yield

    def moving(self, old: Serving | None, new: Serving) -> Serving:
        """The record of a serving that replaces another one, until `finish_move`."""
        if old is None or old.name == new.name:
            return new
        former = FormerServing(database=old.database, schema=old.schema, table=old.table, details=old.details)
        return replace(new, details=replace(new.details, moved_from=former))

    def finish_move(self, table: StreamTable) -> None:
        """Drop the table a stream table was served as before, if a process died before it could.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, DEPENDENTS_EXIST, ...; the next refresh retries it.
        """
        serving = self.serving_of(table)
        if serving is None or (former := serving.details.moved_from) is None:
            return
        old = Serving(
            table_id=table.id,
            database=former.database,
            schema=former.schema,
            table=former.table,
            details=former.details,
        )
        if self._catalog.find_database(old.database) is not None:
            with self.sink(old, table) as sink:
                sink.drop_if_served(target_of(old))
        self._catalog.put_serving(replace(serving, details=replace(serving.details, moved_from=None)))

    def _target(self, serving: Serving, table: StreamTable, store: DeltaStore) -> Target:
        return target_of(serving, StageFeed(store, table, self.spill).schema, self.key_of(table))

    def _serve(self, sink: PostgresSink, serving: Serving, table: StreamTable, store: DeltaStore) -> Served:

        feed = StageFeed(store, table, self.spill)
        stage = table.public_stage
        assert table.data_timestamp is not None
        mark = Mark(
            lake_id=self._catalog.lake_id(),
            stream_table=str(table.name),
            stage_id=stage.id,
            version=feed.version,
            commit_id=feed.commit_id(feed.version),
            refresh_id=store.transaction_version(stage.path, stage.id) or 0,
            data_timestamp=table.data_timestamp,
        )
        started = time.perf_counter()
        try:
            done = sink.serve(self._target(serving, table, store), mark, feed)
        except (*SPARK_ERRORS, OSError) as e:
            if (environment := environment_error(e)) is not None:
                raise environment from e
            raise MillstreamError(
                Code.SERVE_FAILED,
                f"{table.name} could not be served as {serving.name}: {first_line(e)}",
                hint="the next refresh serves what is missing",
            ) from e
        took = (time.perf_counter() - started) * 1000
        _log.info("%s: served as %s in %.0f ms, %s %s", table.name, serving.name, took, done.mode, done.counts)
        for notice in done.notices:
            self._notify(notice)
        return done

    @contextmanager
    def sink(self, serving: Serving, table: StreamTable) -> Iterator[PostgresSink]:
        """A sink that writes a stream table's result into a database.

        Raises:
            MillstreamError: NOT_ATTACHED, DATABASE_UNREACHABLE, DATABASE_REPLACED, DEPENDENCY_MISSING.
        """
        database = serving.database
        attached = self._catalog.find_database(database)
        if attached is None:
            raise MillstreamError(
                Code.NOT_ATTACHED,
                f"there is no attached database {database}",
                hint=f"ATTACH POSTGRES '…' AS {database}",
            )
        captures = self._catalog.captures(database)
        sources = {c.oid: f"{c.schema}.{c.table}" for c in captures if c.name in table.base_frontier}
        with self._connections.borrowed(attached, _SERVING) as connection:
            yield PostgresSink(connection, self.ledger(serving), sources)

    def ledger(self, serving: Serving) -> Ledger:
        """The ledger that records a served table."""
        return Ledger(serving.details.serving_schema or self._settings.serving_schema)


def served_schema(name: naming.TableName, fields: StructType) -> pa.Schema:
    """The columns of a result as a sink takes them.

    Raises:
        MillstreamError: UNSUPPORTED_TYPE.
    """
    try:
        return arrow_schema(fields)
    except UnsupportedTypeError as e:
        raise MillstreamError(
            Code.UNSUPPORTED_TYPE, f"{name} cannot be served: {e}", hint="cast the column in the query"
        ) from e


def target_of(serving: Serving, schema: pa.Schema | None = None, key: ServedKey | None = None) -> Target:
    """The served table as it should be; to drop it, no schema and key are needed.

    Raises:
        MillstreamError: UNSUPPORTED_TYPE, NAME_INVALID.
    """

    return Target(
        table_id=serving.table_id,
        schema=serving.schema,
        table=serving.table,
        columns=served_columns(schema) if schema is not None else (),
        key=key.columns if key is not None else None,
        is_key_total=key is not None and key.is_total,
        owner=serving.details.owner,
        grants=serving.details.grants,
        user_triggers=UserTriggers(serving.details.user_triggers),
    )
