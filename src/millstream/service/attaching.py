"""Attaching PostgreSQL databases, and taking them away again; none of it needs Spark.

psycopg is an optional dependency: whatever reaches a database is imported when it is needed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.catalog import Catalog
from millstream.catalog.attached import BEHIND, RESYNC, AttachedDatabase, Capture, Position
from millstream.catalog.models import ObjectKind, StreamTable
from millstream.catalog.numeric_ranges import NUMERIC, NumericRanges
from millstream.errors import Code, MillstreamError
from millstream.naming import DEFAULT_SCHEMA, RESERVED_PREFIX, TableName
from millstream.refresh.locks import Locks
from millstream.results import SourceStatus
from millstream.service.freshness import Waiting, age, position_of, state_of
from millstream.service.notices import LeftoverWarning, NoticeWarning, tell
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.sources.postgres.connection import Connection, Identity
    from millstream.sources.postgres.installed import BufferSettings
    from millstream.sources.postgres.slot import Slot

CDC = ("auto", "trigger", "wal")
BUFFER_SCHEMA = "buffer_schema"
"""The detail of an attached database that says where its buffers lie, whatever the setting has become."""
ROLE = "role"
"""The detail of an attached database that says which role captures and serves: whose all is that millstream made."""

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
# What the first part of a name may be in Spark: its catalogs, its own schemas, and the formats of files.
_RESERVED = {DEFAULT_SCHEMA, "spark_catalog", "session", "system", "global_temp", "information_schema"}
_RESERVED |= {"delta", "parquet", "orc", "csv", "json", "text", "avro"}


class Attaching:
    """The attached databases of a lake."""

    def __init__(
        self, catalog: Catalog, locks: Locks, settings: Settings, root: Path, clock: Callable[[], datetime]
    ) -> None:
        self._catalog = catalog
        self._locks = locks
        self._settings = settings
        self._root = root
        self._clock = clock

    # Attaching

    def attach(self, name: str, url: str, cdc: str, numeric: Mapping[str, str]) -> AttachedDatabase:
        """Check everything capture needs of a database, all at once, and record it.

        One that is attached under that name already is from now on reached and captured that way.

        Raises:
            MillstreamError: NAME_INVALID, NAME_TAKEN, SETTING_INVALID, ADDRESS_INVALID, SECRET_IN_ADDRESS,
                DATABASE_UNREACHABLE, DATABASE_UNFIT, PRIVILEGE_MISSING with the statements that grant what is missing;
                UNKNOWN_TABLE, UNKNOWN_COLUMN, UNSUPPORTED_TYPE for a column that takes no range.
        """
        name, cdc = name.strip().lower(), cdc.strip().lower()
        self._check_name(name)
        if cdc not in CDC:
            raise MillstreamError(Code.SETTING_INVALID, f"cdc = {cdc!r}", hint=f"it must be one of {', '.join(CDC)}")
        with _driver():
            from millstream.sources.postgres.address import Address
            from millstream.sources.postgres.connection import connect
        address = Address.parse(url)
        with self._locks.acquire([lock_key(name)]):
            known = self._catalog.find_database(name)
            if known is None:
                self._require_free(name)
            ranges = (NumericRanges.of(known) if known is not None else NumericRanges({})).changed(numeric)
            with connect(address) as connection:
                item = self._checked(connection, name, str(address), cdc, known)
                if known is None:
                    self._refuse_second(item)
                else:
                    item = self._changed(connection, known, item)
                _check_ranges(connection, NumericRanges({}).changed(numeric))
            item = replace(item, details={**item.details, NUMERIC: ranges.dump()})
            self._catalog.put_database(item, captures=self._of_other_ranges(name, ranges))
        return item

    def _of_other_ranges(self, name: str, ranges: NumericRanges) -> list[Capture]:
        """The captures whose mirrors have other types now, marked so that the next tick looks at them."""
        from millstream.sources.postgres.types import has_range

        found: list[Capture] = []
        for capture in self._catalog.captures(name):
            declared = ranges.of_table(capture.schema, capture.table)
            if not all(has_range(pg_type, spark_type, declared.get(c)) for c, pg_type, spark_type in capture.columns):
                kept = {k: v for k, v in capture.details.items() if k != BEHIND}  # what it was left for may be over
                found.append(replace(capture, details={**kept, RESYNC: "the range of a numeric is another"}))
        return found

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name.startswith(RESERVED_PREFIX):
            raise MillstreamError(
                Code.NAME_INVALID,
                f"{name!r} is no name for a database",
                hint="use one of letters, digits and underscores, such as shop",
            )
        if name in _RESERVED:
            raise MillstreamError(Code.NAME_INVALID, f"{name} means something else in SQL", hint="use another name")

    def _require_free(self, name: str) -> None:
        """No schema of the lake: `shop.orders` must mean one thing."""
        schemas = {item.name.schema for item in self._catalog.lake_objects()}
        schemas |= {table.name.schema for table in self._catalog.list()}
        if name in schemas or (self._root / "tables" / f"{name}.db").exists():
            raise MillstreamError(
                Code.NAME_TAKEN, f"the lake has a schema {name}", hint="attach the database under another name"
            )

    def _checked(
        self, connection: Connection, name: str, address: str, cdc: str, known: AttachedDatabase | None
    ) -> AttachedDatabase:
        from millstream.sources.postgres.connection import identify
        from millstream.sources.postgres.installed import BufferSettings
        from millstream.sources.postgres.own_objects import current_role, refuse_foreign_schema
        from millstream.sources.postgres.privileges import missing_grants

        if known is not None:
            _refuse_another(known, identify(connection))
        schema = self._settings.change_buffer_schema if known is None else self.buffers(known).schema
        refuse_foreign_schema(connection, BufferSettings(schema=schema, lake=self._catalog.lake_id()))
        missing = missing_grants(connection, schema, wal=cdc == "wal")
        if missing.required:
            raise MillstreamError(
                Code.PRIVILEGE_MISSING,
                f"the role of {address} lacks what capture needs",
                hint="have an administrator of the database run:\n  " + "\n  ".join(missing.required),
            )
        identity = identify(connection)
        if cdc == "wal":
            _require_logical(connection)
        if missing.by_schema:
            tell(
                f"no table of these schemas of {name} can be read; if one should be, run in the database:\n  "
                + "\n  ".join(missing.by_schema),
                NoticeWarning,
            )
        return AttachedDatabase(
            name=name,
            address=address,
            cdc=cdc,
            system=identity.system,
            timeline=identity.timeline,
            database=identity.database,
            database_oid=identity.oid,
            details={BUFFER_SCHEMA: schema, ROLE: current_role(connection)},
        )

    def _changed(self, connection: Connection, known: AttachedDatabase, item: AttachedDatabase) -> AttachedDatabase:
        """A database that is attached already, as it is wanted now; the ticks to come see to the rest."""
        from millstream.refresh.capture.record import is_kept, is_whole
        from millstream.refresh.capture.switch import wanted_as
        from millstream.refresh.capture.ways import captured_tables
        from millstream.sources.postgres.fitness import refuse
        from millstream.sources.postgres.transition import survey

        role = known.details.get(ROLE, item.details[ROLE])
        if role != item.details[ROLE]:
            raise MillstreamError(
                Code.NAME_TAKEN,
                f"{known.name} is attached as the role {role}, who owns what millstream made there",
                hint=f"use an address of that role, or DETACH {known.name} first",
            )
        if item.cdc == "wal":
            captures = [c for c in self._catalog.captures(known.name) if is_kept(c) and not is_whole(c)]
            found = survey(connection, self.slot(known), captured_tables(connection, captures))
            if found.obstacles:
                raise refuse(found.obstacles)
        return replace(wanted_as(known, item.cdc), address=item.address)

    def _refuse_second(self, item: AttachedDatabase) -> None:
        for other in self._catalog.databases():
            if (other.system, other.database) == (item.system, item.database):
                raise MillstreamError(
                    Code.NAME_TAKEN,
                    f"the database {item.database} is attached already, as {other.name}",
                    hint=f"use {other.name} in queries: its changes are captured once",
                )

    # Detaching

    def get(self, name: str) -> AttachedDatabase:
        """An attached database.

        Raises:
            MillstreamError: NOT_ATTACHED.
        """
        found = self._catalog.find_database(name.strip().lower())
        if found is None:
            known = ", ".join(d.name for d in self._catalog.databases()) or "none"
            raise MillstreamError(
                Code.NOT_ATTACHED, f"there is no attached database {name}", hint=f"attached are: {known}"
            )
        return found

    def dependents(self, name: str) -> tuple[TableName, ...]:
        """The stream tables that read a database directly, or are served into it."""
        served = {serving.table_id for serving in self._catalog.servings(name)}
        return tuple(t.name for t in self._catalog.list() if t.id in served or _reads(t, name))

    def _refuse_dependents(self, name: str) -> None:
        servings = {s.table_id: s.name for s in self._catalog.servings(name)}
        said = [f"{t.name} reads it" for t in self._catalog.list() if _reads(t, name)]
        said += [f"{t.name} is served as {servings[t.id]}" for t in self._catalog.list() if t.id in servings]
        if said:
            raise MillstreamError(
                Code.DEPENDENTS_EXIST,
                f"{name} is in use: {', '.join(said)}",
                hint="drop or redefine these first, or detach with CASCADE, which drops them",
            )

    def detach(self, name: str, *, forget: bool = False) -> None:
        """Remove everything millstream made in a database that nothing needs any more, its mirrors, and its record.

        What is not its role's to remove, such as a publication that the tables' owner made, is told by a warning.

        Args:
            forget: leave the database as it is; `script` is for its owner to run.

        Raises:
            MillstreamError: NOT_ATTACHED, DEPENDENTS_EXIST, DATABASE_UNREACHABLE.
        """
        database, left = self.get(name), list[str]()
        # First the lock under which captures begin: their reader is recorded before it is given back.
        with self._locks.acquire([f"captures-{database.name}"]), self._locks.acquire([lock_key(database.name)]):
            self._refuse_dependents(database.name)
            if not forget:
                left = self._uninstall(database)
            for capture in self._catalog.captures(database.name):
                shutil.rmtree(capture.path, ignore_errors=True)
                self._catalog.drop_lake_object(ObjectKind.TABLE, TableName.parse(capture.name))
                self._catalog.drop_capture(capture.id)
            self._catalog.drop_database(database.name)
        if left:
            told = f"{database.name} is detached, but not all that was made for it is its role's to remove"
            tell("\n  ".join([f"{told}; run in {database.database}:", *left]), LeftoverWarning)

    def _uninstall(self, database: AttachedDatabase) -> list[str]:
        with _driver():
            from psycopg import Error
            from psycopg.errors import InsufficientPrivilege

            from millstream.sinks.postgres.removal import bookkeeping_removal
            from millstream.sources.postgres.address import Address
            from millstream.sources.postgres.buffers import with_locks
            from millstream.sources.postgres.connection import connect, unreachable
            from millstream.sources.postgres.own_objects import remove_everything
        address, buffers = Address(database.address), self.buffers(database)
        forget = bookkeeping_removal(self._catalog.lake_id())
        try:
            with connect(address) as connection:
                left = remove_everything(connection, buffers, self.slot(database))
                failed = "the bookkeeping of served tables cannot be removed"
                with_locks(connection, buffers, failed, lambda: connection.execute(forget))
        except (MillstreamError, Error) as e:
            error = e if isinstance(e, MillstreamError) else unreachable(address, e)
            if isinstance(e, InsufficientPrivilege):
                error = MillstreamError(Code.PRIVILEGE_MISSING, f"{address}: {str(e).splitlines()[0]}")
            raise MillstreamError(
                error.code,
                error.message,
                hint=f"`millstream detach {database.name} --script` prints the SQL that removes what millstream made "
                f"there; once that has run, or the database is no more, `millstream detach {database.name} --forget`",
            ) from None
        return left

    def script(self, name: str) -> str:
        """The SQL that removes what millstream made in a database, to be run there by hand.

        Raises:
            MillstreamError: NOT_ATTACHED.
        """
        database = self.get(name)
        with _driver():
            from millstream.sinks.postgres.removal import bookkeeping_removal
            from millstream.sources.postgres.own_objects import removal_script
        role = database.details.get(ROLE)  # None if attached before it was recorded: then only that role may run it
        bookkeeping = bookkeeping_removal(self._catalog.lake_id(), role)
        return f"{removal_script(self.buffers(database), self.slot(database), role)}{bookkeeping.as_string()};\n"

    def buffers(self, database: AttachedDatabase) -> BufferSettings:
        """How the buffers of a database are kept."""
        from millstream.sources.postgres.installed import BufferSettings

        return BufferSettings(schema=str(database.details[BUFFER_SCHEMA]), lake=self._catalog.lake_id())

    def slot(self, database: AttachedDatabase) -> Slot:
        """The replication slot of a database, whether there is one or not."""
        from millstream.sources.postgres.slot import slot_of

        return slot_of(self._catalog.lake_id(), database.name)

    # Looking

    def sources(self) -> list[SourceStatus]:
        """The attached databases, and of each what is captured, how, how far and how stale."""
        found: list[SourceStatus] = []
        tables = self._catalog.list()
        for database in self._catalog.databases():
            captures = self._catalog.captures(database.name)
            waiting = self._waiting(database, captures) if captures else Waiting()
            for capture in captures or (None,):
                name = capture.name if capture is not None else None
                readers = [str(t.name) for t in tables if any(d.name == name for d in t.definition.dependencies)]
                state, reason = state_of(capture) if capture is not None else (None, None)
                found.append(
                    SourceStatus(
                        name=database.name,
                        kind="postgres",
                        address=database.address,
                        cdc=database.cdc,
                        mode=str(database.mode),
                        table=name,
                        columns=tuple(column for column, _, _ in capture.columns) if capture is not None else (),
                        position=_shown(position_of(database, capture)) if capture is not None else None,
                        staleness=age(database, capture, waiting, self._clock()) if capture is not None else None,
                        buffered_rows=waiting.rows.get(capture.oid) if capture is not None else None,
                        readers=tuple(readers),
                        hindrance=database.hindrance,
                        state=state,
                        reason=reason,
                        numeric=_declared(database, capture),
                    )
                )
        return found

    def _waiting(self, database: AttachedDatabase, captures: Sequence[Capture]) -> Waiting:
        """What waits in the database; nothing is known of it where it cannot be reached."""
        with _driver():
            from psycopg import OperationalError

            from millstream.refresh.capture.tick_state import identity_of
            from millstream.sources.postgres.address import Address
            from millstream.sources.postgres.connection import connect
            from millstream.sources.postgres.own_objects import buffered_rows
            from millstream.sources.postgres.poll import where
        try:
            with connect(Address(database.address)) as connection:
                rows = buffered_rows(connection, self.buffers(database), [c.oid for c in captures])
                here = where(connection)
        except (MillstreamError, OperationalError):
            return Waiting()
        return Waiting(rows, here.snapshot if here.identity == identity_of(database) else None)


def _declared(database: AttachedDatabase, capture: Capture | None) -> tuple[str, ...]:
    """The ranges declared for a captured table, or for all tables."""
    of_all = sorted(NumericRanges.of(database).types.items())
    table = (capture.schema, capture.table) if capture is not None else None
    return tuple(f"{c}={type_}" for c, type_ in of_all if table in (None, (c.schema, c.table)))


def _check_ranges(connection: Connection, ranges: NumericRanges) -> None:
    """See that each column is there, and one whose own type has no range."""
    from millstream.sources.postgres.relations import find_named
    from millstream.sources.postgres.types import takes_range

    for name in ranges.types:
        relation = find_named(connection, name.schema, name.table)
        if relation is None:
            raise MillstreamError(
                Code.UNKNOWN_TABLE,
                f"the database has no table or view {name.schema}.{name.table} that you may see",
                hint="names are those of PostgreSQL: in double quotes if they have capitals",
            )
        column = next((c for c in relation.columns if c.name == name.column), None)
        if column is None:
            known = ", ".join(c.name for c in relation.columns)
            raise MillstreamError(
                Code.UNKNOWN_COLUMN, f"{relation.qualified} has no column {name.column}", hint=f"it has {known}"
            )
        if not takes_range(column.element or column.base):
            raise MillstreamError(
                Code.UNSUPPORTED_TYPE,
                f"{name} is of type {column.type}, for which no range can be declared",
                hint="declare ranges of numeric without a precision, or with one above 38",
            )


def lock_key(name: str) -> str:
    """The lock under which a database's records and mirrors change."""
    return f"database-{name}"


