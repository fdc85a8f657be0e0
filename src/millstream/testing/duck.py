"""Runs a stream table's stages on DuckDB: the same operators and steps as on Spark, thousands of times a minute.

DuckDB stands in for Spark as the engine of the steps and as the oracle, the full query. Stored tables are DuckDB
tables; a stored row's place is its `rowid`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import duckdb
from sqlglot import exp

from millstream import naming
from millstream.diff.aggregate.accumulator import OLD
from millstream.diff.bag import BagStage
from millstream.diff.inputs import delta_name, new_name
from millstream.diff.keyed import KeyedStage
from millstream.diff.partition import PartitionStage
from millstream.diff.plan import (
    CHANGES,
    FRONTIER,
    MORE,
    NET,
    RECOMPUTED,
    REMOVED,
    SHOWN,
    STATE,
    STORE,
    STORED,
    AnyStep,
    Fixpoint,
)
from millstream.diff.recursive import RecursiveStage
from millstream.diff.stages import PUBLIC, NamedStage, split
from millstream.ops import Column, Relation, render
from millstream.ops.clock import NOW, at, filled_in
from millstream.ops.render import to_sql
from millstream.ops.standalone import standalone
from millstream.sql.lowering.current_time import with_one_current_time
from millstream.sql.lowering.lower import lower
from millstream.sql.parse import parse_query
from millstream.sql.refusals.validate import validate
from millstream.sql.rewrites import rewrite
from millstream.testing.analyzer import DuckAnalyzer, Tables, duck_type
from millstream.testing.values import Row, quoted_names, values

Schema = tuple[tuple[str, tuple[Column, ...]], ...]
Batch = Mapping[str, Sequence[tuple[Row, int]]]

MAX_RECURSION = 200
START = datetime(2024, 1, 1, 1)


@functools.cache
def shared_connection() -> duckdb.DuckDBPyConnection:
    """The process's connection: opening one takes longer than a hundred refreshes of small tables."""
    db = duckdb.connect()
    # With a handful of rows, planning is most of the work. A case that grows large is a mistake in the test: it must
    # fail immediately, and fill neither the memory nor the disk.
    db.execute("CREATE MACRO raise_error(message) AS error(message)")
    db.execute("SET threads = 1; PRAGMA disable_optimizer; SET memory_limit = '1GB'; SET temp_directory = ''")
    db.execute("SET TimeZone = 'UTC'")
    return db


@dataclass(frozen=True)
class DuckPlan:
    """A query compiled for DuckDB: its stages and, built on first use, the texts of their steps."""

    query: str
    stages: tuple[NamedStage, ...]
    oracle: str
    _texts: dict[Relation, str] = field(default_factory=dict)

    def steps(self, named: NamedStage, changed: frozenset[str], at_once: bool) -> tuple[AnyStep, ...]:
        """The steps of a stage."""
        return named.stage.steps(changed & frozenset(named.inputs), at_once=at_once)

    def text(self, relation: Relation) -> str:
        """The relation as a query."""
        if relation not in self._texts:
            self._texts[relation] = _sql(relation)
        return self._texts[relation]


def compile_query(query: str, tables: Mapping[str, tuple[Column, ...]]) -> DuckPlan:
    """Compile a query over source tables; equal ones are compiled once."""
    return _compile(query, tuple(tables.items()))


@functools.lru_cache(maxsize=128)
def _compile(query: str, tables: Schema) -> DuckPlan:
    analyzer = DuckAnalyzer(shared_connection())
    tree = parse_query(query)
    lowered = lower(tree, query, Tables(dict(tables)), analyzer)
    relation = rewrite(lowered.relation)
    validate(relation, query, analyzer)
    # if SQL allows several results, the oracle is the query of the operators, which allow only one
    oracle = standalone(relation) if lowered.open_results else tree
    return DuckPlan(query, split(relation), oracle_text(oracle))


def oracle_text(query: exp.Query) -> str:
    """A query in DuckDB's SQL, with the current time as a parameter."""
    timed = at(with_one_current_time(query), NOW)
    assert isinstance(timed, exp.Query)
    return to_sql(timed, "duckdb")


