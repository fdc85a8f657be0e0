"""`verify`: compares a stream table's contents with its query, as Spark or as PostgreSQL answers it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path

from millstream.catalog import Catalog
from millstream.catalog.models import SourceKind, StreamTable
from millstream.cycles import Cycle
from millstream.engine.spark_errors import SPARK_ERRORS, first_line
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.naming import TableName
from millstream.notices import NoticeWarning, warn
from millstream.passes.held_snapshot import HeldSnapshot
from millstream.passes.verify_against_postgres import AgainstPostgres
from millstream.refresh.cycle_plan import were_refreshed_together
from millstream.refresh.full_text import run_text
from millstream.refresh.inputs import BoundInput, base_tables, bind_inputs, paths_of, upstream_of
from millstream.refresh.verify import compare, contents_of
from millstream.refresh.verify_cycle import fixpoint_by_text
from millstream.results import Action, InitiatedBy, VerifyResult
from millstream.service.argument_values import parse_oracle
from millstream.service.refreshing import Refreshing
from millstream.service.replacing import dag_of
from millstream.service.runtime import Runtime
from millstream.settings import Settings


class Verifying:
    """Compares stream tables with their queries.

    Args:
        runtime: returns the part of the lake that needs Spark, and starts it if necessary.
        spill: a directory for answers that are too large for memory.
    """

    def __init__(
        self, catalog: Catalog, settings: Settings, runtime: Callable[[], Runtime], refreshing: Refreshing, spill: Path
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._runtime = runtime
        self._refreshing = refreshing
        self._spill = spill

    def verify(self, name: str, against: str | None) -> VerifyResult:
        """Compare the contents with the query at the frontier; `against` is `postgres`, or None for Spark.

        Raises:
            MillstreamError: NOT_POPULATED, SOURCE_MISSING, FRONTIER_LOST; ORACLE_INVALID; with `postgres`
                NOT_COMPARABLE, ORACLE_FAILED, VALUE_UNSUPPORTED, and the errors of a refresh.
        """
        table = self._catalog.get(TableName.parse(name))
        oracle = parse_oracle(against)
        if table.data_timestamp is None or table.public_stage.version is None:
            raise MillstreamError(
                Code.NOT_POPULATED,
                f"{name} has not been refreshed since it was defined",
                hint=f"REFRESH STREAM TABLE {name}",
            )
        try:
            return self._with_spark(table) if oracle is None else self._with_postgres(table)
        except SPARK_ERRORS as e:
            raise MillstreamError(
                Code.FRONTIER_LOST,
                f"{name} cannot be compared with its query at its frontier: {first_line(e)}",
                hint="if a source was vacuumed, refresh first",
            ) from e

    def _with_postgres(self, table: StreamTable) -> VerifyResult:
        if not self._catalog.databases():
            raise MillstreamError(Code.NOT_COMPARABLE, f"{table.name} reads no attached database")

        def refresh(held: HeldSnapshot) -> None:
            result = self._refreshing.refresh(table.name, InitiatedBy.MANUAL, held=held)
            if result.action in (Action.FULL, Action.REINITIALIZE):
                warn(
                    f"{table.name} was recomputed ({result.reason}) to reach the snapshot that it is compared at: "
                    "the result of earlier refreshes was not compared",
                    NoticeWarning,
                )

        runtime, dag = self._runtime(), dag_of(self._catalog)
        order = dag.refresh_order([str(table.name)])
        if circular := sorted(dag.peers.keys() & set(order)):
            raise MillstreamError(
                Code.NOT_COMPARABLE,
                f"{table.name} cannot be compared with PostgreSQL's answer: {', '.join(circular)} read each other",
                hint="verify without --against compares it with the fixpoint",
            )
        chain = [self._catalog.get(TableName.parse(n)) for n in order]
        oracle = AgainstPostgres(self._catalog, self._settings, runtime.recorded.compiled, chain, refresh, self._spill)
        return oracle.verify(runtime.workers.here())

    def _with_spark(self, table: StreamTable) -> VerifyResult:
        runtime = self._runtime()
        worker, compiled = runtime.workers.here(), runtime.recorded.compiled(table)
        if cycle := runtime.recorded.cycle_with(table, compiled):
            return self._with_cycle(table, cycle)
        worker.use(table.definition.settings)
        expected = run_text(worker, compiled, self._inputs(table, compiled), _time_of(table))
        contents = contents_of(worker.store, table, compiled)
        return compare(contents, expected, self._settings.verify_relative_tolerance)

    def _with_cycle(self, table: StreamTable, cycle: Cycle) -> VerifyResult:
        """Compare a member with the fixpoint of its cycle.

        Its query over the stored rows of the others would accept rows that only support each other.
        """
        runtime = self._runtime()
        worker, recorded = runtime.workers.here(), runtime.recorded
        tables = {str(t.name): t for t in self._catalog.list() if str(t.name) in cycle}  # one snapshot of all members
        members = {name: (t, recorded.compiled(t)) for name, t in tables.items()}
        is_populated = all(t.data_timestamp is not None for t in tables.values())
        if not is_populated or not were_refreshed_together(list(members.values()), worker.store):
            raise MillstreamError(
                Code.FRONTIER_LOST,
                f"{table.name} is in a cycle whose members were not refreshed together",
                hint=f"REFRESH STREAM TABLE {table.name}",
            )
        inputs = {name: self._inputs(t, compiled, cycle) for name, (t, compiled) in members.items()}
        table, compiled = members[str(table.name)]
        expected = fixpoint_by_text(worker, members, inputs, self._settings)[str(table.name)]
        contents = contents_of(worker.store, table, compiled)
        return compare(contents, expected, self._settings.verify_relative_tolerance)

    def _inputs(self, table: StreamTable, compiled: Compiled, without: Collection[str] = ()) -> dict[str, BoundInput]:
        """The inputs of a table at its frontier."""
        paths = paths_of(base_tables(self._catalog, (table,)))
        for dependency in table.definition.dependencies:
            if dependency.kind is SourceKind.TABLE and paths[dependency.name] != dependency.source_id:
                raise MillstreamError(
                    Code.FRONTIER_LOST,
                    f"{dependency.name} was replaced since {table.name} was refreshed",
                    hint="refresh first",
                )
        upstream = upstream_of(self._catalog, table)
        versions = dict(table.frontier)
        return bind_inputs(table, compiled, versions, paths, upstream, at_frontier=True, without=without)


def _time_of(table: StreamTable) -> datetime:
    assert table.data_timestamp is not None, "it has contents"
    return table.data_timestamp
