"""Ranges that users declare for columns of `numeric`: at attach, and again; and the error that says how."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

import millstream
from kits.capture import Kit, open_kit
from kits.shops import Shop
from millstream.catalog.numeric_ranges import NumericRanges, RangedColumn
from millstream.cli.main import main
from millstream.errors import Code, MillstreamError
from millstream.sources.postgres.values.number_text import fitting_range
from millstream.sql.statements import parse_statement
from millstream.sql.statements.model import AttachDatabase

Owner = psycopg.Connection[Any]
LARGE, SMALL = "1000000000000000000000000000000.25", "0.0000000000000000000123"


@pytest.fixture
def owner(shop: Shop) -> Iterator[Owner]:
    with shop.owner() as connection:
        for statement in (
            'CREATE TABLE t (id int PRIMARY KEY, price numeric, wide numeric(50,2), list numeric[], "Odd One" numeric)',
            "CREATE TABLE plain (id int, n numeric(10,2), d numeric(1000,500), v text)",
            "INSERT INTO t VALUES (1, 1.5, 2, '{3}', 4)",
        ):
            connection.execute(statement)
        yield connection


@pytest.fixture
def kit(shop: Shop, owner: Owner, tmp_path: Path) -> Iterator[Kit]:
    with open_kit(tmp_path / "lake", shop.address) as opened:
        yield opened


def attach(kit: Kit, shop: Shop, **numeric: str) -> None:
    """As another process would."""
    with millstream.connect(kit.root) as ms:
        ms.attach(
            "shop", shop.address.reference, cdc="trigger", numeric={f"public.t.{c}": r for c, r in numeric.items()}
        )


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("column", "value"), [("price", LARGE), ("price", SMALL), ("wide", "1e37"), ("list", f"{{1,{LARGE}}}")]
)
def test_the_error_names_column_value_and_a_way_out_that_works(
    kit: Kit, shop: Shop, owner: Owner, column: str, value: str
) -> None:
    kit.read("a", "t", column)
    kit.tick("t")
    owner.execute(f"UPDATE t SET {column} = %s".encode(), [value])
    with pytest.raises(MillstreamError) as caught:
        kit.tick("t")
    assert caught.value.code is Code.VALUE_UNSUPPORTED
    printed = owner.execute(f"SELECT {column}::text FROM t".encode()).fetchone()
    assert printed is not None
    assert all(word in caught.value.message for word in (f"column {column} of public.t", printed[0]))
    assert caught.value.hint is not None
    offered = re.search(r"NUMERIC \((\S+) AS (DECIMAL\(\d+,\d+\))\)", caught.value.hint)
    assert offered is not None
    with millstream.connect(kit.root) as ms:
        ms.attach("shop", shop.address.reference, cdc="trigger", numeric={offered[1]: offered[2]})
    assert kit.capture("t").state.resync
    kit.tick()  # for others
    assert kit.capture("t").state.stale
    kit.read("b", "t", column)
    kit.tick("t")
    assert_same_numbers(kit, owner)
    owner.execute("INSERT INTO t VALUES (2, 0, 0, '{}', 0)")
    kit.tick("t")
    assert_same_numbers(kit, owner)


@pytest.mark.postgres
def test_a_declared_range_is_the_mirrors_type(kit: Kit, shop: Shop, owner: Owner) -> None:
    attach(kit, shop, price="decimal(30, 4)", wide="NUMERIC(38)", list="decimal(20,10)")
    kit.read("a", "t", "price", "wide", "list")
    kit.tick("t")
    assert_same_numbers(kit, owner)
    types = {name: spark for name, _, spark in kit.capture("t").columns}
    assert types == {"id": "int", "price": "decimal(30,4)", "wide": "decimal(38,0)", "list": "array<decimal(20,10)>"}
    owner.execute("UPDATE t SET price = 1.23456")
    with pytest.raises(MillstreamError) as caught:
        kit.tick("t")
    assert caught.value.code is Code.VALUE_UNSUPPORTED


@pytest.mark.postgres
def test_only_what_is_named_is_declared_again(kit: Kit, shop: Shop, owner: Owner) -> None:
    attach(kit, shop, price="decimal(30,4)", wide="decimal(38,0)")
    kit.read("a", "t", "price")
    kit.tick("t")
    attach(kit, shop)
    attach(kit, shop, list="decimal(20,10)")
    assert kit.capture("t").state.resync is None  # none of its columns
    attach(kit, shop, wide="default")
    with millstream.connect(kit.root) as ms:
        (status,) = ms.sources()
    assert status.numeric == ("public.t.list=decimal(20,10)", "public.t.price=decimal(30,4)")
    attach(kit, shop, price="default")
    kit.tick()
    assert kit.capture("t").state.stale


@pytest.mark.postgres
def test_the_same_range_again_changes_nothing(kit: Kit, shop: Shop, owner: Owner) -> None:
    attach(kit, shop, price="decimal(30,4)")
    kit.read("a", "t", "price")
    kit.tick("t")
    before = kit.capture("t")
    attach(kit, shop, price="DECIMAL(30,4)")
    owner.execute("UPDATE t SET price = 2.5")
    kit.tick("t")
    assert_same_numbers(kit, owner)
    assert kit.capture("t").path == before.path


@pytest.mark.postgres
def test_a_range_makes_more_than_38_decimals_readable(kit: Kit, shop: Shop, owner: Owner) -> None:
    owner.execute("INSERT INTO plain (d) VALUES (0.5)")
    with pytest.raises(MillstreamError) as caught:
        kit.read("a", "plain", "d")
    assert caught.value.code is Code.UNSUPPORTED_TYPE
    with millstream.connect(kit.root) as ms:
        ms.attach("shop", shop.address.reference, cdc="trigger", numeric={"public.plain.d": "decimal(38,30)"})
    kit.read("a", "plain", "d")
    assert [row["d"] for row in kit_rows(kit, "plain")] == [Decimal("0.5")]


def assert_same_numbers(kit: Kit, owner: Owner) -> None:
    """The mirror holds what the table holds; how many zeros follow is not the same."""
    names = ", ".join(f'"{name}"' for name, _, _ in kit.capture("t").columns)
    stored = [tuple(row) for row in owner.execute(f"SELECT {names} FROM t ORDER BY id".encode())]
    assert sorted(tuple(row.values()) for row in kit_rows(kit, "t")) == stored


def kit_rows(kit: Kit, table: str) -> list[dict[str, Any]]:
    capture = kit.capture(table)
    assert capture.version is not None
    rows = kit.store.rows(capture.path, capture.version, 1_000)
    assert rows is not None
    return list(rows.to_pylist())


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("column", "range_", "code"),
    [
        ("public.t.price", "decimal(39,2)", Code.SETTING_INVALID),
        ("public.t.price", "decimal(10,11)", Code.SETTING_INVALID),
        ("public.t.price", "decimal(0,0)", Code.SETTING_INVALID),
        ("public.t.price", "decimal", Code.SETTING_INVALID),
        ("public.t.price", "double", Code.SETTING_INVALID),
        ("public.t.price", "", Code.SETTING_INVALID),
        ("t.price", "decimal(30,4)", Code.NAME_INVALID),
        ("a.b.c.d", "decimal(30,4)", Code.NAME_INVALID),
        ("public.none.price", "decimal(30,4)", Code.UNKNOWN_TABLE),
        ("public.t.none", "decimal(30,4)", Code.UNKNOWN_COLUMN),
        ("public.t.id", "decimal(30,4)", Code.UNSUPPORTED_TYPE),
        ("public.plain.n", "decimal(30,4)", Code.UNSUPPORTED_TYPE),
        ("public.plain.v", "decimal(30,4)", Code.UNSUPPORTED_TYPE),
    ],
)
def test_what_is_no_range_of_a_column_is_refused(
    kit: Kit, shop: Shop, owner: Owner, column: str, range_: str, code: Code
) -> None:
    before = kit.database
    with millstream.connect(kit.root) as ms, pytest.raises(MillstreamError) as caught:
        ms.attach("shop", shop.address.reference, cdc="trigger", numeric={column: range_})
    assert caught.value.code is code
    assert kit.database == before


@pytest.mark.postgres
def test_by_the_command_line(kit: Kit, shop: Shop, owner: Owner, capsys: pytest.CaptureFixture[str]) -> None:
    ranges = ["--numeric", "public.t.price=decimal(30,4)", "--numeric", 'public.t."Odd One"=decimal(12,2)']
    lake = ["--lake", str(kit.root)]
    assert main(["attach", "shop", shop.address.reference, "--cdc", "trigger", *ranges, *lake]) == 0
    assert main(["attach", "shop", shop.address.reference, "--numeric", "public.t.price", *lake]) != 0
    capsys.readouterr()
    assert main(["sources", "--json", *lake]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["numeric"] == ['public.t."Odd One"=decimal(12,2)', "public.t.price=decimal(30,4)"]


@pytest.mark.parametrize(
    ("clause", "numeric"),
    [
        ("", ()),
        (" NUMERIC (public.orders.price AS DECIMAL(30,4))", (("public.orders.price", "DECIMAL(30,4)"),)),
        (
            ' CDC wal NUMERIC (a.b."C d" AS numeric( 5 ), `x`.y.z as default)',
            (('a.b."C d"', "numeric( 5 )"), ('"x".y.z', "default")),
        ),
    ],
)
def test_the_clause(clause: str, numeric: tuple[tuple[str, str], ...]) -> None:
    statement = parse_statement(f"ATTACH POSTGRES 'env:U' AS shop{clause}")
    assert isinstance(statement, AttachDatabase)
    assert statement.numeric == numeric
    assert NumericRanges({}).changed(dict(numeric)).types.keys() <= {
        RangedColumn("public", "orders", "price"),
        RangedColumn("a", "b", "C d"),
    }


@pytest.mark.parametrize(
    "clause", ["NUMERIC", "NUMERIC ()", "NUMERIC (a.b AS decimal(1,1))", "NUMERIC (a.b.c)", "NUMERIC (a.b.c AS",
               "NUMERIC (a.b.c AS decimal(1,1)", "NUMERIC (a.b.c AS decimal(1,1)) CDC wal"],
)  # fmt: skip
def test_a_clause_that_is_none(clause: str) -> None:
    with pytest.raises(MillstreamError) as caught:
        parse_statement(f"ATTACH POSTGRES 'env:U' AS shop {clause}")
    assert caught.value.code is Code.SYNTAX_ERROR


@pytest.mark.parametrize(
    ("text", "range_"),
    [
        ("1", "decimal(38,18)"),
        ("9" * 38, "decimal(38,0)"),
        ("9" * 39, None),
        ("0." + "0" * 37 + "1", "decimal(38,38)"),
        ("0." + "0" * 38 + "1", None),
        ("-" + "1" * 20 + "." + "1" * 18 + "000", "decimal(38,18)"),
        ("1" * 20 + "." + "1" * 19, None),
        ("{1,NULL,0.12345678901234567890123}", "decimal(38,23)"),
        ("NaN", None),
        ("Infinity", None),
    ],
)
def test_the_range_that_is_offered(text: str, range_: str | None) -> None:
    assert fitting_range(text) == range_
