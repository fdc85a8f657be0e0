"""Attaches PostgreSQL databases, detaches them, and lists what is captured from them; none of it needs Spark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from millstream.capture.change_readers import captured_tables
from millstream.capture.mode_switch import wanted_as
from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase, Capture
from millstream.catalog.capture_state import DatabaseState, Position
from millstream.catalog.models import ObjectKind, StreamTable
from millstream.catalog.numeric_ranges import NumericRanges
from millstream.errors import Code, MillstreamError
from millstream.lake.locks import Locks
from millstream.monitoring.capture_freshness import Waiting, age, state_of
from millstream.naming import DEFAULT_SCHEMA, RESERVED_PREFIX, TableName
from millstream.notices import LeftoverWarning, NoticeWarning, warn
from millstream.postgres.address import Address
from millstream.postgres.connection import Connection, connect, unreachable
from millstream.postgres.driver import psycopg
from millstream.postgres.identity import Identity, identify
from millstream.postgres.pool import ConnectionPool
from millstream.results import SourceStatus
from millstream.settings import Settings
from millstream.sinks.postgres.uninstall import bookkeeping_removal
from millstream.sources.postgres.server.lock_retries import with_locks
from millstream.sources.postgres.server.privileges import missing_grants
from millstream.sources.postgres.server.relations import find_named
from millstream.sources.postgres.server.snapshot_transaction import database_state
from millstream.sources.postgres.triggers.trigger_catalog import BufferSettings
from millstream.sources.postgres.uninstall import (
    buffered_rows,
    current_role,
    refuse_foreign_schema,
    removal_script,
    remove_everything,
)
from millstream.sources.postgres.values.types import has_range, takes_range
from millstream.sources.postgres.wal.eligibility import ineligible_error
from millstream.sources.postgres.wal.mode_switch import check_readiness
from millstream.sources.postgres.wal.slot import Slot, slot_of

CDC = ("auto", "trigger", "wal")

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
# What the first part of a name may already mean in Spark: its catalogs, its own schemas, and file formats.
_RESERVED = {DEFAULT_SCHEMA, "spark_catalog", "session", "system", "global_temp", "information_schema"}
_RESERVED |= {"delta", "parquet", "orc", "csv", "json", "text", "avro"}


class Attaching:
    """The attached databases of a lake."""

    def __init__(
        self,
        catalog: Catalog,
        locks: Locks,
        connections: ConnectionPool,
        settings: Settings,
        root: Path,
        clock: Callable[[], datetime],
    ) -> None:
        self._connections = connections
        self._catalog = catalog
        self._locks = locks
        self._settings = settings
        self._root = root
        self._clock = clock

    # Attaching

    def attach(self, name: str, url: str, cdc: str, numeric: Mapping[str, str]) -> AttachedDatabase:
        """Check everything that capture needs in a database, all at once, and record the database.

        A database that is already attached under the name gets the new address and `cdc`.

        Raises:
            MillstreamError: NAME_INVALID, NAME_TAKEN, SETTING_INVALID, ADDRESS_INVALID, SECRET_IN_ADDRESS,
                DATABASE_UNREACHABLE, DATABASE_UNFIT, PRIVILEGE_MISSING with the statements that grant what is missing;
                UNKNOWN_TABLE, UNKNOWN_COLUMN, UNSUPPORTED_TYPE for a column that takes no range.
        """
        name, cdc = name.strip().lower(), cdc.strip().lower()
        self._check_name(name)
        if cdc not in CDC:
            raise MillstreamError(Code.SETTING_INVALID, f"cdc = {cdc!r}", hint=f"it must be one of {', '.join(CDC)}")
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
            item = replace(item, state=replace(item.state, numeric=ranges.dump()))
            self._catalog.put_database(item, captures=self._of_other_ranges(name, ranges))
        if known is not None and known.address != item.address:
            self._connections.disconnect(name)
        return item

    def _of_other_ranges(self, name: str, ranges: NumericRanges) -> list[Capture]:
        """The captures whose mirrors have other types now, marked so that the next tick checks them."""
        found: list[Capture] = []
        for capture in self._catalog.captures(name):
            declared = ranges.of_table(capture.schema, capture.table)
            if not all(has_range(pg_type, spark_type, declared.get(c)) for c, pg_type, spark_type in capture.columns):
                # No longer quarantined: the range may have been the reason.
                state = replace(capture.state, quarantine=None, resync="the range of a numeric column has changed")
                found.append(replace(capture, state=state))
        return found

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name.startswith(RESERVED_PREFIX):
            raise MillstreamError(
                Code.NAME_INVALID,
                f"{name!r} cannot be the name of a database",
                hint="use letters, digits and underscores, e.g. shop",
            )
        if name in _RESERVED:
            raise MillstreamError(Code.NAME_INVALID, f"{name} means something else in SQL", hint="use another name")

    def _require_free(self, name: str) -> None:
        """Refuse the name of a schema of the lake: `shop.orders` must mean one thing."""
        schemas = {item.name.schema for item in self._catalog.lake_objects()}
        schemas |= {table.name.schema for table in self._catalog.list()}
        if name in schemas or (self._root / "tables" / f"{name}.db").exists():
            raise MillstreamError(
                Code.NAME_TAKEN, f"the lake has a schema {name}", hint="attach the database under another name"
            )

    def _checked(
        self, connection: Connection, name: str, address: str, cdc: str, known: AttachedDatabase | None
    ) -> AttachedDatabase:

        if known is not None:
            _refuse_another(known, identify(connection))
        schema = self._settings.change_buffer_schema if known is None else self.buffers(known).schema
        refuse_foreign_schema(connection, BufferSettings(schema=schema, lake=self._catalog.lake_id()))
        missing = missing_grants(connection, schema, wal=cdc == "wal")
        if missing.required:
            raise MillstreamError(
                Code.PRIVILEGE_MISSING,
                f"the role of {address} lacks rights that capture needs",
                hint="ask an administrator of the database to run:\n  " + "\n  ".join(missing.required),
            )
        identity = identify(connection)
        if cdc == "wal":
            _require_logical(connection)
        if missing.by_schema:
            warn(
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
            state=DatabaseState(buffer_schema=schema, role=current_role(connection)),
        )

    def _changed(self, connection: Connection, known: AttachedDatabase, item: AttachedDatabase) -> AttachedDatabase:
        """The record of a database that is attached again; later ticks do the rest."""
        role = known.state.role or item.state.role
        if role != item.state.role:
            raise MillstreamError(
                Code.NAME_TAKEN,
                f"{known.name} is attached as the role {role}, which owns what millstream created there",
                hint=f"use an address of that role, or DETACH {known.name} first",
            )
        if item.cdc == "wal":
            captures = [c for c in self._catalog.captures(known.name) if c.is_kept and not c.is_whole]
            found = check_readiness(connection, self.slot(known), captured_tables(connection, captures))
            if found.hindrances:
                raise ineligible_error(found.hindrances)
        return replace(wanted_as(known, item.cdc), address=item.address)

    def _refuse_second(self, item: AttachedDatabase) -> None:
        for other in self._catalog.databases():
            if Identity.recorded(other).has_place_of(Identity.recorded(item)):
                raise MillstreamError(
                    Code.NAME_TAKEN,
                    f"the database {item.database} is already attached as {other.name}",
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
                Code.NOT_ATTACHED, f"there is no attached database {name}", hint=f"attached databases: {known}"
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
        """Remove everything millstream created in a database that is no longer used, its mirrors, and its record.

        A warning lists what the role may not remove, such as a publication that the tables' owner created.

        Args:
            forget: leave the database as it is; its owner can run the statements of `script`.

        Raises:
            MillstreamError: NOT_ATTACHED, DEPENDENTS_EXIST, DATABASE_UNREACHABLE.
        """
        database, left = self.get(name), list[str]()
        # First the lock under which captures begin: their dependent is recorded before this lock is released.
        with self._locks.acquire([f"captures-{database.name}"]), self._locks.acquire([lock_key(database.name)]):
            self._refuse_dependents(database.name)
            if not forget:
                left = self._uninstall(database)
            for capture in self._catalog.captures(database.name):
                shutil.rmtree(capture.path, ignore_errors=True)
                self._catalog.drop_lake_object(ObjectKind.TABLE, TableName.parse(capture.name))
                self._catalog.drop_capture(capture.id)
            self._catalog.drop_database(database.name)
        self._connections.disconnect(database.name)
        if left:
            said = f"{database.name} is detached, but its role may not remove everything that was created for it"
            warn("\n  ".join([f"{said}; run in {database.database}:", *left]), LeftoverWarning)

    def _uninstall(self, database: AttachedDatabase) -> list[str]:
        address, buffers = Address(database.address), self.buffers(database)
        forget = bookkeeping_removal(self._catalog.lake_id())
        try:
            with connect(address) as connection:
                left = remove_everything(connection, buffers, self.slot(database))
                failed = "the ledger of served tables cannot be removed"
                with_locks(connection, buffers, failed, lambda: connection.execute(forget))
        except (MillstreamError, psycopg.Error) as e:
            error = e if isinstance(e, MillstreamError) else unreachable(address, e)
            if isinstance(e, psycopg.errors.InsufficientPrivilege):
                error = MillstreamError(Code.PRIVILEGE_MISSING, f"{address}: {str(e).splitlines()[0]}")
            raise MillstreamError(
                error.code,
                error.message,
                hint=f"`millstream detach {database.name} --script` prints the SQL that removes what millstream "
                "created there; once that has run, or if the database no longer exists, run "
                f"`millstream detach {database.name} --forget`",
            ) from None
        return left

    def script(self, name: str) -> str:
        """The SQL that removes what millstream created in a database, to be run there by hand.

        Raises:
            MillstreamError: NOT_ATTACHED.
        """
        database = self.get(name)
        role = database.state.role  # None if attached before it was recorded: then only that role may run it
        bookkeeping = bookkeeping_removal(self._catalog.lake_id(), role)
        return f"{removal_script(self.buffers(database), self.slot(database), role)}{bookkeeping.as_string()};\n"

    def buffers(self, database: AttachedDatabase) -> BufferSettings:
        """The settings of a database's buffers."""
        return BufferSettings(schema=database.state.buffer_schema, lake=self._catalog.lake_id())

    def slot(self, database: AttachedDatabase) -> Slot:
        """The replication slot of a database, whether it exists or not."""
        return slot_of(self._catalog.lake_id(), database.name)

    # Monitoring

    def sources(self) -> list[SourceStatus]:
        """The attached databases, each with what is captured: how, up to which position, and how stale."""
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
                        position=_shown(database.mirror_position(capture)) if capture is not None else None,
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
        """The changes that wait in the database; empty if it cannot be reached."""
        try:
            with self._connections.visiting(database) as connection:
                rows = buffered_rows(connection, self.buffers(database), [c.oid for c in captures])
                here = database_state(connection)
        except (MillstreamError, psycopg.OperationalError):
            return Waiting()
        return Waiting(rows, here.snapshot if here.identity == Identity.recorded(database) else None)