@dataclass
class DuckStreamTable:
    """A stream table over DuckDB tables: loaded once, then refreshed after each batch of changes.

    All tables are temporary tables of the connection, so two stream tables in use at the same time need one connection
    each.
    """

    query: str
    tables: Mapping[str, tuple[Column, ...]]
    db: duckdb.DuckDBPyConnection = field(default_factory=shared_connection)
    steps_run: list[str] = field(default_factory=list)
    oracle: str | None = None
    """The query in DuckDB's SQL, if it cannot be translated from its text."""
    strategies: list[str] = field(default_factory=list)
    """How the last refresh computed the change of recursions."""
    at_once: bool = False
    """How the next refresh looks up stored rows; see `KeyedStage.steps`."""
    now: datetime = START
    """The current time."""

    def __post_init__(self) -> None:
        self.before = self.now
        self.plan = compile_query(self.query, self.tables)
        read = {name for named in self.stages for name in named.inputs}
        self.rows: dict[str, Counter[Row]] = {name: Counter() for name in self.tables if name in read}
        self.pending: dict[str, list[tuple[Row, int]]] = {name: [] for name in self.rows}

    @property
    def stages(self) -> tuple[NamedStage, ...]:
        """The stages in the order they are refreshed."""
        return self.plan.stages

    # Changes

    def change(self, batch: Batch) -> None:
        """Apply weighted rows to the sources and keep them as the change feed of the next refresh.

        Changes to tables that the query does not read are ignored.
        """
        for name in self.rows.keys() & batch.keys():
            self.pending[name] += batch[name]
            for row, weight in batch[name]:
                self.rows[name][row] += weight
            assert all(n >= 0 for n in self.rows[name].values()), f"the test removes rows of {name} that do not exist"

    def pass_time(self, hours: int) -> None:
        """Change the time of the next refresh; a clock that is corrected may also go back."""
        self.now += timedelta(hours=hours)

    # Refreshes

    def load(self) -> None:
        """The initial load of all stages."""
        script: list[str] = []
        for name in self.rows:
            script += [
                *self._bind_source(name),
                f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT * FROM {new_name(name)}",
            ]
        self._execute(script)
        for named in self.stages:
            self._load(named)
            self._execute([_bind_stage(named)])
        self._done()

    def refresh(self) -> None:
        """An incremental refresh of all stages from the pending changes."""
        self.steps_run, self.strategies = [], []
        changed = {name for name, rows in self.pending.items() if rows}
        self._execute([text for name in changed for text in self._bind_source(name)])
        changed.add(naming.CLOCK)
        for named in self.stages:
            if steps := self.plan.steps(named, frozenset(changed), self.at_once):
                self._run(named, steps)
                self._execute(_apply(named, [step.name for step in steps]))
                changed.add(named.name)
        self.at_once = not self.at_once  # refreshes alternate between both
        self._done()

    def can_append(self) -> bool:
        """Whether the pending changes can only add rows to the result."""
        stage = self.stages[-1].stage
        only_inserts = all(weight > 0 for rows in self.pending.values() for _, weight in rows)
        return only_inserts and len(self.stages) == 1 and isinstance(stage, BagStage) and stage.is_monotone

    def append(self) -> None:
        """The refresh of a table that can only grow: its additions, without looking at the stored rows."""
        changed = frozenset(name for name, rows in self.pending.items() if rows)
        named = self.stages[-1]
        assert isinstance(named.stage, BagStage)
        if changed:
            script = [text for name in changed for text in self._bind_source(name)]
            script += [_create(NET, _sql(named.stage.additions(changed).relation)), _append(named)]
            self._execute(script)
        self._done()
        self.steps_run = []

    def _done(self) -> None:
        self.before, self.pending = self.now, {name: [] for name in self.rows}

    def _load(self, named: NamedStage) -> None:
        load = named.stage.load()
        if isinstance(load, Relation):
            self._execute([_create(_stored(named), self.plan.text(load))])
            return
        self._repeat(load)
        names = quoted_names(c.name for c in named.stage.layout.columns)
        self._execute([_create(_stored(named), _repeated(names, load.name))])

    def _run(self, named: NamedStage, steps: Sequence[AnyStep]) -> None:
        names = quoted_names(c.name for c in named.stage.layout.columns)
        place = f"'f' AS {naming.FILE}, rowid AS {naming.ROW}"
        self._execute(
            [
                f"CREATE OR REPLACE TEMP VIEW {STATE} AS SELECT {names}, {place} FROM {_stored(named)}",
                f"CREATE OR REPLACE TEMP VIEW {STORED} AS SELECT {names} FROM {_stored(named)}",
            ]
        )
        there: set[str] = set()  # of two steps with the same name, one runs
        for step in steps:
            if not self._applies(step):
                if step.name not in there:
                    first = step.seed if isinstance(step, Fixpoint) else step
                    self._execute([_create(step.name, f"{self.plan.text(first.relation)} LIMIT 0")])
                continue
            there.add(step.name)
            self.steps_run.append(f"{named.name}.{step.name}")
            if isinstance(step, Fixpoint):
                self._repeat(step)
                if step.strategy:
                    self.strategies.append(step.strategy)
            else:
                self._execute([_create(step.name, self.plan.text(step.relation))])

    def _applies(self, step: AnyStep) -> bool:
        """Whether the step named in its condition requires it."""
        if step.only_if:
            return self._has_more(step.only_if)
        return not (isinstance(step, Fixpoint) and step.unless and self._has_more(step.unless))

    def _has_more(self, name: str) -> bool:
        return bool(self._fetch(f"SELECT 1 FROM {name} WHERE {MORE.name} LIMIT 1"))

    def _repeat(self, step: Fixpoint) -> None:
        """Repeat a step over its own result until there is none."""
        columns = quoted_names(c.name for c in step.columns)
        seed = f"SELECT {columns} FROM ({self.plan.text(step.seed.relation)})"
        self._execute([_create(FRONTIER, seed), _create(step.name, f"FROM {FRONTIER}")])
        for _ in range(MAX_RECURSION):
            if not self._fetch(f"SELECT 1 FROM {FRONTIER} LIMIT 1"):
                return
            # the body reads the frontier, so the frontier is replaced only after that
            found = _create("next_frontier", self.plan.text(step.body.relation))
            self._execute([found, _create(FRONTIER, "FROM next_frontier"), f"INSERT INTO {step.name} FROM {FRONTIER}"])
        raise AssertionError("the recursion does not end")

    def shown(self) -> Counter[str]:
        """The rows inserted, updated and deleted for the user, as counted by the last refresh, if it ran."""
        steps = {name.removeprefix(f"{PUBLIC}.") for name in self.steps_run if name.startswith(f"{PUBLIC}.")}
        found: Counter[str] = Counter()
        for step in steps & {CHANGES, RECOMPUTED}:
            for (kind,) in self._fetch(f"SELECT {SHOWN.name} FROM {step}"):
                found[kind] += 1
        if NET in steps:
            outputs = quoted_names(dict.fromkeys(self.stages[-1].stage.layout.outputs))
            net = f"SELECT sum({naming.WEIGHT}) AS n FROM {NET} GROUP BY {outputs}"
            for (weight,) in self._fetch(f"SELECT n FROM ({net}) WHERE n <> 0"):
                found["insert" if weight > 0 else "delete"] += abs(weight)
        del found["none"]
        return found

    # The oracle

    def contents(self) -> Counter[Row]:
        """The stored result as a bag."""
        return _bag(row for _, row in self.keyed_contents())

    def keyed_contents(self) -> list[tuple[Row, Row]]:
        """The stored result, each row with its key; a bag's rows have the empty key."""
        named = self.stages[-1]
        layout = named.stage.layout
        where = f" WHERE {naming.VISIBLE}" if layout.hides_rows else ""
        names = quoted_names((*layout.key, *layout.outputs))
        rows = self._fetch(f"SELECT {names} FROM {_stored(named)}{where}")
        return [(row[: len(layout.key)], row[len(layout.key) :]) for row in rows]

    def expected(self) -> Counter[Row]:
        """The query's result now as a bag."""
        return _bag(self._fetch(self.oracle or self.plan.oracle))

    # Plumbing

    def _bind_source(self, name: str) -> list[str]:
        types = [(c.name, duck_type(c.type)) for c in self.tables[name]]
        weighted = [*types, (naming.WEIGHT, "BIGINT")]
        return [
            _create(new_name(name), values(types, list(self.rows[name].elements()))),
            _create(delta_name(name), values(weighted, [(*row, weight) for row, weight in self.pending[name]])),
        ]

    def _execute(self, script: Sequence[str]) -> None:
        if script:
            self.db.execute(self._timed(";\n".join(script)))

    def _fetch(self, text: str) -> list[Any]:
        return self.db.execute(self._timed(text)).fetchall()

    def _timed(self, text: str) -> str:
        """A text with its parameters filled in; a script cannot have any."""
        now, before = (f"TIMESTAMPTZ '{moment.isoformat()}+00'" for moment in (self.now, self.before))
        return filled_in(text, now, before, "duckdb")


