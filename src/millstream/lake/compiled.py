"""Compiles a query: its inputs, its stages, and whether and why it can only be recomputed.

A definition is compiled when it is created, and again by each process that refreshes it. The catalog keeps the query's
text and the columns of its sources, so that `SELECT *` keeps its meaning.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from sqlglot import exp

from millstream.diff import rules as _rules  # noqa: F401  (registers the delta rules)
from millstream.diff.plan import Kind, Layout
from millstream.diff.stages import PUBLIC, NamedStage, split
from millstream.engine.analyzer import SparkAnalyzer
from millstream.errors import Code, MillstreamError
from millstream.lake.attached_names import UNREADABLE
from millstream.lake.reads import Known, over, over_unknown, read_by
from millstream.lake.stand_ins import empty
from millstream.naming import RESERVED_PREFIX
from millstream.ops import Column, Item, Project, Relation, Scan, walk
from millstream.ops.expressions import cast, col
from millstream.ops.render import to_sql
from millstream.ops.standalone import standalone
from millstream.results import RefreshMode
from millstream.sql.lowering.column_names import with_names
from millstream.sql.lowering.lower import Lowered, lower
from millstream.sql.parse import parse_query, print_query, start_of
from millstream.sql.refusals.clock_literals import clock_literal_error, clock_word_in, has_clock_word
from millstream.sql.refusals.unsupported import RECOMPUTE
from millstream.sql.refusals.validate import CONTEXT_NAMES, CURRENT_TIME_NAMES, validate
from millstream.sql.rewrites import rewrite
from millstream.sql.sources import Source, Sources, View
from millstream.sql.text.recursion import unrolled, with_union_all
from millstream.sql.text.table_exchange import (
    EPOCH,
    bind_current_time,
    exchange_tables,
    table_references,
    uses_current_time,
    words,
)

# Errors for which DIFFERENTIAL refuses a query that AUTO and FULL accept.
_ONLY_RECOMPUTED = {
    Code.UNSUPPORTED_SQL,
    Code.VOLATILE_FUNCTION,
    Code.UNFAITHFUL_SQL,
    Code.UNSUPPORTED_TYPE,
    Code.SOURCE_NO_CHANGE_FEED,
}
# Spark reports what is wrong with a query, and it has accepted the query before it is lowered.
_FOR_SPARK_TO_SAY = {Code.UNKNOWN_COLUMN, Code.UNKNOWN_TABLE, Code.QUERY_INVALID}
AGES_BY_REFRESH = (
    "the current time is the data timestamp of each refresh: between refreshes nothing ages in or out, so that the "
    "result is as old as the schedule allows"
)
RECOMPUTED_BY_TIME = "each refresh recomputes the table, even if no source has changed"
# Types that a Delta table cannot store, also nested in others; field names do not match.
_UNSTORABLE = re.compile(r"(?:^|[<:,])(void|interval(?: \w+)*)(?=$|[>,])")


@dataclass(frozen=True)
class Compiled:
    """What a query reads and how it is maintained; without stages it is recomputed each time."""

    query: str
    columns: tuple[Column, ...]
    sources: Mapping[str, Source]
    views: Mapping[str, str]
    functions: Mapping[str, str]
    stages: tuple[NamedStage, ...]
    reasons: tuple[str, ...]
    notices: tuple[str, ...]
    is_faithful: bool | None
    """Whether our printed SQL means what the user wrote; None if that was not checked."""
    names: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    """The source or view that each name in the texts refers to."""
    closed_text: str | None = None
    """The lowered query as Spark SQL over its sources' ids, if SQL leaves the result of the user's text open."""
    original: str | None = None
    """What the user wrote, if `query` is a translation of it."""
    dialect: str = "spark"
    translation_notices: tuple[str, ...] = ()
    attached_views: Mapping[str, View] = field(default_factory=dict)
    """The views of attached databases among `views`, if this compilation looked them up."""
    relation: Relation | None = None
    """The lowered query that `stages` maintain."""

    @cached_property
    def named_views(self) -> frozenset[str]:
        """The views that the query names directly; the others are read through views."""
        named = {self.names[r.parts] for r in table_references(self.query)}
        return frozenset(named & self.views.keys())

    @property
    def written(self) -> str:
        """The query as the user wrote it."""
        return self.original if self.original is not None else self.query

    @property
    def is_incremental(self) -> bool:
        """Whether the query can be maintained by deltas."""
        return bool(self.stages)

    @cached_property
    def follows_time(self) -> bool:
        """Whether the query uses the current time, so that its result changes even if its sources do not."""
        return any(uses_current_time(text) for text in (self.query, *self.views.values()))

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """The stored tables, the public one last."""
        if self.stages:
            return tuple(named.stage.layout for named in self.stages)
        columns = tuple(Column(f"c{i}", c.type) for i, c in enumerate(self.columns, start=1))
        return (Layout(Kind.BAG, columns, (), tuple(c.name for c in columns)),)

    @cached_property
    def used_columns(self) -> Mapping[str, tuple[str, ...]]:
        """The columns of each source that the query reads; all of them if it is only recomputed."""
        used: dict[str, set[str]] = {source: set() for source in self.sources}
        for named in self.stages:
            for node in walk(named.stage.body):
                if isinstance(node, Scan) and node.source in used:
                    used[node.source].update(node.origin)
        if not self.stages:
            used = {s.id: {c.name for c in s.columns if c.type != UNREADABLE} for s in self.sources.values()}
        return {name: tuple(sorted(names)) for name, names in used.items()}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the stored tables' layout: contents stored with another layout cannot be maintained."""
        shape = [[layout.kind, [[c.name, c.type] for c in layout.columns], layout.outputs] for layout in self.layouts]
        return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]

    def over(self, tables: Mapping[str, str]) -> str:
        """The query's text with its tables replaced by other SQL and its views by their texts."""
        return over(self.query, self.names, self.views, tables)

    def oracle_over(self, tables: Mapping[str, str]) -> str:
        """The text whose result the contents must equal: the query, or `closed_text` if it leaves its result open."""
        if self.closed_text is None:
            return self.over(tables)
        return exchange_tables(self.closed_text, lambda reference: tables[reference.parts[0]])


