"""One snapshot of a database, in which changes, and if need be whole tables, are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from millstream.catalog.attached import Capture, Position
from millstream.engine.spark_errors import SPARK_ERRORS
from millstream.engine.storage import Rows, Txn
from millstream.engine.worker import Worker
from millstream.results import Portion
from millstream.sources.postgres.address import Address
from millstream.sources.postgres.bootstrap import Snapshot, coded_error, read_small, spark_files, spark_frame
from millstream.sources.postgres.connection import Connection, Identity
from millstream.sources.postgres.poll import polling, where
from millstream.sources.postgres.relations import Relation
from millstream.sources.postgres.types import MirrorColumn

_TELL_EVERY = 2
"""Progress is told in steps of so many hundredths."""


@dataclass(frozen=True)
class Cut:
    """A transaction that sees one snapshot.

    Args:
        position: the snapshot as text.
        relations: the tables that can be read as a whole, by the ids of their captures.
    """

    connection: Connection
    position: str
    identity: Identity
    relations: Mapping[str, Relation] = field(default_factory=dict)
    snapshot: Snapshot | None = None

    def metadata(self, position: Position | None = None) -> dict[str, object]:
        """What a mirror's commit says: where in which database it is."""
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
        self, worker: Worker, capture_id: str, columns: Sequence[MirrorColumn], tell: Callable[[str], None]
    ) -> Iterator[Rows]:
        """The rows of a table: on the driver if they are few, else a frame that is read from the database once.

        Raises:
            MillstreamError: PRIVILEGE_MISSING, VALUE_UNSUPPORTED, SNAPSHOT_LOST, ...
        """
        assert self.snapshot is not None, "the table was locked"
        relation = self.relations[capture_id]
        report = _Report(relation.qualified, tell)
        small = read_small(self.snapshot, relation, columns, report)
        if small is not None:
            yield small
            return
        frame = spark_frame(worker.spark, self.snapshot, relation, columns, report).persist()
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
        tell: Callable[[str], None],
    ) -> int:
        """Append the rows of a table to its mirror; gives the mirror's version.

        Raises:
            MillstreamError: PRIVILEGE_MISSING, VALUE_UNSUPPORTED, SNAPSHOT_LOST, ...
        """
        assert self.snapshot is not None, "the table was locked"
        snapshot, relation = self.snapshot, self.relations[capture.id]
        report = _Report(relation.qualified, tell)
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
    """Give the errors that Spark's workers have met their codes back."""
    try:
        yield
    except SPARK_ERRORS as error:
        told = coded_error(error)
        if told is None:
            raise
        raise told from error


class _Report:
    """Tells of the rows read, now and then."""

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._told = -1

    def __call__(self, done: int, expected: int) -> None:
        step = 100 * done // max(1, expected) // _TELL_EVERY
        if step > self._told:
            self._told = step
            self._tell(Portion.of(f"reading {self._name}: {done:,} of about {expected:,} rows", done, expected))


@contextmanager
def cutting(
    address: Address, connection: Connection, relations: Mapping[str, Relation], trusted: Sequence[str] = ()
) -> Iterator[Cut]:
    """A cut by a connection that is open already, or, where tables are to be read as a whole, by one of its own.

    Args:
        trusted: the setting `trusted_owners`.
    """
    if not relations:
        with polling(connection) as here:
            yield Cut(connection, here.snapshot, here.identity)
        return
    with Snapshot(address, list(relations.values()), trusted=trusted) as snapshot:
        here = where(snapshot.connection)
        yield Cut(snapshot.connection, snapshot.position, here.identity, relations, snapshot)
