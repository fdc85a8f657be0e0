"""Declares where stream tables are served, and stops serving them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millstream.catalog import Catalog
from millstream.catalog.attached import Serving
from millstream.catalog.models import StreamTable
from millstream.catalog.serving_details import ServingDetails
from millstream.engine.worker import Workers
from millstream.errors import Code, MillstreamError
from millstream.lake import Compiled
from millstream.lake.served_key import ServedKey
from millstream.naming import cut, fold
from millstream.notices import NoticeWarning, ServingWarning, warn
from millstream.serving.table_server import StageFeed, TableServer, served_schema, target_of
from millstream.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

_PARTS = re.compile(r'\s*("(?:[^"]|"")+"|`(?:[^`]|``)+`|[^\s."`]+)\s*(?:\.|\Z)')
_TRIGGERS = ("auto", "off", "on")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where and how a stream table should be served.

    Args:
        to: `database.schema.table`; the schema is `public` by default.
        user_triggers: `auto` lets users' triggers fire, `off` does not; None takes the setting.
        owner: the role that should own the table.
        grants: roles that may read it.
    """

    to: str
    user_triggers: str | None = None
    owner: str | None = None
    grants: Sequence[str] = ()


class ServingDefinitions:
    """Where the stream tables of a lake are served.

    Args:
        key_of: returns the key of a query's result.
    """

    def __init__(
        self,
        catalog: Catalog,
        workers: Workers,
        server: TableServer,
        settings: Settings,
        key_of: Callable[[Compiled], ServedKey],
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._server = server
        self._settings = settings
        self._key_of = key_of

    def check(self, options: ServeOptions) -> None:
        """Refuse impossible options before anything is created.

        Raises:
            MillstreamError: NAME_INVALID, NOT_ATTACHED, NAME_TAKEN, SETTING_INVALID, DATABASE_UNREACHABLE.
        """
        database, schema, table = _parsed(options.to)
        self._triggers(options)
        if self._catalog.find_database(database) is None:
            known = ", ".join(d.name for d in self._catalog.databases()) or "none"
            raise MillstreamError(
                Code.NOT_ATTACHED, f"there is no attached database {database}", hint=f"attached databases: {known}"
            )
        for other in self._catalog.servings(database):
            if (other.schema, other.table) == (schema, table):
                owner = self._catalog.find_by_id(other.table_id)
                raise MillstreamError(
                    Code.NAME_TAKEN,
                    f"{owner.name if owner else other.table_id} is already served as {other.name}",
                    hint="serve to another name",
                )

    def declare(self, table: StreamTable, options: ServeOptions) -> Serving | None:
        """Create the table in its database, empty, and record it; None if it exists and only its options change.

        Raises:
            MillstreamError: SERVE_FAILED if it is already served under another name; NAME_TAKEN, PRIVILEGE_MISSING,
                UNSUPPORTED_TYPE.
        """
        if (present := self._server.serving_of(table)) is not None:
            if self.is_served_as(table, options.to):
                self._change(table, present, options)
                return None
            raise MillstreamError(
                Code.SERVE_FAILED,
                f"{table.name} is already served as {present.name}",
                hint=f"ALTER STREAM TABLE {table.name} STOP SERVING first",
            )
        self.check(options)
        serving = self._declared(table, options)
        feed = StageFeed(self._workers.here().store, table, self._server.spill)
        target = target_of(serving, feed.schema, self._server.key_of(table))
        live = {s.table_id for s in self._catalog.servings()}
        with self._server.sink(serving, table) as sink:
            # Recorded first, so that after a crash the next refresh or STOP SERVING finds the table in the database.
            self._catalog.put_serving(serving)
            try:
                sink.declare(target, self._catalog.lake_id(), str(table.name), live)
            except BaseException as e:
                # A lost connection may have committed or not; the ledger shows it later.
                if not isinstance(e, MillstreamError) or e.code is not Code.DATABASE_UNREACHABLE:
                    self._catalog.drop_serving(table.id)
                raise
        return serving

    def _declared(self, table: StreamTable, options: ServeOptions) -> Serving:
        database, schema, name = _parsed(options.to)
        return Serving(
            table_id=table.id,
            database=database,
            schema=schema,
            table=name,
            details=ServingDetails(
                serving_schema=self._settings.serving_schema,
                user_triggers=self._triggers(options),
                owner=options.owner,
                grants=tuple(options.grants),
            ),
        )

    def wanted(self, table: StreamTable, options: ServeOptions | None) -> Serving | None:
        """Where and how a stream table should be served: as the options say, or as it is now.

        Raises:
            MillstreamError: NAME_INVALID, NOT_ATTACHED, NAME_TAKEN, SETTING_INVALID, DATABASE_UNREACHABLE.
        """
        present = self._server.serving_of(table)
        if options is None:
            return present
        if present is not None and self.is_served_as(table, options.to):
            return self._changed(present, options)
        self.check(options)
        return self._declared(table, options)

    def rehearse(self, table: StreamTable, compiled: Compiled, options: ServeOptions) -> None:
        """Check whether a stream table with a new query can be served under another name: do it, and roll it back.

        Raises:
            MillstreamError: what `stop` and `declare` will raise.
        """
        fields = self._workers.here().analyzer.schema(compiled.columns)
        self.rehearse_result(table, served_schema(table.name, fields), self._key_of(compiled), options)

    def rehearse_result(self, table: StreamTable, schema: pa.Schema, key: ServedKey, options: ServeOptions) -> None:
        """The same for a result with those columns and that key."""
        new, old = self._declared(table, options), self._server.serving_of(table)
        live = {s.table_id for s in self._catalog.servings() if s.table_id != table.id}
        target = target_of(new, schema, key)
        with self._server.sink(new, table) as sink, sink.rehearsal():
            if old is not None and old.database == new.database:
                sink.accounting_in(self._server.ledger(old)).drop(target_of(old), cascade=False)
            sink.declare(target, self._catalog.lake_id(), str(table.name), live)
        if old is not None and old.database != new.database:
            with self._server.sink(old, table) as sink, sink.rehearsal():
                sink.drop(target_of(old), cascade=False)

    def _change(self, table: StreamTable, serving: Serving, options: ServeOptions) -> None:
        """Apply the given options to a served table."""
        changed = self._changed(serving, options)
        if changed != serving:
            with self._server.sink(changed, table) as sink:
                sink.grant(target_of(changed))
            self._catalog.put_serving(changed)

    def _changed(self, serving: Serving, options: ServeOptions) -> Serving:
        """A serving with the given options; the others stay as they are."""
        details = serving.details
        if options.user_triggers is not None:
            details = replace(details, user_triggers=self._triggers(options))
        if options.owner is not None:
            details = replace(details, owner=options.owner)
        grants = tuple(dict.fromkeys([*details.grants, *options.grants]))
        return replace(serving, details=replace(details, grants=grants))

    def is_served_as(self, table: StreamTable, to: str) -> bool:
        """Whether a stream table is already served under a name."""
        serving = self._server.serving_of(table)
        return serving is not None and (serving.database, serving.schema, serving.table) == _parsed(to)

    def stop(
        self, table: StreamTable, *, cascade: bool = False, keep_table: bool = False, lost: str | None = None
    ) -> None:
        """Drop the table a stream table is served as, if any; `keep_table` leaves it to its users.

        Args:
            lost: a database to which no connection is made: the table served there stays, and the catalog forgets it.

        Raises:
            MillstreamError: DEPENDENTS_EXIST if objects of the database depend on it, unless `cascade`;
                DATABASE_UNREACHABLE, unless `keep_table`.
        """
        serving = self._server.serving_of(table)
        if serving is None:
            return
        if serving.database == lost:
            self._catalog.drop_serving(table.id)
            return
        if not keep_table:
            self._server.finish_move(table)
        target = target_of(serving)
        try:
            with self._server.sink(serving, table) as sink:
                if keep_table:
                    sink.release(target)
                else:
                    sink.drop(target, cascade=cascade)
        except MillstreamError as e:
            if not keep_table or e.code not in {Code.DATABASE_UNREACHABLE, Code.DATABASE_REPLACED, Code.NOT_ATTACHED}:
                raise
            warn(f"{serving.name} and its entry in the ledger were not removed: {e.message}", ServingWarning)
        self._catalog.drop_serving(table.id)

    def undo(self, table: StreamTable) -> None:
        """Undo a declaration, even if its database cannot be reached."""
        try:
            self.stop(table)
        except MillstreamError:
            self.stop(table, keep_table=True)

    def refuse_other_columns(self, table: StreamTable, compiled: Compiled) -> None:
        """Refuse a new query whose result does not fit the served table.

        Raises:
            MillstreamError: INCOMPATIBLE_CHANGE.
        """
        serving = self._server.serving_of(table)
        if serving is None:
            return
        if [(c.name, c.type) for c in compiled.columns] != list(table.definition.columns):
            raise MillstreamError(
                Code.INCOMPATIBLE_CHANGE,
                f"the new query has other columns, and {table.name} is served as {serving.name}",
                hint=f"ALTER STREAM TABLE {table.name} STOP SERVING, alter it, then SERVE TO {serving.name} again",
            )

    def _triggers(self, options: ServeOptions) -> str:
        chosen = (options.user_triggers or self._settings.user_triggers).lower()
        if chosen not in _TRIGGERS:
            raise MillstreamError(Code.SETTING_INVALID, f"user_triggers = {chosen!r}", hint="it must be auto or off")
        if chosen == "on":
            warn("user_triggers = 'on' is an old name for 'auto'", NoticeWarning)
            return "auto"
        return chosen


def _parsed(text: str) -> tuple[str, str, str]:
    """A served table's name: parts in quotes as they are, others in lower case, as PostgreSQL reads them."""
    parts = [p[1:-1].replace(p[0] * 2, p[0]) if p[0] in '"`' else fold(p) for p in _PARTS.findall(text) if p]
    is_whole = "".join(_PARTS.sub("", text).split()) == ""
    if len(parts) == 2:
        parts.insert(1, "public")
    if len(parts) != 3 or not is_whole or text.rstrip().endswith("."):
        raise MillstreamError(
            Code.NAME_INVALID,
            f"{text!r} is not the name of a table in a database",
            hint="write database.schema.table, e.g. shop.public.totals",
        )
    return parts[0].lower(), cut(parts[1]), cut(parts[2])
