"""PostgreSQL's own answer to a query of ours, under a snapshot that is held elsewhere.

The query runs as the role that captures, so no code of other roles may run with it: functions and operators are
looked up in pg_catalog alone, tables are the ones that were locked and checked, the server does not expand views, and
an enum value is converted to text before a cast that the enum's owner has created could apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from zoneinfo import available_timezones

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import Code, MillstreamError
from millstream.postgres.connection import Connection, connect
from millstream.postgres.driver import psycopg, sql
from millstream.postgres.locked_names import FOREIGN, VIEWS, MovedError, hold
from millstream.sources.postgres.load.exported_snapshot import ExportedSnapshot, import_snapshot
from millstream.sources.postgres.server.planned_code import refuse_planned_code
from millstream.sources.postgres.server.reading_errors import reading_error
from millstream.sources.postgres.server.relations import PgColumn, Relation, read_relations
from millstream.sources.postgres.server.table_fingerprints import TableFingerprint, read_fingerprints
from millstream.sources.postgres.server.view_rights import ViewRights, read_view_rights
from millstream.sources.postgres.values.decode import batch_schema, read_csv
from millstream.sources.postgres.values.types import MirrorColumn, data_type

_BY_CODE_POINT = ("pg_unicode_fast", "pg_c_utf8", "C.utf8", "C.UTF-8", "C")
"""Collations that order texts as Spark does; the first ones also map the case of all letters."""
_DEFAULT_COLLATION, _C, _POSIX = 100, 950, 951
_FIRST_USER_OID = 16_384
_TIMESTAMPTZ = "timestamp with time zone"
_FLOATING = {"real", "double precision"}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_OFFSET = re.compile(r"[+-]\d\d:\d\d")

_COLLATIONS = """
SELECT attrelid::bigint, attname, attcollation::bigint
FROM pg_attribute WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
"""

# Also behind domains and inside arrays. The casts of an extension are trusted, as is the role that installed it.
_CASTS = """
WITH RECURSIVE met(oid) AS (
  SELECT atttypid FROM pg_attribute WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
  UNION SELECT inner_.oid FROM met JOIN pg_type t ON t.oid = met.oid
  CROSS JOIN LATERAL (VALUES (t.typelem), (t.typbasetype), (t.typarray)) inner_(oid)
  WHERE inner_.oid <> 0 AND met.oid >= %s
)
SELECT format_type(c.castsource, NULL), format_type(c.casttarget, NULL)
FROM pg_cast c WHERE c.castfunc >= %s AND (c.castsource IN (TABLE met) OR c.casttarget IN (TABLE met))
  AND NOT EXISTS (SELECT FROM pg_depend d
                  WHERE d.classid = 'pg_proc'::regclass AND d.objid = c.castfunc AND d.deptype = 'e')
LIMIT 1
"""


class AlteredError(Exception):
    """A table was altered after the snapshot was taken, which a snapshot does not show."""


@dataclass
class Answers:
    """A transaction that sees a held snapshot, with the tables of a query locked.

    Args:
        relations: the tables by their oids.
        collation: the one to compare texts by, unless theirs already orders by code point.
    """

    connection: Connection
    relations: Mapping[int, Relation]
    collation: str
    is_by_code_point: bool
    _collations: dict[tuple[int, str], int] = field(default_factory=dict)

    def table(self, oid: int, names: Sequence[str]) -> str:
        """A query in parentheses for some columns of a table; dropped ones are NULL."""
        relation = self.relations[oid]
        if not self._collations:
            rows = self.connection.execute(_COLLATIONS, [list(self.relations)])
            self._collations = {(o, name): collation for o, name, collation in rows}
        known = {c.name: c for c in relation.columns}
        items = [f"{self._item(oid, name, known.get(name))} AS {_quoted(name)}" for name in names]
        return f"(SELECT {', '.join(items)} FROM {_quoted(relation.schema)}.{_quoted(relation.name)})"

    def _item(self, oid: int, name: str, column: PgColumn | None) -> str:
        if column is None:
            return "NULL"
        if column.type_kind == "e":
            text = f"pg_catalog.textin(pg_catalog.enum_out({_quoted(name)}))"
            return text if self.is_by_code_point else f"{text} COLLATE {_quoted(self.collation)}"
        collation = self._collations[oid, name]
        is_fit = collation in (0, _C, _POSIX) or (collation == _DEFAULT_COLLATION and self.is_by_code_point)
        return _quoted(name) if is_fit else f"{_quoted(name)} COLLATE {_quoted(self.collation)}"

    def view(self, schema: str, name: str) -> ViewRights | None:
        """A view as it is now; None if there is none."""
        return read_view_rights(self.connection, [(schema, name)]).get((schema, name))

    def ask(self, before: str, query: str, types: Sequence[str]) -> Answer:
        """Have PostgreSQL plan a query whose columns are to be read as the given Spark types.

        Args:
            before: the WITH clause, or an empty text.

        Raises:
            MillstreamError: ORACLE_FAILED; NOT_COMPARABLE for a type or a number of columns that does not fit.
        """
        names = [f"c{i}" for i in range(len(types))]
        source = f"FROM ({query}\n) AS q({', '.join(names)})"
        with self.failing():
            described = self.connection.execute(f"{before} SELECT * {source} LIMIT 0".encode()).description or []
            oids = [c.type_code for c in described]
            if len(oids) != len(types):
                message = f"PostgreSQL returns {len(oids)} columns, the stream table has {len(types)}"
                raise MillstreamError(Code.NOT_COMPARABLE, message)
            rows = self.connection.execute(
                "SELECT format_type(oid, NULL) FROM unnest(%s::oid[]) WITH ORDINALITY o(oid, n) ORDER BY n", [oids]
            )
            outputs = [_output(n, pg, spark) for n, (pg,), spark in zip(names, rows.fetchall(), types, strict=True)]
        items = ", ".join(item for output in outputs for item, _ in output)
        columns = [column for output in outputs for _, column in output]
        return Answer(self, f"COPY ({before} SELECT {items} {source}) TO STDOUT (FORMAT csv)", tuple(columns))

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Turn PostgreSQL's errors into coded ones."""
        try:
            yield
        except psycopg.Error as e:
            raise _failed(e, self.connection) from e