def _declared(database: AttachedDatabase, capture: Capture | None) -> tuple[str, ...]:
    """The ranges declared for a captured table, or for all tables."""
    of_all = sorted(NumericRanges.of(database).types.items())
    table = (capture.schema, capture.table) if capture is not None else None
    return tuple(f"{c}={type_}" for c, type_ in of_all if table in (None, (c.schema, c.table)))


def _check_ranges(connection: Connection, ranges: NumericRanges) -> None:
    """Check that each column exists, and that its own type has no range."""
    for name in ranges.types:
        relation = find_named(connection, name.schema, name.table)
        if relation is None:
            raise MillstreamError(
                Code.UNKNOWN_TABLE,
                f"the database has no table or view {name.schema}.{name.table} that the role may see",
                hint="write names as PostgreSQL does: in double quotes if they have capitals",
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
                hint="declare ranges only for numeric columns without a precision, or with one above 38",
            )


def lock_key(name: str) -> str:
    """The lock under which a database's records and mirrors change."""
    return f"database-{name}"


def _refuse_another(known: AttachedDatabase, found: Identity) -> None:
    if not found.is_same_database(Identity.recorded(known)):
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
            f"the server's wal_level is {row[0]}, so rows cannot be read from its WAL",
            hint="ALTER SYSTEM SET wal_level = logical and restart the server, or attach with cdc 'trigger'",
        )
