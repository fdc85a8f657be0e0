"""Serves stream tables after their refreshes: from the version a served table has recorded to the public stage's own.

The served database alone knows how far a table is served, so nothing here has to be told to anybody else. psycopg is an
optional dependency: what reaches a database is imported when it is needed.
"""

from __future__ import annotations

import logging
import shutil
import threading
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
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Serving
from millstream.catalog.models import StreamTable
from millstream.engine.spark_errors import SPARK_ERRORS, first_line
from millstream.engine.storage import DeltaStore, RangeKind
from millstream.engine.storage.exact_cast import exactly
from millstream.engine.storage.schema import UnsupportedTypeError, arrow_schema, narrowed
from millstream.errors import Code, MillstreamError
from millstream.lake.served_key import ServedKey
from millstream.settings import Settings
from millstream.sources.delta import DeltaInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from millstream.sinks.postgres.ledger import Ledger
    from millstream.sinks.postgres.serve import PostgresSink, Served
    from millstream.sinks.postgres.target import Connection, Target

_log = logging.getLogger(__name__)

# a result or change of more rows goes through files instead of the driver's memory
_MAX_COLLECTED_ROWS = 200_000
_BATCH_ROWS = 50_000
SERVING_SCHEMA = "serving_schema"
"""The detail of a serving that says where its bookkeeping lies, whatever the setting has become."""
_MOVED_FROM = "moved_from"
"""The detail of a serving that says where it was until now, as long as the table there may not be dropped yet."""


@dataclass(frozen=True)
class StageFeed:
    """The public stage of a stream table at its present version, as a served table reads it."""

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
        """What tells a version from the same one of a lake that was restored; None if it is not known any more."""
        return self.store.commit_id(self.table.public_stage.path, version)

    def delta(self, after: int) -> pa.Table | Iterable[pa.Table] | str:
        """The change since a version, one that is large in pieces; or the reason why there is none."""
        path, upto = self.table.public_stage.path, self.version
        columns = [*dict.fromkeys(self._outputs), *([naming.VISIBLE] if self._hides_rows else [])]
        summary = self.store.classify(path, after, upto, columns)
        if summary.kind is RangeKind.REPLACED:
            return "NO_DELTA: the stream table was recomputed"
        if not summary.kind.has_delta:
            return f"NO_DELTA: {summary.reason}"
        changes = self.store.changes(path, after, upto, columns)
        if changes.arrow is not None:
            rows = changes.arrow
            if rows.num_rows <= _MAX_COLLECTED_ROWS:
                return self._shown(rows)
            return map(self._shown, (rows.slice(i, _BATCH_ROWS) for i in range(0, rows.num_rows, _BATCH_ROWS)))
        if summary.feed_rows <= _MAX_COLLECTED_ROWS:  # which may be an estimate by the files' sizes
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
            # Spark writes timestamps in its old format, which knows no nanoseconds of the year 3000
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
        return [str(c) for c in self.table.definition.body["outputs"]]

    @property
    def _hides_rows(self) -> bool:
        return bool(self.table.definition.body["hides_rows"])