def _apply(named: NamedStage, steps: Sequence[str]) -> list[str]:
    """Replace stored rows as the steps require, and keep the changes as the stage's own change feed."""
    stored = _stored(named)
    names = [c.name for c in named.stage.layout.columns]
    feed = f"(SELECT *, 0::BIGINT AS {naming.WEIGHT} FROM {stored} LIMIT 0)"
    is_hidden = named.name != PUBLIC
    if not isinstance(named.stage, KeyedStage):
        changed = f"SELECT {quoted_names(names)}, {naming.WEIGHT} FROM {NET}"
        bag = [_create(delta_name(named.name), f"{feed} UNION ALL {changed}")] if is_hidden else []
    if isinstance(named.stage, PartitionStage):
        return [
            *bag,
            f"DELETE FROM {stored} WHERE rowid IN (SELECT {naming.ROW} FROM {NET} WHERE {naming.WEIGHT} < 0)",
            _append(named),
        ]
    if isinstance(named.stage, BagStage | RecursiveStage):
        going = f"(SELECT coalesce(-sum({naming.WEIGHT}), 0) FROM {NET} WHERE {MORE.name})"
        found = f"(SELECT count(*) FROM {REMOVED})"
        return [
            *bag,
            f"SELECT CASE WHEN {going} <> {found} THEN error('rows to remove are not there') END",
            f"DELETE FROM {stored} WHERE rowid IN (SELECT {naming.ROW} FROM {REMOVED})",
            _append(named),
        ]
    replacing = [s for s in steps if s in {CHANGES, RECOMPUTED}]
    olds = [f"{s} WHERE {STORE.name} IN ('update', 'delete')" for s in replacing]
    news = [f"{s} WHERE {STORE.name} IN ('update', 'insert')" for s in replacing]
    gone = [f"SELECT {quoted_names(n + OLD for n in names)}, -1 FROM {old}" for old in olds]
    come = [f"SELECT {quoted_names(names)}, 1 FROM {new}" for new in news]
    return [
        *([_create(delta_name(named.name), " UNION ALL ".join([feed, *gone, *come]))] if is_hidden else []),
        *(f"DELETE FROM {stored} WHERE rowid IN (SELECT {naming.ROW + OLD} FROM {old})" for old in olds),
        *(f"INSERT INTO {stored} SELECT {quoted_names(names)} FROM {new}" for new in news),
    ]