def compile_query(
    query: str,
    mode: RefreshMode,
    sources: Sources,
    analyzer: SparkAnalyzer,
    functions: Mapping[str, str],
    is_faithful: bool | None = None,
) -> Compiled:
    """Compile a query for a refresh mode.

    Args:
        sources: the lake as it is, or, for an existing definition, what was recorded with it, even if its sources
            have changed since.
        functions: the lake's SQL functions that the query calls, with their texts.
        is_faithful: the result of an earlier check of our printed SQL; None checks it with Spark, on the current lake.

    Raises:
        MillstreamError: the query is invalid, or the mode is DIFFERENTIAL and it cannot be maintained.
    """
    names, tables, found = read_by(query, sources)
    views = {name: view.text for name, view in found.items()}
    _refuse_opaque(functions)
    empties = {s.id: empty(s) for s in tables.values()}
    unrolled(query)  # refuses a recursion that cannot be run
    over_empty = with_union_all(over(query, names, views, empties))
    columns = analyzer.describe_text(over_empty)
    _refuse_unreadable(query, columns, Known(names, tables, views), analyzer)
    _check_columns(columns, query)
    if has_clock_word(over_empty) and (word := clock_word_in(analyzer.analysed(over_empty))) is not None:
        raise clock_literal_error(word, query)
    stages: tuple[NamedStage, ...] = ()
    reasons: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    closed_text: str | None = None
    relation: Relation | None = None
    if mode is RefreshMode.FULL:
        reasons = ("the refresh mode is FULL",)
    else:
        try:
            _refuse_silent(tables.values())
            _refuse_volatile(functions)
            lowered = _lowered(query, Known(names, tables, views), analyzer)
            if is_faithful is None:
                printed = print_query(with_names(parse_query(query), lowered.made_names))
                # the same time for both; otherwise the optimised plans of one query differ
                is_faithful = _prints_faithfully(
                    bind_current_time(with_union_all(query), EPOCH),
                    bind_current_time(with_union_all(printed), EPOCH),
                    len(columns),
                    analyzer,
                    lambda text: bind_current_time(over(text, names, views, empties), EPOCH),
                    lambda text: bind_current_time(over_unknown(text, names, tables, views), EPOCH),
                )
            relation, stages, closed_text = _maintained(lowered, query, columns, analyzer, is_faithful)
            notices = lowered.notices
        except MillstreamError as error:
            if mode is not RefreshMode.AUTO or error.code not in _ONLY_RECOMPUTED:
                raise
            reasons = (f"{error.code}: {error.message}",)
    if any(uses_current_time(text) for text in (query, *views.values())):
        notices = (*notices, AGES_BY_REFRESH if stages else f"{AGES_BY_REFRESH}; {RECOMPUTED_BY_TIME}")
    return Compiled(
        query=query,
        columns=columns,
        sources=tables,
        views=views,
        functions=functions,
        stages=stages,
        reasons=reasons,
        notices=notices,
        is_faithful=is_faithful,
        names=names,
        closed_text=closed_text,
        attached_views={name: view for name, view in found.items() if view.mark is not None},
        relation=relation,
    )