class TableServer:
    """Serves stream tables; keeps connections open between refreshes.

    Args:
        spill: a directory for results that are too large for memory.
        key_of: gives the key of a stream table's result, as it is now.
        notify: told what a user should know.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        spill: Path,
        key_of: Callable[[StreamTable], ServedKey],
        notify: Callable[[str], None],
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self.spill = spill
        self.key_of = key_of
        self._notify = notify
        self._idle: dict[tuple[str, int, str], list[Connection]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Give the connections back."""
        with self._lock:
            for connection in (c for kept in self._idle.values() for c in kept):
                connection.close()
            self._idle.clear()

    def disconnect(self, attached: AttachedDatabase) -> None:
        """Give the connections to a database back: its owner may want to drop it."""
        with self._lock:
            for connection in self._idle.pop(_place(attached), []):
                connection.close()

    def serving_of(self, table: StreamTable) -> Serving | None:
        """Where a stream table is served, or None."""
        return next((s for s in self._catalog.servings() if s.table_id == table.id), None)

    def serve(self, table: StreamTable, store: DeltaStore) -> Served | None:
        """Bring what a stream table is served as up to its contents; None if it is not served.

        Raises:
            MillstreamError: SERVE_FAILED, PRIVILEGE_MISSING, DATABASE_UNREACHABLE, ...; the served table is as it was.
        """
        serving = self.serving_of(table)
        if serving is None:
            return None
        self.finish_move(table)
        with self.sink(serving, table) as sink:
            return self._serve(sink, serving, table, store)

    @contextmanager
    def replacing(
        self, table: StreamTable, store: DeltaStore, old: Serving | None, new: Serving | None
    ) -> Iterator[None]:
        """Serve what a stream table will hold, and where it will be served, while the block makes it so in the catalog.

        All that is done in the databases is committed at the end of the block, and undone if that fails. Only a process
        that dies, or a connection that is lost, at that very moment leaves a served table behind the stream table: the
        next refresh serves it.

        Args:
            table: as it will be; without contents it is not served, only made.
            old: where it is served until now.
            new: where it is to be served.

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
        """A serving as it is recorded when it takes the place of another one, until `finish_move`."""
        if old is None or old.name == new.name:
            return new
        place = {"database": old.database, "schema": old.schema, "table": old.table, "details": dict(old.details)}
        return replace(new, details={**new.details, _MOVED_FROM: place})

    def finish_move(self, table: StreamTable) -> None:
        """Drop what a stream table was served as before, should a process have died between the two.

        Raises:
            MillstreamError: DATABASE_UNREACHABLE, DEPENDENTS_EXIST, ...: then it is tried again.
        """
        serving = self.serving_of(table)
        if serving is None or _MOVED_FROM not in serving.details:
            return
        old = Serving(table_id=table.id, **serving.details[_MOVED_FROM])
        if self._catalog.find_database(old.database) is not None:
            with self.sink(old, table) as sink:
                sink.drop_if_served(target_of(old))
        details = {name: value for name, value in serving.details.items() if name != _MOVED_FROM}
        self._catalog.put_serving(replace(serving, details=details))

    def _target(self, serving: Serving, table: StreamTable, store: DeltaStore) -> Target:
        return target_of(serving, StageFeed(store, table, self.spill).schema, self.key_of(table))

    def _serve(self, sink: PostgresSink, serving: Serving, table: StreamTable, store: DeltaStore) -> Served:
        from millstream.sinks.postgres.target import Mark

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
        """What writes into a database on behalf of a stream table.

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
        try:
            from millstream.sinks.postgres.serve import PostgresSink
        except ImportError as e:
            raise MillstreamError(
                Code.DEPENDENCY_MISSING,
                "serving into a PostgreSQL database needs psycopg",
                hint="pip install 'millstream[postgres]'",
            ) from e
        captures = self._catalog.captures(database)
        sources = {c.oid: f"{c.schema}.{c.table}" for c in captures if c.name in table.base_frontier}
        connection = self._connection(attached)
        try:
            yield PostgresSink(connection, self.ledger(serving), sources)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.setdefault(_place(attached), []).append(connection)

    def ledger(self, serving: Serving) -> Ledger:
        """The bookkeeping that a served table is in."""
        from millstream.sinks.postgres.ledger import Ledger

        return Ledger(str(serving.details.get(SERVING_SCHEMA) or self._settings.serving_schema))

    def _connection(self, attached: AttachedDatabase) -> Connection:
        with self._lock:
            kept = self._idle.get(_place(attached), [])
            while kept:
                connection = kept.pop()
                if _is_alive(connection):
                    return connection
        from millstream.sinks.postgres.paths import pin_path
        from millstream.sources.postgres.address import Address
        from millstream.sources.postgres.connection import connect, identify

        connection = connect(Address(attached.address), for_users=True)
        pin_path(connection)
        identity = identify(connection)
        if (identity.system, identity.database) != (attached.system, attached.database):
            connection.close()
            raise MillstreamError(
                Code.DATABASE_REPLACED,
                f"another database answers under the address of {attached.name}",
                hint=f"DETACH {attached.name} and attach it again",
            )
        return connection


def served_schema(name: naming.TableName, fields: StructType) -> pa.Schema:
    """The columns of a result as they are handed to a sink.

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
    """The served table as it shall be; without a schema and a key, to be dropped.

    Raises:
        MillstreamError: UNSUPPORTED_TYPE, NAME_INVALID.
    """
    from millstream.sinks.postgres.target import Target, UserTriggers
    from millstream.sinks.postgres.types import served_columns

    return Target(
        table_id=serving.table_id,
        schema=serving.schema,
        table=serving.table,
        columns=served_columns(schema) if schema is not None else (),
        key=key.columns if key is not None else None,
        is_key_total=key is not None and key.is_total,
        owner=serving.details.get("owner"),
        grants=tuple(serving.details.get("grants", ())),
        user_triggers=UserTriggers(serving.details["user_triggers"]),
    )


def _place(attached: AttachedDatabase) -> tuple[str, int, str]:
    """What a kept connection leads to; another database may be attached under the same name later."""
    return attached.address, attached.system, attached.database


def _is_alive(connection: Connection) -> bool:
    """Whether a connection that was kept is still one; the server may have been restarted."""
    from psycopg import OperationalError

    try:
        connection.execute("SELECT")
    except OperationalError:
        connection.close()
        return False
    return True
