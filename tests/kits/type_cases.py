"""Each type's nastiest values, as SQL texts and as what is read: for every way of reading them."""

from __future__ import annotations

import datetime as dt
import math
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kits.shops import Shop

UTC = dt.UTC
UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
NASTY = [
    "",
    " ",
    "NULL",
    "null",
    "\\N",
    "\\.",
    '"',
    '""',
    "'",
    ",",
    "a,b",
    "{}",
    "{a}",
    "line\nbreak",
    "carriage\r\nreturn",
    "\r",
    "tab\tbed",
    "back\\slash",
    "\\\\",
    "\\x00",
    "ünïcödé",
    "日本語",
    "🙂",
    "a\u0301",
    "\u200b",
    "x" * 5000,
    " lead",
    "trail ",
]


@dataclass(frozen=True)
class Case:
    """A type, and values of it: each as SQL, and as what is read."""

    type: str
    spark: str
    values: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return self.type


def case(type_: str, spark: str, values: dict[str, Any]) -> Case:
    return Case(type_, spark, tuple(values.items()))


def same(*values: str) -> dict[str, Any]:
    return {value: value for value in values}


CASES = [
    case("smallint", "smallint", {"-32768": -32768, "32767": 32767, "0": 0}),
    case("integer", "int", {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    case("bigint", "bigint", {str(-(2**63)): -(2**63), str(2**63 - 1): 2**63 - 1}),
    case("oid", "bigint", {"0": 0, "4294967295": 2**32 - 1}),
    case("boolean", "boolean", {"true": True, "false": False}),
    case(
        "real",
        "float",
        {
            "NaN": math.nan,
            "Infinity": math.inf,
            "-Infinity": -math.inf,
            "-0": -0.0,
            "1e-45": 1.401298464324817e-45,
            "3.4028235e38": 3.4028234663852886e38,
            "0.1": 0.10000000149011612,
        },
    ),
    case(
        "double precision",
        "double",
        {
            "NaN": math.nan,
            "Infinity": math.inf,
            "-Infinity": -math.inf,
            "-0": -0.0,
            "5e-324": 5e-324,
            "0": 0.0,
            "1.7976931348623157e308": 1.7976931348623157e308,
            "0.1": 0.1,
            "0.30000000000000004": 0.1 + 0.2,
            "1e22": 1e22,
        },
    ),
    case(
        "numeric(10,2)",
        "decimal(10,2)",
        {"99999999.99": Decimal("99999999.99"), "-0.004": Decimal("0.00"), "7": Decimal("7.00")},
    ),
    case("numeric(38,0)", "decimal(38,0)", {"9" * 38: Decimal("9" * 38), "-" + "9" * 38: Decimal("-" + "9" * 38)}),
    case("numeric(38,38)", "decimal(38,38)", {"0." + "9" * 38: Decimal("0." + "9" * 38)}),
    case("numeric(3,-2)", "decimal(5,0)", {"99900": Decimal(99900), "149": Decimal(100)}),
    case("numeric(3,5)", "decimal(5,5)", {"0.00999": Decimal("0.00999"), "-0.00001": Decimal("-0.00001")}),
    case(
        "numeric",
        "decimal(38,18)",
        {
            "12345678901234567890.123456789012345678": Decimal("12345678901234567890.123456789012345678"),
            "1." + "0" * 60: Decimal(1),
            "1.50": Decimal("1.5"),
            "-0." + "0" * 17 + "1": Decimal("-1e-18"),
            "2.5" + "0" * 50: Decimal("2.5"),
        },
    ),
    case("numeric(50,2)", "decimal(38,2)", {"1" * 36 + ".12": Decimal("1" * 36 + ".12")}),
    case("text", "string", same(*NASTY)),
    case("varchar(5000)", "string", same(*NASTY)),
    case("json", "string", same('{"b": 1,\n "a":  "x\\"y", "a": null}', '"\\u00e9"', "null")),
    case("jsonb", "string", {'{"b":1,"a":"q\\"\\n","b":2.50}': '{"a": "q\\"\\n", "b": 2.50}', "null": "null"}),
    case("char(5)", "string", {"ab": "ab", "": "", "a  b ": "a  b", "\tx\t": "\tx\t", "ünïcö": "ünïcö"}),
    case("bpchar", "string", {"ab  ": "ab", "": ""}),
    case('"char"', "string", same("x", '"')),
    case("name", "string", same("a b", "")),
    case(
        "date",
        "date",
        {
            "0001-01-01": dt.date(1, 1, 1),
            "9999-12-31": dt.date(9999, 12, 31),
            "2024-02-29": dt.date(2024, 2, 29),
            "1582-10-10": dt.date(1582, 10, 10),
        },
    ),
    case(
        "timestamp",
        "timestamp_ntz",
        {
            "0001-01-01 00:00:00": dt.datetime(1, 1, 1),
            "9999-12-31 23:59:59.999999": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
            "2024-03-31 02:30:00.5": dt.datetime(2024, 3, 31, 2, 30, 0, 500000),
            "2016-12-31 23:59:60": dt.datetime(2017, 1, 1),
        },
    ),
    case("timestamp(3)", "timestamp_ntz", {"2024-01-01 00:00:00.0005": dt.datetime(2024, 1, 1, 0, 0, 0, 1000)}),
    case(
        "timestamptz",
        "timestamp",
        {
            "2024-03-31 02:30:00+05:30": dt.datetime(2024, 3, 30, 21, 0, tzinfo=UTC),
            "0001-01-01 00:00:00+00": dt.datetime(1, 1, 1, tzinfo=UTC),
            "1890-01-01 00:00:00 Europe/Berlin": dt.datetime(1889, 12, 31, 23, 6, 32, tzinfo=UTC),
            "9999-12-31 23:59:59.999999+00": dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        },
    ),
    case("time", "string", {"24:00": "24:00:00", "12:00:00.50": "12:00:00.5"}),
    case("timetz", "string", {"12:00+05:30": "12:00:00+05:30"}),
    case(
        "interval",
        "string",
        {
            "1 year 2 months 3 days 04:05:06.7": "P1Y2M3DT4H5M6.7S",
            "0": "PT0S",
            "-1 mon +1 day": "P-1M1D",
            "infinity": "infinity",
        },
    ),
    case("interval day to second(2)", "string", {"1 01:02:03.456": "P1DT1H2M3.46S"}),
    case("uuid", "string", {UUID.upper(): UUID}),
    case("inet", "string", same("10.0.0.1", "10.0.0.1/8", "::1")),
    case("cidr", "string", same("10.0.0.0/8", "10.0.0.1/32")),
    case("macaddr", "string", {"08-00-2B-01-02-03": "08:00:2b:01:02:03"}),
    case("macaddr8", "string", same("08:00:2b:01:02:03:04:05")),
    case("bytea", "binary", {"\\x": b"", "\\x00ff5c6e": b"\x00\xff\\n", "\\x" + "ab" * 3000: b"\xab" * 3000}),
    case("bit(3)", "string", same("010")),
    case("bit varying(5)", "string", same("", "10101")),
    case("int4range", "string", {"[1,5]": "[1,6)", "empty": "empty", "(,)": "(,)"}),
    case("tstzrange", "string", {"[2024-01-01 00:00+01,]": '["2023-12-31 23:00:00+00",)'}),
    case("int4multirange", "string", {"{[1,2],[8,9]}": "{[1,3),[8,10)}"}),
    case("tsvector", "string", {"a:1 'b c':2": "'a':1 'b c':2"}),
    case("tsquery", "string", {"a & !b": "'a' & !'b'"}),
    case("jsonpath", "string", {"$.a[*]": '$."a"[*]'}),
    case("pg_lsn", "string", same("16/B374D848")),
    case("point", "string", {"(1.5,-0)": "(1.5,-0)"}),
    case("public.mood", "string", same("sad", 'so, "so"', "")),
    case("public.price", "decimal(10,2)", {"1.5": Decimal("1.50")}),
    case("public.dear_price", "decimal(10,2)", {"1.5": Decimal("1.50")}),
    case("public.prices", "array<decimal(10,2)>", {"{1.5,NULL}": [Decimal("1.50"), None]}),
    case("public.moment", "timestamp", {"2024-03-31 02:30:00+05:30": dt.datetime(2024, 3, 30, 21, 0, tzinfo=UTC)}),
    case("public.ratio", "double", {"0.30000000000000004": 0.1 + 0.2, "-0": -0.0, "NaN": math.nan}),
    case("public.words", "array<string>", {'{"a,b",NULL,""}': ["a,b", None, ""], "{}": []}),
    case(
        "public.moment[]",
        "array<timestamp>",
        {'{"2024-01-01 01:00:00+01",NULL}': [dt.datetime(2024, 1, 1, tzinfo=UTC), None]},
    ),
    case("public.ratio[]", "array<double>", {"{0.30000000000000004,-0}": [0.1 + 0.2, -0.0]}),
    case("public.span", "string", {"[2024-01-01 00:00+01,]": '["2023-12-31 23:00:00+00",)', "empty": "empty"}),
    case("public.span[]", "array<string>", {'{"[2024-01-01 00:00+01,]"}': ['["2023-12-31 23:00:00+00",)']}),
    case("public.span_multirange", "string", {"{[2024-01-01 00:00+01,]}": '{["2023-12-31 23:00:00+00",)}'}),
    case("public.ratios", "string", {"[0.30000000000000004,1)": "[0.30000000000000004,1)"}),
    case("public.waits", "string", {"[1 day,2 days)": "[P1D,P2D)"}),
    case("public.bytes", "string", {"[\\\\x00,\\\\xff)": '["\\\\x00","\\\\xff")'}),
    case("integer[]", "array<int>", {"{}": [], "{1,NULL,-3}": [1, None, -3], "{7}": [7], "{NULL}": [None]}),
    case("boolean[]", "array<boolean>", {"{t,f,NULL}": [True, False, None]}),
    case("float8[]", "array<double>", {"{NaN,-0,1e300,-Infinity}": [math.nan, -0.0, 1e300, -math.inf]}),
    case("numeric(10,2)[]", "array<decimal(10,2)>", {"{1,2.345}": [Decimal("1.00"), Decimal("2.35")]}),
    case("numeric[]", "array<decimal(38,18)>", {"{1.50}": [Decimal("1.5")]}),
    case("char(3)[]", "array<string>", {"{a,NULL,b}": ["a", None, "b"], "{}": []}),
    case("date[]", "array<date>", {"{2024-01-01}": [dt.date(2024, 1, 1)]}),
    case(
        "timestamptz[]",
        "array<timestamp>",
        {'{"2024-01-01 01:00:00+01",NULL}': [dt.datetime(2024, 1, 1, tzinfo=UTC), None]},
    ),
    case("bytea[]", "array<binary>", {'{"\\\\x00ff","\\\\x",NULL}': [b"\x00\xff", b"", None]}),
    case("public.mood[]", "array<string>", {'{sad,"","so, \\"so\\""}': ["sad", "", 'so, "so"']}),
    case("public.price[]", "array<decimal(10,2)>", {"{1.5}": [Decimal("1.50")]}),
    case("int4range[]", "array<string>", {'{"[1,5]"}': ["[1,6)"]}),
    case("uuid[]", "array<string>", {f"{{{UUID.upper()}}}": [UUID]}),
]

EXTENSION_CASES = [
    case("xml", "string", same('<a>b &amp; "c"\n</a>')),
    case("public.citext", "string", same("MiXed", "", "a b")),
    case("public.hstore", "string", {'b=>1, a=>"x y", c=>NULL': '"a"=>"x y", "b"=>"1", "c"=>NULL'}),
    case("public.ltree", "string", same("a.b.c")),
    case("public.citext[]", "array<string>", {'{A,"b c"}': ["A", "b c"]}),
]


def create_types(shop: Shop) -> None:
    """The user's own types among the cases."""
    with shop.owner() as owner:
        owner.execute("CREATE TYPE mood AS ENUM ('sad', 'so, \"so\"', '')")
        owner.execute("CREATE DOMAIN price AS numeric(10,2)")
        owner.execute("CREATE DOMAIN dear_price AS price CHECK (value > 1)")
        owner.execute("CREATE DOMAIN prices AS numeric(10,2)[]")
        owner.execute("CREATE TYPE pair AS (a int, b text)")
        owner.execute("CREATE DOMAIN moment AS timestamptz")
        owner.execute("CREATE DOMAIN ratio AS float8")
        owner.execute("CREATE DOMAIN words AS text[] CHECK (cardinality(value) < 9)")
        owner.execute("CREATE TYPE span AS RANGE (subtype = timestamptz)")
        owner.execute("CREATE TYPE ratios AS RANGE (subtype = ratio)")
        owner.execute("CREATE TYPE waits AS RANGE (subtype = interval)")
        owner.execute("CREATE TYPE bytes AS RANGE (subtype = bytea)")


def create_extensions(shop: Shop) -> None:
    """Those whose types are among the cases; only a superuser may."""
    with shop.server.superuser(shop.name) as superuser:
        for extension in ("citext", "hstore", "ltree"):
            superuser.execute(f"CREATE EXTENSION {extension}")


def exact(value: Any) -> Any:
    """A float as its bits, so that NaN is NaN and -0.0 is not 0.0."""
    if isinstance(value, list):
        return [exact(v) for v in value]
    return struct.pack("d", value) if isinstance(value, float) else value