def _append(named: NamedStage) -> str:
    """Add the rows of positive weight, each as often as its weight."""
    names = quoted_names(c.name for c in named.stage.layout.columns)
    return f"INSERT INTO {_stored(named)} {_repeated(names, NET)}"


def _repeated(names: str, weighted: str) -> str:
    """The rows of positive weight, each as often as its weight."""
    once = f"SELECT {names}, unnest(range({naming.WEIGHT})) FROM {weighted} WHERE {naming.WEIGHT} > 0"
    return f"SELECT {names} FROM ({once})"


def _bind_stage(named: NamedStage) -> str:
    return f"CREATE OR REPLACE TEMP VIEW {new_name(named.name)} AS SELECT * FROM {_stored(named)}"


def _create(name: str, query: str) -> str:
    return f"CREATE OR REPLACE TEMP TABLE {name} AS {query}"


def _stored(named: NamedStage) -> str:
    return f"stored_{named.name}"


def _sql(relation: Relation) -> str:
    query = render(relation)
    for select in query.find_all(exp.Select):
        select.set("hint", None)
    return query.sql(dialect="duckdb", comments=False, copy=False)


def _bag(rows: Any) -> Counter[Row]:
    return Counter(tuple(_plain(v) for v in row) for row in rows)


def _plain(value: Any) -> Any:
    """A hashable value; doubles without the digits that depend on the order of a sum."""
    if isinstance(value, list):
        return tuple(_plain(v) for v in value)
    return round(value, 9) if isinstance(value, float) else value