def _prints_faithfully(
    query: str,
    printed: str,
    columns: int,
    analyzer: SparkAnalyzer,
    over_empty: Callable[[str], str],
    over_real: Callable[[str], str],
) -> bool:
    """Whether the parsed and printed query means the same to Spark as the query the user wrote.

    The parser silently changes the meaning of a few constructs, e.g. adjacent string literals.
    """
    if analyzer.plan_alike(over_empty(query), over_empty(printed), columns):
        return True
    # Perhaps only the name of a function differs. Optimised plans show that, but need the real tables, which takes
    # longer: empty ones would be optimised away.
    return analyzer.plan_alike(over_real(query), over_real(printed), columns, optimised=True)


def _maintained(
    lowered: Lowered, query: str, columns: tuple[Column, ...], analyzer: SparkAnalyzer, is_faithful: bool
) -> tuple[Relation, tuple[NamedStage, ...], str | None]:
    """The lowered query, its stages, and its text if that is the oracle."""
    relation = rewrite(lowered.relation)
    validate(relation, query, analyzer)
    if not is_faithful:
        raise MillstreamError(
            Code.UNFAITHFUL_SQL,
            "the query could not be rewritten with its meaning certainly unchanged",
            hint=f"a literal or function in it is read differently when printed again; {RECOMPUTE}",
        )
    if [c.type for c in relation.schema] != [c.type for c in columns]:
        items = tuple(
            Item(cast(col(c.name), wanted.type) if c.type != wanted.type else col(c.name), Column(c.name, wanted.type))
            for c, wanted in zip(relation.schema, columns, strict=True)
        )
        relation = Project(relation, items)
    stages = split(relation)
    assert stages[-1].name == PUBLIC
    return relation, stages, to_sql(standalone(relation), hints=False) if lowered.open_results else None


def _lowered(query: str, sources: Sources, analyzer: SparkAnalyzer) -> Lowered:
    try:
        return lower(parse_query(query), query, sources, analyzer)
    except MillstreamError as error:
        if error.code not in _FOR_SPARK_TO_SAY:
            raise
        raise MillstreamError(
            Code.UNSUPPORTED_SQL,
            f"Spark accepts the query, but millstream cannot process it: {error.message}",
            position=error.position,
            sql=error.sql,
            hint=RECOMPUTE,
        ) from error


