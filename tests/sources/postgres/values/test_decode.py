"""At every type's bounds values are what PostgreSQL prints, and beyond them they are refused: by all ways of capture.

The oracle is PostgreSQL's text: what was read is written as serving writes it, into a column of the same type.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import partial

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from kits.bound_cases import BOUNDS, ELSEWHERE, Bounds
from kits.texts import by_copy, columns_of
from kits.trigger_capture import polled
from kits.wal_shops import WalCapture, WalShop, new_wal_shop
from millstream.engine.storage.files.schema import arrow_type
from millstream.errors import Code, MillstreamError
from millstream.naming import WEIGHT
from millstream.sinks.postgres.encode import lines_of
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.table_changes import TableChanges
from millstream.sources.postgres.triggers.buffer_changes import read_changes
from millstream.sources.postgres.triggers.buffers import install
from millstream.sources.postgres.values.decode import decode_texts
from millstream.sources.postgres.values.number_text import UnfitError, decimals
from millstream.sources.postgres.values.types import PLAIN_TYPES, MirrorColumn, data_type, mirror_columns
from millstream.sources.postgres.wal.keyed_changes import KeyedTableChanges
from millstream.sources.postgres.wal.reader import next_position, read_wal
from millstream.sources.postgres.wal.slot import drop_slot
from millstream.sources.postgres.wal.slot_creation import current_snapshot
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres

Read = dict[str, "pa.Table | MillstreamError"]


class Bounded:
    """A table per type with the values that fit, and one per value that does not, read by all ways."""

    def __init__(self, shop: WalShop) -> None:
        self.shop = shop
        self.tables = {f"t{i}": (type_, bounds.fits) for i, (type_, bounds) in enumerate(self.bounds.items())}
        for type_, bounds in self.bounds.items():
            for value in bounds.beyond:
                self.tables[f"x{len(self.tables)}"] = (type_, (value,))
        self._write()

    @property
    def bounds(self) -> dict[str, Bounds]:
        is_new = self.shop.server_version
        return {
            type_: b if is_new < b.new_server else Bounds((*b.fits, *b.new_fits), b.beyond)
            for type_, b in BOUNDS.items()
        }

    def _write(self) -> None:
        with self.shop.owner() as owner, self.shop.connect() as connection:
            owner.execute("CREATE DOMAIN amount AS numeric")
            owner.execute("CREATE DOMAIN amounts AS numeric[]")
            for i, (table, (type_, _)) in enumerate(self.tables.items()):
                owner.execute(f"CREATE TABLE {table} (n int PRIMARY KEY, v {type_})".encode())
                if i % 2:
                    owner.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
            relations = {table: find_relation(connection, table) for table in self.tables}
            buffers = {table: install(connection, r, mirror_columns(r, ["v"])) for table, r in relations.items()}
            followed = WalCapture.begin(self.shop, *self.tables)
            with polled(connection) as old:
                pass
            for table, (_, values) in self.tables.items():
                for n, value in enumerate(values):
                    owner.execute(f"INSERT INTO {table} VALUES ({n}, %s)".encode(), [value])
            columns = {table: columns_of(connection, table) for table in self.tables}
            self.copied = {t: _read(partial(by_copy, connection, t, columns[t])) for t in self.tables}
            with polled(connection) as new:
                self.triggered = {
                    t: _read(lambda t=t: read_changes(connection, buffers[t], columns[t], old, new).rows)  # type: ignore[misc]
                    for t in self.tables
                }
            try:
                self.logged = self._from_wal(followed)
            finally:
                drop_slot(followed.connection, self.shop.slot.name)
                followed.close()

    def _from_wal(self, followed: WalCapture) -> Read:
        with followed.looking.transaction():
            followed.looking.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            snapshot = current_snapshot(followed.looking)
            new = next_position(followed.connection, self.shop.slot, followed.position, snapshot)
            tables = followed.tables(followed.looking)
        batch = read_wal(followed.connection, self.shop.slot, tables, followed.position, new)
        found: Read = {t: MillstreamError(Code.VALUE_UNSUPPORTED, reason) for t, reason in batch.altered.items()}
        for table, window in batch.changes.items():
            assert isinstance(window, TableChanges | KeyedTableChanges)
            found[table] = window.rows
        return found

    def ways(self) -> dict[str, Read]:
        return {"COPY": self.copied, "triggers": self.triggered, "WAL": self.logged}


def _read(read: Callable[[], pa.Table]) -> pa.Table | MillstreamError:
    try:
        return read()
    except MillstreamError as error:
        return error


@pytest.fixture(scope="module")
def bounded(server: Server) -> Bounded:
    return Bounded(new_wal_shop(server))


def test_every_type_has_bounds() -> None:
    assert set(PLAIN_TYPES) - set(BOUNDS) == set(ELSEWHERE)
    assert all(bounds.fits for bounds in BOUNDS.values())
    limited = {"date", "timestamp", "timestamp_ntz"}
    assert all(BOUNDS[type_].beyond for type_, spark in PLAIN_TYPES.items() if spark in limited)


@pytest.mark.parametrize("way", ["COPY", "triggers", "WAL"])
def test_values_that_fit_are_what_postgres_prints(bounded: Bounded, way: str) -> None:
    read = bounded.ways()[way]
    with bounded.shop.owner() as owner:
        owner.prepare_threshold = None  # the same text is of another type each time
        for table, (type_, values) in bounded.tables.items():
            if not table.startswith("t"):
                continue
            rows = read[table]
            assert isinstance(rows, pa.Table), (type_, rows)
            assert rows.num_rows == len(values), type_
            if WEIGHT in rows.column_names:
                assert set(rows[WEIGHT].to_pylist()) == {1}
            rows = rows.select(["v"]).append_column("n", pa.array(range(len(values)), pa.int32()))
            owner.execute("DROP TABLE IF EXISTS back")
            owner.execute(f"CREATE TABLE back (v {type_}, n int)".encode())
            with owner.cursor().copy("COPY back FROM STDIN") as copy:
                for line in lines_of(rows, ["v", "n"]):
                    copy.write(f"{line}\n")
            printed = "trim_scale(v::numeric)::text" if type_ in ("numeric", "public.amount") else "v::text"
            if type_ in ("numeric[]", "public.amounts"):
                printed = "(SELECT array_agg(trim_scale(e) ORDER BY i) FROM unnest(v) WITH ORDINALITY u(e, i))::text"
            (stored, back) = (
                [tuple(r) for r in owner.execute(f"SELECT n, v IS NULL, {printed} FROM {t} ORDER BY n".encode())]
                for t in (table, "back")
            )
            assert back == stored, type_


@pytest.mark.parametrize("way", ["COPY", "triggers", "WAL"])
def test_values_beyond_are_refused(bounded: Bounded, way: str) -> None:
    read = bounded.ways()[way]
    taken = {
        (type_, value): found
        for table, (type_, (value, *_)) in bounded.tables.items()
        if table.startswith("x") and not _is_refused(found := read[table])
    }
    assert taken == {}


def _is_refused(found: pa.Table | MillstreamError) -> bool:
    return isinstance(found, MillstreamError) and found.code is Code.VALUE_UNSUPPORTED and "column v " in found.message


@pytest.mark.parametrize(
    ("spark_type", "text"),
    [
        *(("decimal(38,18)", text) for text in ("1e30", "1E5", "", "-", ".", "1.5.", " 1", "1 ", "0x10", "1_000")),
        *(("smallint", text) for text in ("32768", "-32769", "", "1.0", "1e3", "99999999999999999999")),
        *(("int", text) for text in ("2147483648", "-2147483649", "18446744073709551617")),
        *(("bigint", text) for text in ("9223372036854775808", "-9223372036854775809", "18446744073709551617", "NaN")),
        *(("float", text) for text in ("1e39", "-1e39", "3.4028236e38", "1e-46", "-1e-46", "1e400", "")),
        *(("double", text) for text in ("1e309", "-1e309", "1e-324", "1e-400", "")),
        *(("boolean", text) for text in ("", "yes", "1", "T")),
        *(("binary", text) for text in ("", "00", "\\x0", "\\xzz")),
        *(("date", text) for text in ("10000-01-01", "2024-02-30", "2024-1-1", "0001-01-01 BC", "infinity", "")),
        *(("timestamp_ntz", text) for text in ("2024-01-01 00:00:00+00", "2024-01-01 00:00:00.1234567", "today")),
        *(("timestamp", text) for text in ("2024-01-01 00:00:00", "2024-01-01 25:00:00+00", "now")),
    ],
)
def test_a_text_that_is_no_value_of_its_type_is_refused(spark_type: str, text: str) -> None:
    """No server prints these."""
    column = MirrorColumn("v", "x", spark_type)
    for texts in ([text], [None, text, None], [None] * 100 + [text]):
        with pytest.raises(MillstreamError) as caught:
            decode_texts([column], [texts])
        assert caught.value.code is Code.VALUE_UNSUPPORTED
    assert decode_texts([column], [[None, None]])["v"].null_count == 2


@st.composite
def decimal_texts(draw: st.DrawFn) -> str:
    whole = draw(st.integers(0, 10 ** draw(st.integers(0, 60))))
    decimals = draw(st.text("0123456789", max_size=45)) + "0" * draw(st.integers(0, 45))
    return f"{draw(st.sampled_from(['', '-']))}{whole}{'.' if decimals else ''}{decimals}"


@given(decimal_texts(), st.integers(1, 38), st.data())
def test_decimals_are_exact_or_refused(text: str, precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, precision))
    with localcontext(prec=200):
        units = Decimal(text).scaleb(scale)
        fits = units == units.to_integral_value() and abs(units) < 10**precision
    try:
        [value] = decimals(pa.array([text]), arrow_type(data_type(f"decimal({precision},{scale})"))).to_pylist()
    except UnfitError:
        assert not fits
    else:
        assert fits
        assert value == Decimal(text)


def test_a_slice_of_a_column_is_decoded_by_itself() -> None:
    texts = pa.array(["NaN", "1.5", None, "1e30", "2.50"])
    type_ = arrow_type(data_type("decimal(38,18)"))
    assert decimals(texts.slice(1, 2), type_).to_pylist() == [Decimal("1.5"), None]
    assert decimals(texts.slice(4), type_).to_pylist() == [Decimal("2.5")]
    assert decimals(texts.slice(2, 1), type_).to_pylist() == [None]
    assert len(decimals(texts.slice(0, 0), type_)) == 0
    with pytest.raises(UnfitError):
        decimals(texts.slice(3), type_)
