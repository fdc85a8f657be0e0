"""Looks up names in attached databases; each answer is cached until `forget`.

Nothing here needs Spark.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from millstream.catalog import Catalog
from millstream.catalog.attached import AttachedDatabase
from millstream.catalog.numeric_ranges import NumericRanges
from millstream.errors import Code, MillstreamError
from millstream.naming import TableName, attached_name
from millstream.ops import Column
from millstream.postgres.address import Address
from millstream.postgres.connection import connect
from millstream.sources.postgres.server.relations import PgColumn, Relation, find_relation
from millstream.sources.postgres.server.snapshot_transaction import snapshot_transaction
from millstream.sources.postgres.server.view_rights import ViewRights, read_view_rights
from millstream.sources.postgres.values.types import mirror_columns, plain_type, takes_range
from millstream.sql.sources import NativeType, Source

UNREADABLE = "void"
"""The type of a column whose type has no equivalent in Spark: the column cannot be read, the others can."""


class AttachedNames:
    """Looks up names in the databases that the catalog lists."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._found: dict[tuple[tuple[str, ...], bool], tuple[Relation, ViewRights | None]] = {}
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Clear the cache: tables may have changed meanwhile."""
        with self._lock:
            self._found.clear()

    def database(self, parts: Sequence[str]) -> AttachedDatabase | None:
        """The attached database of a name; None for names of the lake."""
        if not 2 <= len(parts) <= 3:
            return None
        return self._catalog.find_database(parts[0].lower())

    def resolve(self, parts: Sequence[str], *, exact: bool = False) -> TableName:
        """The full name of a name in an attached database, as the database spells it.

        A name of three parts is taken as written if the database has no such table or is unreachable, and no recorded
        name differs from it only in case.

        Args:
            exact: names are case-sensitive, as in PostgreSQL.

        Raises:
            MillstreamError: NAME_AMBIGUOUS; for two parts also UNKNOWN_TABLE, DATABASE_UNREACHABLE.
        """
        database = parts[0].lower()
        try:
            relation = self.relation(parts, exact=exact)
        except MillstreamError as error:
            if len(parts) == 2 or error.code not in (Code.UNKNOWN_TABLE, Code.DATABASE_UNREACHABLE):
                raise
            wanted = attached_name(database, parts[1], parts[2])
            return wanted if exact else self._recorded(wanted)
        return attached_name(database, relation.schema, relation.name)

    def _recorded(self, wanted: TableName) -> TableName:
        """The recorded name of a captured or served table that differs only in case, if there is exactly one."""
        known = {TableName.parse(capture.name) for capture in self._catalog.captures(wanted.database)}
        known |= {TableName.parse(serving.name) for serving in self._catalog.servings(wanted.database)}
        alike = [name for name in known if str(name).lower() == str(wanted).lower()]
        return alike[0] if len(alike) == 1 and wanted not in known else wanted

    def relation(self, parts: Sequence[str], *, exact: bool = False) -> Relation:
        """The table or view of a name of two or three parts, as the database's catalog describes it.

        An exact match wins; otherwise, unless `exact`, the only table whose name differs in case is found.

        Raises:
            MillstreamError: NOT_ATTACHED, UNKNOWN_TABLE, NAME_AMBIGUOUS, DATABASE_UNREACHABLE.
        """
        return self._looked_up(parts, exact)[0]

    def view(self, parts: Sequence[str], *, exact: bool = False) -> ViewRights | None:
        """The text of a view and its rights, read in one snapshot; None if the name is not a view.

        Raises:
            MillstreamError: NOT_ATTACHED, UNKNOWN_TABLE, NAME_AMBIGUOUS, DATABASE_UNREACHABLE.
        """
        return self._looked_up(parts, exact)[1]

    def _looked_up(self, parts: Sequence[str], exact: bool) -> tuple[Relation, ViewRights | None]:
        key = (parts[0].lower(), *parts[1:]), exact
        with self._lock:
            found = self._found.get(key)
        if found is None:
            found = self._look_up(*key)
            whole = key[0][0], found[0].schema, found[0].name
            with self._lock:
                self._found |= {key: found, (whole, False): found, (whole, True): found}
        return found

    def _look_up(self, parts: tuple[str, ...], exact: bool) -> tuple[Relation, ViewRights | None]:

        database = self.database(parts)
        if database is None:
            raise MillstreamError(
                Code.NOT_ATTACHED, f"there is no attached database {parts[0]}", hint="millstream sources lists them"
            )
        with connect(Address(database.address)) as connection, snapshot_transaction(connection):
            try:
                found = find_relation(connection, parts[-1], parts[1] if len(parts) == 3 else None, exact=exact)
                if found.view_text is None:
                    return found, None
                place = (found.schema, found.name)
                if (rights := read_view_rights(connection, [place]).get(place)) is None:
                    raise MillstreamError(
                        Code.UNKNOWN_TABLE, f"the view {found.qualified} was just dropped from the database"
                    )
                return found, rights
            except MillstreamError as error:
                if error.code is not Code.UNKNOWN_TABLE:
                    raise
                raise MillstreamError(
                    error.code,
                    f"{error.message.replace('the database', f'the database {database.name}')}",
                    hint=f"check the spelling, and that the role has USAGE on the schema and SELECT on {parts[-1]}",
                ) from None

    def ranges(self, name: TableName) -> dict[str, str]:
        """The ranges that users have declared for a table's `numeric` columns, by column."""
        database = self.database(name.parts)
        return NumericRanges.of(database).of_table(*name.parts[1:]) if database is not None else {}

    def has_ranges(self, name: str) -> bool:
        """Whether users have declared ranges for columns of a database: types then do not show the printed scales."""
        database = self._catalog.find_database(name)
        return database is not None and bool(NumericRanges.of(database).types)

    def source(self, name: TableName) -> Source:
        """A table as queries see it: every column, with its Spark type."""
        relation = self.relation(name.parts, exact=True)
        columns, unreadable = spark_columns(relation, self.ranges(name))
        what = relation.kind.name.lower().replace("_", " ")
        obstacle = None if relation.kind.is_captured else f"a {what}{' table' * (what == 'foreign')} records no changes"
        return Source(str(name), columns, obstacle, unreadable, native_types(relation))


