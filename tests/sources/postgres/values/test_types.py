"""Every type's nastiest values, read by COPY and by a query: equal, and equal to what they are in Python."""

from __future__ import annotations

import pytest
from psycopg import sql

from kits.paths import DOCS
from kits.shops import Shop, new_shop
from kits.texts import by_copy, by_query, columns_of
from kits.type_cases import CASES, EXTENSION_CASES, NASTY, Case, create_extensions, exact
from millstream.engine.storage.files.schema import arrow_schema
from millstream.errors import Code, MillstreamError
from millstream.lake.attached_names import native_types
from millstream.sources.postgres.server.relations import find_relation
from millstream.sources.postgres.values.decode import batch_schema, decode_texts, read_csv
from millstream.sources.postgres.values.types import (
    EXTENSION_TYPES,
    PLAIN_TYPES,
    MirrorColumn,
    mirror_column,
    mirror_columns,
    mirror_schema,
)
from millstream.sql.postgres.attached_types import column_type
from millstream.testing.postgres_server import Server

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_the_same_by_all_ways(typed: Shop, case: Case) -> None:
    read_both_ways(typed, case)


def read_both_ways(shop: Shop, case: Case) -> None:
    with shop.owner() as owner, shop.connect() as connection:
        owner.execute("DROP TABLE IF EXISTS t")
        owner.execute(sql.SQL("CREATE TABLE t (n serial, v {})").format(sql.SQL(case.type)))  # type: ignore[arg-type]
        for text, _ in (*case.values, (None, None)):
            owner.execute(sql.SQL("INSERT INTO t (v) VALUES ({})").format(sql.Literal(text)))
        columns = columns_of(connection, "t")
        assert [c.spark_type for c in columns] == [case.spark]
        copied, queried = by_copy(connection, "t", columns), by_query(connection, "t", columns)
        bit_by_bit = by_copy(connection, "t", columns, batch_bytes=1)
    expected = [exact(value) for _, value in case.values] + [None]
    for rows in (copied, queried, bit_by_bit):
        assert rows.schema == arrow_schema(mirror_schema(columns))
        assert [exact(value) for value in rows.column("v").to_pylist()] == expected
        rows.validate(full=True)


def test_a_text_array_keeps_every_nasty_element(typed: Shop) -> None:
    with typed.owner() as owner, typed.connect() as connection:
        owner.execute("CREATE TABLE tags (n int, v text[], w varchar(9000)[])")
        arrays = [NASTY, [None, *NASTY, None], [], None, ["NULL", None], ["plain"]]
        for n, array in enumerate(arrays):
            owner.execute("INSERT INTO tags VALUES (%s, %s, %s)", [n, array, array])
        columns = columns_of(connection, "tags")
        for rows in (by_copy(connection, "tags", columns), by_query(connection, "tags", columns)):
            assert rows.column("v").to_pylist() == arrays
            assert rows.column("w").to_pylist() == arrays


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("numeric(10,2)", "NaN"),
        ("numeric", "NaN"),
        ("numeric", "Infinity"),
        ("numeric", "0." + "3" * 19),
        ("numeric", "123456789012345678901"),
        ("numeric(50,2)", "1" * 40),
        ("numeric(10,2)[]", "{1,NaN}"),
        ("date", "infinity"),
        ("date", "-infinity"),
        ("date", "0044-03-15 BC"),
        ("date", "10000-01-01"),
        ("timestamp", "infinity"),
        ("timestamp", "0001-12-31 23:59:59 BC"),
        ("timestamp", "12024-01-01 00:00:00"),
        ("timestamptz", "-infinity"),
        ("timestamptz", "0001-12-31 23:59:59+00 BC"),
        ("timestamptz", "10000-01-01 00:00:00+00"),
        ("date[]", "{2024-01-01,infinity}"),
        ("integer[]", "{{1,2},{3,4}}"),
        ("integer[]", "[0:1]={1,2}"),
        ("text[]", '{{a,"b c"}}'),
        ("text[]", '[2:2]={"b c"}'),
    ],
)
def test_a_value_without_a_counterpart_is_an_error(typed: Shop, type_: str, text: str) -> None:
    with typed.owner() as owner, typed.connect() as connection:
        owner.execute("DROP TABLE IF EXISTS t")
        owner.execute(sql.SQL("CREATE TABLE t (n serial, fine int, bad_one {})").format(sql.SQL(type_)))  # type: ignore[arg-type]
        for value in [None, text, None, text]:
            owner.execute("INSERT INTO t (fine, bad_one) VALUES (1, %s)", [value])
        columns = columns_of(connection, "t")
        for read in (by_copy, by_query):
            with pytest.raises(MillstreamError) as caught:
                read(connection, "t", columns)
            assert caught.value.code is Code.VALUE_UNSUPPORTED
            assert "bad_one" in caught.value.message
            assert text.split(" ")[0].lstrip("{").split(",")[0] in caught.value.message


