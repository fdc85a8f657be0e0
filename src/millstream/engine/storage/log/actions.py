"""The actions of a Delta log, as far as they matter here, from their JSON.

Files keep the action they came from: a commit that gives a file a new deletion vector repeats all its other fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class DataFile:
    """A file of an `add` or `remove` action."""

    path: str
    size: int
    data_change: bool
    action: Json = field(repr=False, compare=False)

    @classmethod
    def parse(cls, action: Json) -> DataFile:
        """Read the value of an `add` or `remove` action."""
        return cls(action["path"], int(action.get("size") or 0), bool(action.get("dataChange", True)), action)

    @property
    def deletion_vector(self) -> Json | None:
        """The descriptor of the file's deletion vector."""
        return self.action.get("deletionVector") or None

    @cached_property
    def stats(self) -> Json:
        """The file's statistics; empty if the writer omitted them."""
        text = self.action.get("stats")
        return json.loads(text) if text else {}

    @cached_property
    def num_records(self) -> int | None:
        """Rows in the file, including dead ones."""
        count = self.stats.get("numRecords")
        return int(count) if count is not None else None

    @property
    def num_dead(self) -> int:
        """Rows that the deletion vector removes."""
        vector = self.deletion_vector
        return int(vector["cardinality"]) if vector else 0

    @property
    def num_live(self) -> int | None:
        """Rows that a reader sees."""
        return None if self.num_records is None else self.num_records - self.num_dead


@dataclass(frozen=True)
class Metadata:
    """The table's identity, schema and properties."""

    table_id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]

    @classmethod
    def parse(cls, action: Json) -> Metadata:
        """Read the value of a `metaData` action."""
        return cls(
            action["id"],
            action["schemaString"],
            tuple(action.get("partitionColumns") or ()),
            dict(action.get("configuration") or {}),
        )

    @property
    def has_change_feed(self) -> bool:
        """Whether commits under this metadata record their changes."""
        return self.configuration.get("delta.enableChangeDataFeed", "false").lower() == "true"

    @property
    def maps_columns(self) -> bool:
        """Whether the files use different column names from the table."""
        return self.configuration.get("delta.columnMapping.mode", "none").lower() != "none"


@dataclass(frozen=True)
class Protocol:
    """What a reader and a writer of the table must understand."""

    min_reader: int
    min_writer: int
    reader_features: frozenset[str]
    writer_features: frozenset[str]

    @classmethod
    def parse(cls, action: Json) -> Protocol:
        """Read the value of a `protocol` action."""
        return cls(
            int(action["minReaderVersion"]),
            int(action["minWriterVersion"]),
            frozenset(action.get("readerFeatures") or ()),
            frozenset(action.get("writerFeatures") or ()),
        )


@dataclass(frozen=True)
class LogCommit:
    """One version of the log."""

    version: int
    info: Json
    protocol: Protocol | None
    metadata: Metadata | None
    transactions: Mapping[str, int]
    adds: tuple[DataFile, ...]
    removes: tuple[DataFile, ...]
    changes: tuple[DataFile, ...]

    @property
    def metrics(self) -> Json:
        """The writer's own counts, as strings."""
        return self.info.get("operationMetrics") or {}

    @property
    def changes_rows(self) -> bool:
        """Whether any row may differ from the version before."""
        return bool(self.changes) or any(f.data_change for f in (*self.adds, *self.removes))

    @property
    def touches_files(self) -> bool:
        """Whether files were added or removed, even if no row changed."""
        return bool(self.adds or self.removes)

    def count(self, *metrics: str) -> int | None:
        """The sum of the metrics; `None` if one is missing."""
        values = [self.metrics.get(m) for m in metrics]
        return None if any(v is None for v in values) else sum(int(str(v)) for v in values)


def parse_commit(version: int, actions: Iterable[Json]) -> LogCommit:
    """Sort the actions of one commit by kind."""
    by_kind: dict[str, list[Json]] = {}
    for action in actions:
        for kind, value in action.items():
            if value is not None:
                by_kind.setdefault(kind, []).append(value)
    return LogCommit(
        version=version,
        info=_only(by_kind.get("commitInfo")) or {},
        protocol=Protocol.parse(p) if (p := _only(by_kind.get("protocol"))) else None,
        metadata=Metadata.parse(m) if (m := _only(by_kind.get("metaData"))) else None,
        transactions={t["appId"]: int(t["version"]) for t in by_kind.get("txn", ())},
        adds=tuple(map(DataFile.parse, by_kind.get("add", ()))),
        removes=tuple(map(DataFile.parse, by_kind.get("remove", ()))),
        changes=tuple(map(DataFile.parse, by_kind.get("cdc", ()))),
    )


def _only(values: Sequence[Json] | None) -> Json | None:
    return values[-1] if values else None