def _check_columns(columns: Sequence[Column], query: str) -> None:
    seen: set[str] = set()
    for number, column in enumerate(columns):
        name = column.name.lower()
        if name in seen:
            raise _duplicate(column.name, number, query)
        if name.startswith(RESERVED_PREFIX):
            raise MillstreamError(Code.NAME_INVALID, f"column names starting with {RESERVED_PREFIX} are reserved")
        if found := _UNSTORABLE.search(column.type):
            is_void = found.group(1) == "void"
            raise MillstreamError(
                Code.UNSUPPORTED_TYPE,
                f"the column {column.name} has the type {column.type}, which a table cannot store",
                hint="cast the NULL to a type" if is_void else "cast it to STRING, or convert it to a number",
            )
        seen.add(name)


def _duplicate(name: str, number: int, query: str) -> MillstreamError:
    """The error for a repeated column name; it points at the SELECT item of the second column, or at the first star."""
    hint = "give one of them an alias"
    tree: exp.Expr = parse_query(query)
    while isinstance(tree, exp.SetOperation | exp.Subquery):
        tree = tree.this
    items = tree.expressions
    item = items[number] if number < len(items) else None
    if star := next((i for i in items if i.is_star), None):
        item, hint = star, f"name the columns and {hint}; a join with USING has one column of each name it joins by"
    position = start_of(item) if item is not None else None
    return MillstreamError(
        Code.DUPLICATE_COLUMN, f"two output columns are called {name}", position=position, sql=query, hint=hint
    )


# Refusals in every mode, or in all but FULL


def _refuse_unreadable(query: str, columns: Sequence[Column], known: Known, analyzer: SparkAnalyzer) -> None:
    """Refuse a query that uses an unreadable column: without the column its output changes, or it becomes invalid."""
    unreadable = [(s, name, why) for s in known.tables.values() for name, why in s.unreadable]
    if not unreadable:
        return
    rest = {s.id: empty(replace(s, columns=_readable(s))) for s in known.tables.values()}
    try:
        text = over(query, known.names, known.views, rest)
        if analyzer.describe_text(with_union_all(text)) == tuple(columns):
            return
    except MillstreamError:
        pass
    said = {w for text in (query, *known.views.values()) for w in words(text)}
    source, name, why = next((u for u in unreadable if u[1].lower() in said), unreadable[0])
    raise MillstreamError(
        Code.UNSUPPORTED_TYPE,
        f"the column {name} of {source.id} cannot be read: {why}",
        hint="list the columns you need, without this one",
    )


def _readable(source: Source) -> tuple[Column, ...]:
    names = {name for name, _ in source.unreadable}
    return tuple(c for c in source.columns if c.name not in names)


def _refuse_opaque(functions: Mapping[str, str]) -> None:
    for name, text in functions.items():
        said = words(text)
        if "select" in said:
            raise MillstreamError(
                Code.UNSUPPORTED_SQL,
                f"the SQL function {name} reads tables, whose changes cannot be seen through it",
                hint="write its query into the stream table's query",
            )
        if clock := said & CURRENT_TIME_NAMES:
            raise MillstreamError(
                Code.VOLATILE_FUNCTION,
                f"the SQL function {name} depends on the current time ({', '.join(sorted(clock))})",
                hint="pass the time to it as an argument",
            )


def _refuse_volatile(functions: Mapping[str, str]) -> None:
    for name, text in functions.items():
        if context := words(text) & CONTEXT_NAMES:
            raise MillstreamError(
                Code.VOLATILE_FUNCTION,
                f"the SQL function {name} may return another result for the same row ({', '.join(sorted(context))})",
                hint=RECOMPUTE,
            )


def _refuse_silent(sources: Iterable[Source]) -> None:
    for source in sources:
        if source.obstacle is not None:
            raise MillstreamError(
                Code.SOURCE_NO_CHANGE_FEED,
                f"the changes of {source.id} cannot be read: {source.obstacle}",
                hint=RECOMPUTE,
            )