@dataclass
class Answer:
    """PostgreSQL's rows.

    Args:
        columns: those of the batches; a decimal is `c0`, NULL where it does not fit its type, and the double `c0_near`.
        inexact: the decimals for which PostgreSQL returned a value that does not fit, once the batches are read.
    """

    answers: Answers
    copy: str
    columns: tuple[MirrorColumn, ...]
    inexact: set[str] = field(default_factory=set)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return batch_schema(self.columns)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows.

        Raises:
            MillstreamError: ORACLE_FAILED, VALUE_UNSUPPORTED, DATABASE_UNREACHABLE.
        """
        exact = [c.name for c in self.columns if _near(c.name) in self.schema.names]
        with (
            self.answers.failing(),
            self.answers.connection.cursor() as cursor,
            cursor.copy(self.copy.encode()) as copy,
        ):
            for batch in read_csv((bytes(chunk) for chunk in copy), self.columns):
                for name in exact:
                    misfits = pc.and_(pc.is_null(batch[name]), pc.is_valid(batch[_near(name)]))
                    if pc.any(misfits, min_count=0).as_py():
                        self.inexact.add(name)
                yield batch


@contextmanager
def answering(
    snapshot: ExportedSnapshot,
    columns: Mapping[int, Sequence[str]],
    time_zone: str,
    timeout_seconds: int,
    trusted: Sequence[str] = (),
) -> Iterator[Answers]:
    """A transaction that sees the snapshot, for as long as the block lasts.

    Args:
        columns: those of each table, by its oid, that the query reads.
        time_zone: of the query's session, as Spark spells it.
        timeout_seconds: how long PostgreSQL may take for one statement; 0 means no limit.
        trusted: the setting `trusted_owners`.

    Raises:
        AlteredError: also at the end of the block, if a table was altered, truncated or given a partition since.
        MillstreamError: LOCK_TIMEOUT, PRIVILEGE_MISSING, NOT_COMPARABLE, SNAPSHOT_LOST, UNTRUSTED_CODE.
    """
    address = snapshot.address
    try:
        with connect(address) as reader, connect(address) as other:
            import_snapshot(reader, snapshot.name)
            seen, relations = read_fingerprints(reader, columns), read_relations(reader, list(columns))
            for relation in relations.values():
                _hold(reader, snapshot, relation)
            _require_same(other, columns, seen)
            for relation in relations.values():
                refuse_planned_code(other, relation.oid, relation.qualified, trusted)
            _restrict(reader, time_zone, timeout_seconds)
            _refuse_casts(reader, list(columns))
            yield Answers(reader, relations, *_collation(reader))
            _require_same(other, columns, seen)
            reader.execute("ROLLBACK")
            snapshot.check()
    except psycopg.Error as e:
        raise reading_error(address, e, "the tables of the query") from e


def _hold(reader: Connection, snapshot: ExportedSnapshot, relation: Relation) -> None:
    """Lock a table, so that its name stays, and have the transaction read no views and no foreign tables."""
    try:
        hold(reader, relation.named, forbidden=(VIEWS, FOREIGN))
    except MovedError as e:
        raise AlteredError from e
    except psycopg.Error as e:
        raise reading_error(snapshot.address, e, relation.qualified, kind=relation.kind.value) from e


def _require_same(
    other: Connection, columns: Mapping[int, Sequence[str]], seen: Mapping[int, TableFingerprint]
) -> None:
    """Check that the tables are what the snapshot shows.

    Every transaction sees a TRUNCATE, a rewrite or a new partition at once, under any snapshot; and another table with
    the same name would be read instead.
    """
    if len(seen) < len(columns) or read_fingerprints(other, columns) != seen:
        raise AlteredError


def _restrict(reader: Connection, time_zone: str, timeout_seconds: int) -> None:
    reader.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(f"{timeout_seconds}s")))
    if _OFFSET.fullmatch(time_zone):  # as a name it would be a POSIX zone, which counts westwards
        offset = sql.Literal(time_zone)
        reader.execute(sql.SQL("SET LOCAL TIME ZONE INTERVAL {} HOUR TO MINUTE").format(offset))
    elif time_zone in available_timezones() or time_zone == "Z":
        zone = "UTC" if time_zone == "Z" else time_zone
        reader.execute(sql.SQL("SET LOCAL timezone = {}").format(sql.Literal(zone)))
    else:
        raise MillstreamError(
            Code.NOT_COMPARABLE, f"the query's time zone {time_zone} may mean another one in PostgreSQL"
        )


def _refuse_casts(reader: Connection, oids: list[int]) -> None:
    row = reader.execute(_CASTS, [oids, _FIRST_USER_OID, _FIRST_USER_OID]).fetchone()
    if row is not None:
        raise MillstreamError(
            Code.NOT_COMPARABLE,
            f"a user's function casts {row[0]} to {row[1]}, and would run with the rights of the role that captures",
            hint="drop the cast, or verify without PostgreSQL",
        )


def _collation(reader: Connection) -> tuple[str, bool]:
    """A collation that orders by code point, and whether the database's own does."""
    row = reader.execute(
        "SELECT datcollate, to_jsonb(d) ->> 'datlocprovider', encoding FROM pg_database d"
        " WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    own, provider, encoding = row
    is_by_code_point = provider == "b" or (provider != "i" and own.lower() in {"c", "posix", "c.utf8", "c.utf-8"})
    found = reader.execute(
        "SELECT collname FROM pg_collation WHERE collnamespace = 'pg_catalog'::regnamespace"
        " AND collname = ANY(%s) AND collencoding IN (-1, %s) ORDER BY array_position(%s, collname::text) LIMIT 1",
        [list(_BY_CODE_POINT), encoding, list(_BY_CODE_POINT)],
    ).fetchone()
    assert found is not None, "every database has C"
    return str(found[0]), is_by_code_point


def _output(name: str, pg_type: str, spark_type: str) -> list[tuple[str, MirrorColumn]]:
    """What COPY writes for a column: the query's session settings must not change the text that is decoded."""
    try:
        data_type(spark_type)
    except KeyError:
        raise MillstreamError(
            Code.NOT_COMPARABLE, f"a column of type {spark_type} cannot be compared with PostgreSQL's"
        ) from None
    column = MirrorColumn(name, pg_type, spark_type)
    if pg_type == _TIMESTAMPTZ:
        return [(f"CAST({name} AT TIME ZONE 'UTC' AS text) || '+00'", column)]
    decimal = _DECIMAL.fullmatch(spark_type)
    if decimal is None:
        return [(name, column)]
    precision, scale = int(decimal[1]), int(decimal[2])
    number = f"CAST({name} AS numeric)"
    fits = f"{number} = round({number}, {scale}) AND abs({number}) < 1e{precision - scale}"
    exact = f"CASE WHEN {fits} THEN round({number}, {scale}) END" if pg_type not in _FLOATING else "NULL"
    near = MirrorColumn(_near(name), "double precision", "double")
    return [(exact, column), (f"CAST({name} AS double precision)", near)]


def _near(name: str) -> str:
    return f"{name}_near"


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _failed(error: psycopg.Error, connection: Connection) -> MillstreamError:
    said = next(iter(str(error).splitlines()), type(error).__name__)
    version = connection.info.server_version // 10_000 if not connection.closed else ""
    if isinstance(error, psycopg.errors.QueryCanceled):
        return MillstreamError(
            Code.ORACLE_FAILED,
            f"PostgreSQL took too long to answer the query: {said}",
            hint="raise verify_timeout_seconds, or verify without PostgreSQL",
        )
    if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
        return MillstreamError(Code.DATABASE_UNREACHABLE, f"the connection was lost: {said}", hint="verify again")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return MillstreamError(Code.PRIVILEGE_MISSING, f"PostgreSQL refuses the query: {said}")
    return MillstreamError(
        Code.ORACLE_FAILED,
        f"PostgreSQL {version} cannot answer the query: {said}",
        hint="the stream table has rows where PostgreSQL has an error: verify without PostgreSQL, or change the query",
    )