def native_types(relation: Relation, *, has_scales: bool = False) -> tuple[tuple[str, NativeType], ...]:
    """The PostgreSQL names of a relation's column types; for arrays, those of the elements.

    Args:
        has_scales: whether PostgreSQL prints numbers with the scales of the Spark types, as for a view's columns.
    """

    def native(column: PgColumn) -> NativeType:
        name, is_enum = plain_type(column.element or column.base), (column.element_kind or column.type_kind) == "e"
        if column.loose_collation is not None:  # comparisons treat it as another type
            name = f'{name} COLLATE "{column.loose_collation}"'
        has_free_scale = not has_scales and takes_range(column.element or column.base)
        return NativeType(name, is_enum=is_enum, has_free_scale=has_free_scale)

    return tuple((c.name, native(c)) for c in relation.columns)


def spark_columns(
    relation: Relation, ranges: Mapping[str, str]
) -> tuple[tuple[Column, ...], tuple[tuple[str, str], ...]]:
    """A table's columns with their Spark types, and why some of them cannot be read.

    Args:
        ranges: the ranges declared for its `numeric` columns.
    """

    columns: list[Column] = []
    unreadable: list[tuple[str, str]] = []
    same = Counter(c.name.lower() for c in relation.columns)
    for column in relation.columns:
        try:
            if same[column.name.lower()] > 1:
                raise MillstreamError(
                    Code.UNSUPPORTED_TYPE,
                    f"the name of another column differs from {column.name} only in case",
                    hint="rename one of them",
                )
            columns.append(Column(column.name, mirror_columns(relation, (column.name,), ranges)[0].spark_type))
        except MillstreamError as error:
            columns.append(Column(column.name, UNREADABLE))
            unreadable.append((column.name, f"{error.message}{f' ({error.hint})' if error.hint else ''}"))
    return tuple(columns), tuple(unreadable)