def _refuse_another(known: AttachedDatabase, found: Identity) -> None:
    if (known.system, known.database, known.database_oid) != (found.system, found.database, found.oid):
        raise MillstreamError(
            Code.NAME_TAKEN,
            f"another database is attached as {known.name}",
            hint=f"use another name, or DETACH {known.name} first",
        )


def _reads(table: StreamTable, database: str) -> bool:
    return any(TableName.parse(d.name).database == database for d in table.definition.dependencies)


def _shown(position: Position | None) -> str | None:
    if position is None:
        return None
    return str(position.get("lsn") or position.get("snapshot"))


def _require_logical(connection: Connection) -> None:
    row = connection.execute("SHOW wal_level").fetchone()
    if row is not None and row[0] != "logical":
        raise MillstreamError(
            Code.DATABASE_UNFIT,
            f"the server's wal_level is {row[0]}, so that its WAL has no rows to read",
            hint="ALTER SYSTEM SET wal_level = logical and restart the server, or attach with cdc 'trigger'",
        )


@contextmanager
def _driver() -> Iterator[None]:
    """Around imports that need psycopg."""
    try:
        yield
    except ImportError as e:
        raise MillstreamError(
            Code.DEPENDENCY_MISSING,
            "attaching a PostgreSQL database needs psycopg",
            hint="pip install 'millstream[postgres]'",
        ) from e
