"""Compiles queries against the current lake, for new and renewed definitions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from millstream.catalog.models import StreamTable
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake.change_feeds import ChangeFeeds
from millstream.lake.compiled import Compiled, compile_query
from millstream.lake.dialects import (
    Dialect,
    as_written,
    default_dialect,
    naming_the_dialect,
    parse_dialect,
    pointing_into,
    require_ansi,
)
from millstream.lake.exact_names import Exactly
from millstream.lake.name_resolution import AsItIs, AsRecorded
from millstream.lake.objects import Lake
from millstream.naming import TableName
from millstream.results import RefreshMode
from millstream.sql.parse import parse_query
from millstream.sql.postgres import translate
from millstream.sql.refusals.in_every_mode import refuse_in_every_mode
from millstream.sql.statements import Effect, Other, parse_statement
from millstream.sql.text.recursion import with_union_all


class Compiler:
    """Compiles queries over the tables, views and functions of a lake."""

    def __init__(self, lake: Lake, workers: Workers, feeds: ChangeFeeds) -> None:
        self._lake = lake
        self._workers = workers
        self._feeds = feeds

    def compile(self, query: str, mode: RefreshMode, dialect: str | None = None) -> Compiled:
        """Compile a query against the lake as it is now, with the settings of the user's session."""
        if parse_dialect(dialect or self.default_dialect(query)) is not Dialect.SPARK:
            with nullcontext() if dialect else naming_the_dialect():
                return self._permitted(self._compile_translated(query, mode, AsItIs(self._lake, self._feeds.obstacle)))
        _require_query(query)
        self._lake.sync()
        worker = self._workers.here()
        worker.use(self._workers.semantics())
        _refuse_locks(query)
        analysed = with_union_all(self._lake.analysable(query))
        with pointing_into(query, analysed):
            worker.analyzer.describe_text(analysed)  # errors that point into the user's own text
        sources = AsItIs(self._lake, self._feeds.obstacle)
        try:
            compiled = compile_query(query, mode, sources, worker.analyzer, self._functions(query, sources))
            return self._permitted(compiled)
        except MillstreamError as error:
            if error.code is not Code.SYNTAX_ERROR:
                raise
            raise MillstreamError(
                Code.UNSUPPORTED_SQL,
                f"Spark accepts the query, but millstream cannot process it: {error.message}",
                position=error.position,
                sql=error.sql,
                hint="write it differently, or store its result in a table",
            ) from error

    def default_dialect(self, query: str) -> Dialect:
        """The dialect of a query if the user does not name one."""
        self._lake.sync()
        return default_dialect(query, self._lake)

    def compile_now(self, table: StreamTable, mode: RefreshMode) -> Compiled:
        """Compile a table's query over its current sources, with the settings it was defined with.

        Raises:
            MillstreamError: the query is no longer valid.
        """
        definition = table.definition
        live = AsItIs(self._lake, self._feeds.obstacle, definition.body.sources)
        if definition.dialect != Dialect.SPARK:  # the types it was translated for may have changed
            compiled = self._compile_translated(definition.original_query, mode, live, definition.settings)
        else:
            compiled = self._compile_again(table, mode, live, self._functions(definition.original_query, live))
        return self._permitted(compiled)

    def compile_as_recorded(self, table: StreamTable, mode: RefreshMode) -> Compiled:
        """Compile a table's query for a mode, over its sources and views as they were when it was defined."""
        body = table.definition.body
        return self._compile_again(table, mode, AsRecorded(body), body.functions)

    def _permitted(self, compiled: Compiled) -> Compiled:
        """The compiled query, if the roles of attached databases may select from the views that it names.

        Whether the views' texts may read their sources was checked when the views were looked up.

        Raises:
            MillstreamError: PRIVILEGE_MISSING.
        """
        for name in sorted(compiled.named_views & compiled.attached_views.keys()):
            rights = self._lake.attached.view(TableName.parse(name).parts, exact=True)
            if rights is not None and (error := rights.naming_error()) is not None:
                raise error
        return compiled

    def _compile_translated(
        self, query: str, mode: RefreshMode, sources: AsItIs, semantics: Mapping[str, str] | None = None
    ) -> Compiled:
        """Translate a PostgreSQL query and compile the translation; errors refer to the text the user wrote."""
        self._lake.sync()
        worker = self._workers.here()
        worker.use(semantics if semantics is not None else self._workers.semantics())
        require_ansi(semantics if semantics is not None else self._workers.semantics())
        translation = translate(query, Exactly(sources), worker.analyzer)
        text = translation.spark_text
        analysed = with_union_all(self._lake.analysable(text))
        with pointing_into(query, text, analysed):
            worker.analyzer.describe_text(analysed)
            compiled = compile_query(text, mode, sources, worker.analyzer, self._functions(text, sources))
        return as_written(compiled, query, translation.notices)

    def _compile_again(
        self, table: StreamTable, mode: RefreshMode, sources: AsItIs | AsRecorded, functions: Mapping[str, str]
    ) -> Compiled:
        self._lake.sync()
        worker = self._workers.here()
        worker.use(table.definition.settings)
        translation = table.definition.body.translation
        compiled = compile_query(
            translation.text if translation is not None else table.definition.original_query,
            mode,
            sources,
            worker.analyzer,
            functions,
            is_faithful=table.definition.body.is_faithful,
        )
        if translation is None:
            return compiled
        return as_written(compiled, table.definition.original_query, translation.notices)

    def _functions(self, query: str, sources: AsItIs) -> dict[str, str]:
        return self._lake.functions_in([query, *sources.view_texts(query)])


def _require_query(text: str) -> None:
    """Refuse what is not a query before Spark sees it: Spark would run a DELETE instead of describing it."""
    statement = parse_statement(text)
    if not isinstance(statement, Other) or statement.effect is not Effect.READ:
        raise MillstreamError(
            Code.SYNTAX_ERROR, "a stream table is defined by exactly one SELECT", sql=text, hint="write SELECT or WITH"
        )


def _refuse_locks(query: str) -> None:
    """Refuse locking clauses before Spark reports them as a syntax error."""
    try:
        tree = parse_query(query)
    except MillstreamError:
        return  # Spark may accept the query, or gives a better message
    refuse_in_every_mode(tree, query)
