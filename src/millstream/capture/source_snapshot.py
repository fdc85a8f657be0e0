"""One snapshot of a database, in which a tick reads changes and, where needed, whole tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from millstream.catalog.attached import Capture
from millstream.catalog.capture_state import Position
from millstream.engine.spark_errors import SPARK_ERRORS
from millstream.engine.storage import Rows, Txn
from millstream.engine.worker import Worker
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection
from millstream.postgres.identity import Identity
from millstream.results import Portion
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot
from millstream.sources.postgres.load.initial_load import read_small, spark_files, spark_frame
from millstream.sources.postgres.load.spark_reader import coded_error
from millstream.sources.postgres.server.relations import Relation
from millstream.sources.postgres.server.snapshot_transaction import database_state, tick_transaction
from millstream.sources.postgres.values.types import MirrorColumn

_STEP = 2
"""Progress is reported in steps of this many percent."""


@dataclass(frozen=True)
class SourceSnapshot:
    """A transaction of a source database and its snapshot.

    Args:
        position: the snapshot as text.
        relations: the tables that are locked and can be read as a whole, by the ids of their captures.
        exported: the exported snapshot, in which other connections can read these tables.
    """

    connection: Connection
    position: str
    identity: Identity
    relations: Mapping[str, Relation] = field(default_factory=dict)
    exported: ExportedSnapshot | None = None

    def metadata(self, position: Position | None = None) -> dict[str, object]:
        """The metadata of a mirror's commit: its position, and in which database."""
        return {
            "postgres": {
                "position": dict(position or {"snapshot": self.position}),
                "system": str(self.identity.system),
                "timeline": self.identity.timeline,
                "database": self.identity.database,
            }
        }

    @contextmanager
    def contents(
        self, worker: Worker, capture_id: str, columns: Sequence[MirrorColumn], progress: Callable[[str], None]
    ) -> Iterator[Rows]:
        """The rows of a table: on the driver if there are few, otherwise a frame that reads the database only once.

        Raises:
            MillstreamError: PRIVILEGE_MISSING, VALUE_UNSUPPORTED, SNAPSHOT_LOST, ...
        """
        assert self.exported is not None, "the table was locked"
        relation = self.relations[capture_id]
        report = _Report(relation.qualified, progress)
        small = read_small(self.exported, relation, columns, report)
        if small is not None:
            yield small
            return
        frame = spark_frame(worker.spark, self.exported, relation, columns, report).persist()
        try:
            with _workers_errors_coded():
                yield frame
        finally:
            frame.unpersist()

    def load(
        self,
        worker: Worker,
        capture: Capture,
        columns: Sequence[MirrorColumn],
        txn: Txn,
        metadata: Mapping[str, object],
        progress: Callable[[str], None],
    ) -> int:
        """Append the rows of a table to its mirror; returns the mirror's version.

        Raises:
            MillstreamError: PRIVILEGE_MISSING, VALUE_UNSUPPORTED, SNAPSHOT_LOST, ...
        """
        assert self.exported is not None, "the table was locked"
        snapshot, relation = self.exported, self.relations[capture.id]
        report = _Report(relation.qualified, progress)
        small = read_small(snapshot, relation, columns, report)
        if small is not None:
            return worker.store.append(capture.path, small, txn, metadata).version
        with _workers_errors_coded():
            made = worker.store.append_written(
                capture.path,
                lambda directory: spark_files(worker.spark, snapshot, relation, columns, directory, report),
                txn,
                metadata,
            )
            if made is None:
                frame = spark_frame(worker.spark, snapshot, relation, columns, report)
                made = worker.store.append(capture.path, frame, txn, metadata)
        return made.version


@contextmanager
def _workers_errors_coded() -> Iterator[None]:
    """Restore the codes of errors that Spark's workers have raised."""
    try:
        yield
    except SPARK_ERRORS as error:
        found = coded_error(error)
        if found is None:
            raise
        raise found from error


class _Report:
    """Reports the number of rows read, at intervals."""

    def __init__(self, name: str, progress: Callable[[str], None]) -> None:
        self._name = name
        self._progress = progress
        self._reported = -1

    def __call__(self, done: int, expected: int) -> None:
        step = 100 * done // max(1, expected) // _STEP
        if step > self._reported:
            self._reported = step
            self._progress(Portion.of(f"reading {self._name}: {done:,} of about {expected:,} rows", done, expected))


@contextmanager
def source_snapshot(
    address: Address, connection: Connection, relations: Mapping[str, Relation], trusted: Sequence[str] = ()
) -> Iterator[SourceSnapshot]:
    """A snapshot of the given connection, or, if whole tables are to be read, of a connection of its own.

    Args:
        trusted: the setting `trusted_owners`.
    """
    if not relations:
        with tick_transaction(connection) as here:
            yield SourceSnapshot(connection, here.snapshot, here.identity)
        return
    with ExportedSnapshot(address, list(relations.values()), trusted=trusted) as exported:
        here = database_state(exported.connection)
        yield SourceSnapshot(exported.connection, exported.position, here.identity, relations, exported)