@pytest.mark.parametrize(
    "type_",
    [
        "money",
        "public.pair",
        "public.pair[]",
        "regclass",
        "xid",
        "tid",
        "pg_snapshot",
        "int2vector",
        "box[]",
        "money[]",
    ],
)
def test_a_type_without_a_counterpart_is_refused_by_name(typed: Shop, type_: str) -> None:
    with typed.owner() as owner, typed.connect() as connection:
        owner.execute("DROP TABLE IF EXISTS t")
        owner.execute(sql.SQL("CREATE TABLE t (fine int, v {})").format(sql.SQL(type_)))  # type: ignore[arg-type]
        relation = find_relation(connection, "t")
    with pytest.raises(MillstreamError) as caught:
        mirror_columns(relation)
    assert caught.value.code is Code.UNSUPPORTED_TYPE
    assert type_ in caught.value.message
    assert caught.value.hint
    assert [c.name for c in mirror_columns(relation, ["fine"])] == ["fine"]


def test_a_stored_generated_column_is_mirrored_and_a_virtual_one_refused(typed: Shop) -> None:
    with typed.owner() as owner, typed.connect() as connection:
        owner.execute(
            "CREATE TABLE gen (a int, s int GENERATED ALWAYS AS (a * 2) STORED, "
            "v int GENERATED ALWAYS AS (a * 3) VIRTUAL)"
        )
        relation = find_relation(connection, "gen")
    assert mirror_column(relation.column("s")).spark_type == "int"
    with pytest.raises(MillstreamError) as caught:
        mirror_column(relation.column("v"))
    assert caught.value.code is Code.UNSUPPORTED_TYPE


def test_names_that_spark_or_delta_would_confuse_are_refused(typed: Shop) -> None:
    with typed.owner() as owner, typed.connect() as connection:
        owner.execute('CREATE TABLE named (a int, "A" int, "with space" int, __ms_w int, "ok-ay" int)')
        relation = find_relation(connection, "named")
    for names, code in (
        (["a", "A"], Code.DUPLICATE_COLUMN),
        (["with space"], Code.NAME_INVALID),
        (["__ms_w"], Code.NAME_INVALID),
    ):
        with pytest.raises(MillstreamError) as caught:
            mirror_columns(relation, names)
        assert caught.value.code is code
    assert [c.name for c in mirror_columns(relation, ["A", "ok-ay"])] == ["A", "ok-ay"]


def test_a_table_of_one_column_has_its_nulls(typed: Shop) -> None:
    column = MirrorColumn("v", "text", "string")
    (batch,) = read_csv([b'a\n\n""\n', b"\n"], [column])
    assert batch.column(0).to_pylist() == ["a", None, "", None]
    assert list(read_csv([], [column])) == []
    assert decode_texts([column], [[]]).num_rows == 0


def test_output_may_be_cut_anywhere() -> None:
    columns = [MirrorColumn("a", "text", "string"), MirrorColumn("b", "integer", "int")]
    whole = b'"x\ny",1\n"say ""hi""\n",2\nplain,\n"",4\n'
    for size in (1, 3, 7, len(whole)):
        pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
        rows = [row for batch in read_csv(pieces, columns, batch_bytes=4) for row in batch.to_pylist()]
        assert rows == [
            {"a": "x\ny", "b": 1},
            {"a": 'say "hi"\n', "b": 2},
            {"a": "plain", "b": None},
            {"a": "", "b": 4},
        ]


def test_a_row_may_be_larger_than_a_batch() -> None:
    columns = [MirrorColumn("a", "text", "string")]
    (batch,) = read_csv([b'"' + b"y" * (3 << 20) + b'"\n'], columns, batch_bytes=1 << 20)
    assert len(batch.column(0)[0].as_py()) == 3 << 20
    assert batch.schema == batch_schema(columns)


def test_a_database_of_another_encoding_is_read_as_utf_8(server: Server) -> None:
    with server.superuser() as superuser:
        superuser.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    shop = Shop(server, "latin")
    with server.superuser("latin") as owner, shop.connect() as connection:
        owner.execute("CREATE TABLE t (n int, v text)")
        owner.execute("INSERT INTO t VALUES (1, 'größe')")
        owner.execute("GRANT SELECT ON t TO millstream")
        columns = columns_of(connection, "t")
        assert by_copy(connection, "t", columns)["v"].to_pylist() == ["größe"]
        assert by_query(connection, "t", columns)["v"].to_pylist() == ["größe"]


def test_types_of_extensions(old_server: Server) -> None:
    """The wheel's server has no citext, hstore, ltree and xml."""
    shop = new_shop(old_server)
    create_extensions(shop)
    for extension_case in EXTENSION_CASES:
        read_both_ways(shop, extension_case)


def test_a_text_whose_collation_takes_others_for_equal_is_not_compared(old_server: Server) -> None:
    """The wheel's server has no ICU."""
    shop = new_shop(old_server)
    with old_server.superuser(shop.name) as owner, shop.connect() as connection:
        owner.execute("CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        owner.execute("CREATE COLLATION de (provider = icu, locale = 'de')")
        owner.execute("CREATE TABLE t (a text, b text COLLATE ci, c varchar(9)[] COLLATE ci, d text COLLATE de)")
        relation = find_relation(connection, "t")
    native = dict(native_types(relation))
    found = {c.name: column_type(c.spark_type, native[c.name]) for c in mirror_columns(relation)}
    assert {name: type_.has_equality for name, type_ in found.items()} == {"a": True, "b": False, "c": False, "d": True}


def test_the_page_names_every_type() -> None:
    page = (DOCS / "postgres-types.md").read_text()
    missing = [name for name in (*PLAIN_TYPES, *EXTENSION_TYPES) if f"`{name}" not in page]
    assert missing == []
