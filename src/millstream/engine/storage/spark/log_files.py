"""The files of a Delta log read through Spark, for lakes that are not directories on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.engine.storage.location import LOG_DIRECTORY
from millstream.engine.storage.log.actions import Json
from millstream.engine.storage.log.log_files import Listing, LogGoneError, Stamp, commit_name, listing_of

_KINDS = ("protocol", "metaData", "txn", "add", "sidecar")


class SparkLogFiles:
    """A log anywhere that Spark can read; checking whether a file exists takes no job, reading it takes one."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._root = path
        self._log = f"{path}/{LOG_DIRECTORY}"

    def listing(self) -> Listing:
        """All commits and checkpoints; empty if there is no table."""
        files = self._files(self._log)
        if files is None:
            return Listing(frozenset(), {})
        paths = files.select(F.substring_index("path", "/", -1).alias("name")).collect()
        return listing_of(row["name"] for row in paths)

    def newest(self, at_least: int | None) -> int | None:
        """The table's version, searched from a version known to exist."""
        if at_least is None:
            return self.listing().newest
        version = at_least
        while self._files(f"{self._log}/{commit_name(version + 1)}") is not None:
            version += 1
        return version

    def stamp(self, version: int) -> Stamp | None:
        """The time and size of a commit's file; `None` if it no longer exists."""
        files = self._files(f"{self._log}/{commit_name(version)}")
        if files is None:
            return None
        row = files.select(F.unix_micros("modificationTime").alias("time"), "length").first()
        return (0, row["time"], row["length"]) if row else None

    def commits(self, versions: Iterable[int]) -> Iterator[tuple[int, list[Json]]]:
        """The actions of each commit."""
        wanted = {f"{self._log}/{commit_name(v)}": v for v in versions}
        if not wanted:
            return
        try:
            lines = self._spark.read.text(list(wanted)).select("value", "_metadata.file_name").collect()
        except AnalysisException as e:
            raise _gone(e, "commits are no longer in the log") from e
        found: dict[int, list[Json]] = {v: [] for v in wanted.values()}
        for line in lines:
            if line["value"].strip():
                found[int(line["file_name"].split(".")[0])].append(json.loads(line["value"]))
        yield from found.items()

    def checkpoint(self, names: tuple[str, ...]) -> Iterator[Json]:
        """The actions of a checkpoint, in any of the three layouts."""
        for action in self._actions([f"{self._log}/{name}" for name in names]):
            sidecar = action.get("sidecar")
            if sidecar:
                name = sidecar["path"].rsplit("/", 1)[-1]
                yield from self._actions([f"{self._log}/_sidecars/{name}"])
            else:
                yield action

    def _actions(self, paths: list[str]) -> Iterator[Json]:
        reader = self._spark.read
        try:
            if paths[0].endswith(".json"):
                rows = reader.text(paths).collect()
            else:
                frame = reader.parquet(*paths)
                kinds = [F.col(k) for k in _KINDS if k in frame.columns]
                rows = frame.select(F.to_json(F.struct(*kinds)).alias("value")).collect()
        except AnalysisException as e:
            raise _gone(e, "a checkpoint is no longer in the log") from e
        for row in rows:
            action = json.loads(row["value"])
            if action:
                yield action

    def missing(self, logged_paths: Iterable[str]) -> list[str]:
        """The data or change files that no longer exist; at least one of them if there are any."""
        inside = [p for p in logged_paths if not p.startswith("/") and "://" not in p]
        if not inside or self._files(*(f"{self._root}/{unquote(p)}" for p in inside)) is not None:
            return []
        return [next(p for p in inside if self._files(f"{self._root}/{unquote(p)}") is None)]

    def _files(self, *paths: str) -> DataFrame | None:
        try:
            return self._spark.read.format("binaryFile").load(list(paths))
        except AnalysisException as e:
            _gone(e, "")
            return None


def _gone(error: AnalysisException, message: str) -> LogGoneError:
    """A missing path as `LogGoneError`; any other error is raised unchanged."""
    if error.getCondition() != "PATH_NOT_FOUND":
        raise error
    return LogGoneError(message)
