"""Values at the bounds of every type, and values of PostgreSQL's that lie beyond those of the type on Spark."""

from __future__ import annotations

from dataclasses import dataclass

from kits.type_cases import NASTY, UUID

TWO_127, TWO_128 = 2**127, 2**128
LONG_LINE = "".join(chr(c) for c in (*range(1, 0x250), 0x85, 0x2028, 0xFEFF, 0xFFFD, 0xFFFF, 0x10FFFF))


@dataclass(frozen=True)
class Bounds:
    """Values of a type, as SQL texts.

    Args:
        fits: come out as PostgreSQL prints them.
        beyond: PostgreSQL has them, and Spark's type cannot.
        new_fits: fit too, on servers from `new_server` on.
    """

    fits: tuple[str, ...]
    beyond: tuple[str, ...] = ()
    new_fits: tuple[str, ...] = ()
    new_server: int = 17


def _scaled(number: int, scale: int) -> str:
    """A number with its last digits behind the point.

    >>> _scaled(-12345, 2)
    '-123.45'
    """
    digits = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


def _decimals(scale: int) -> Bounds:
    """At and beyond the 38 digits that a DECIMAL has."""
    most = 10**38 - 1
    fits = [0, 1, -1, most, -most, most - 1, 10**37]
    beyond = [most + 1, -most - 1, TWO_127 - 1, TWO_127, -TWO_127, TWO_127 + 1]
    beyond += [n * TWO_128 + offset for n in (1, -1, 2, 10**20, 3**50) for offset in (-1, 0, 1, 7, most)]
    beyond += [10**n for n in (39, 40, 47, 48, 56, 57, 76, 77, 78, 100)] + [10**39 - 1, 10**57 - 1, 10**115 - 1]
    return Bounds(
        tuple(_scaled(n, scale) for n in fits),
        (*(_scaled(n, scale) for n in beyond), "NaN", "Infinity", "-Infinity"),
    )


BOUNDS: dict[str, Bounds] = {
    "smallint": Bounds(("-32768", "32767", "0", "-1")),
    "integer": Bounds(("-2147483648", "2147483647", "0")),
    "bigint": Bounds((str(-(2**63)), str(2**63 - 1), "0", str(2**53 + 1), str(-(2**53) - 1))),
    "oid": Bounds(("0", "2147483647", "2147483648", "4294967295")),
    "boolean": Bounds(("true", "false")),
    "real": Bounds(
        (
            *("0", "-0", "NaN", "Infinity", "-Infinity", "3.4028235e38", "-3.4028235e38", "1.1754944e-38"),
            *(
                "1.1754942e-38",
                "1e-45",
                "-1e-45",
                "1.4e-45",
                "16777216",
                "16777215",
                "8388608.5",
                "0.1",
                "1e-7",
                "1e15",
            ),
        )
    ),
    "double precision": Bounds(
        (
            *("0", "-0", "NaN", "Infinity", "-Infinity", "1.7976931348623157e308", "-1.7976931348623157e308", "5e-324"),
            *("-5e-324", "2.2250738585072014e-308", "2.225073858507201e-308", "9007199254740993", "1e15", "1e16"),
            *("123456789012345680", "0.30000000000000004", "1e-5", "0.0001", "1e22", "1e23", "3.4028236e38", "1e39"),
        )
    ),
    "numeric(38,0)": Bounds(_decimals(0).fits, ("NaN",)),
    "numeric(38,38)": Bounds(_decimals(38).fits, ("NaN",)),
    "numeric(10,2)": Bounds(("99999999.99", "-99999999.99", "0.01", "-0.01", "0"), ("NaN",)),
    "numeric(3,-2)": Bounds(("99900", "-99900", "100", "0"), ("NaN",)),
    "numeric(3,5)": Bounds(("0.00999", "-0.00999", "0.00001", "0"), ("NaN",)),
    "numeric(39,0)": Bounds(_decimals(0).fits, ("1" + "0" * 38, "9" * 39, str(TWO_127), str(TWO_128), "NaN")),
    "numeric(50,2)": Bounds(_decimals(2).fits, ("1e36", "1e40", "-1e40", "9" * 48 + ".99", _scaled(TWO_128, 2), "NaN")),
    "numeric(100,-50)": Bounds(("0",), ("1e50", "-1e50", "1e149", "NaN")),
    "numeric(76,38)": Bounds(_decimals(38).fits, ("1", "-1", "9" * 38, _scaled(TWO_128, 38), "NaN")),
    "numeric(1000,2)": Bounds(_decimals(2).fits, _decimals(2).beyond[:-2]),
    "numeric": Bounds(
        (*_decimals(18).fits, "1.50", "1." + "0" * 60, "2.5" + "0" * 50, "10", "0.000", "-7.000"),
        (
            *_decimals(18).beyond,
            *("1e20", "-1e20", "1e30", "1e40", "1e131071", "1e-19", "-1e-19", "1.0000000000000000001", "1e-16000"),
            "0." + "9" * 19,
            "0." + "3" * 40,
        ),
    ),
    "numeric[]": Bounds(("{}", "{NULL}", "{1.50,-0.000000000000000001}"), ("{1,1e30}", "{NaN}", "{NULL,1e-19}")),
    "numeric(50,2)[]": Bounds(("{1}", "{}"), ("{1e40}", "{0,1e36}")),
    "public.amount": Bounds(_decimals(18).fits, ("1e30", "NaN", "1e-19")),
    "public.amounts": Bounds(("{1.5}",), ("{1e30}", "{NaN}")),
    "text": Bounds((*NASTY, LONG_LINE)),
    "character varying": Bounds((*NASTY, LONG_LINE)),
    "character": Bounds(("x", "", " ", "\u0001", "\U0010ffff")),
    "bpchar": Bounds(("ab", "", " a", "\t")),
    '"char"': Bounds(("x", "", "\u007f")),
    "name": Bounds(("a" * 63, "", "é" * 31)),
    "date": Bounds(
        ("0001-01-01", "9999-12-31", "1582-10-04", "1582-10-05", "1582-10-15", "1970-01-01", "1969-12-31"),
        (
            *("infinity", "-infinity", "0001-12-31 BC", "4713-01-01 BC", "4714-11-24 BC", "10000-01-01"),
            *("12024-05-06", "99999-12-31", "5874897-12-31"),
        ),
    ),
    "timestamp without time zone": Bounds(
        (
            *("0001-01-01 00:00:00", "0001-01-01 00:00:00.000001", "9999-12-31 23:59:59.999999", "1970-01-01 00:00:00"),
            *("1969-12-31 23:59:59.999999", "2024-01-01 24:00:00", "2016-12-31 23:59:60", "1900-02-28 23:59:59.1"),
        ),
        (
            *("infinity", "-infinity", "0001-12-31 23:59:59.999999 BC", "4714-11-24 00:00:00 BC"),
            *("10000-01-01 00:00:00", "9999-12-31 24:00:00", "294276-12-31 23:59:59.999999"),
        ),
    ),
    "timestamp with time zone": Bounds(
        (
            *("0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "9999-12-31 20:59:59-03"),
            *("0001-01-01 01:00:00+01", "2024-01-01 24:00:00+00", "1890-01-01 00:00:00 Europe/Berlin"),
            "2024-06-01 00:00:00+15:59:59",
        ),
        (
            *("infinity", "-infinity", "0001-01-01 00:00:00+01", "0001-12-31 23:59:59.999999+00 BC"),
            *("10000-01-01 00:00:00+00", "9999-12-31 23:59:59.999999-01", "294276-12-31 23:59:59.999999+00"),
            "4714-11-24 00:00:00+00 BC",
        ),
    ),
    "time without time zone": Bounds(("00:00:00", "24:00:00", "23:59:59.999999", "23:59:60")),
    "time with time zone": Bounds(("00:00:00+15:59:59", "24:00:00-15:59:59", "12:00:00.000001+00")),
    "interval": Bounds(
        (
            *("0", "178000000 years", "-178000000 years", "-1 mon +1 day -00:00:00.000001", "2147483647 mons"),
            *("-2147483648 days", "2562047788:00:54.775807", "-00:00:00.5", "1 year -1 mon"),
        ),
        new_fits=("infinity", "-infinity"),
    ),
    "uuid": Bounds((UUID, "0" * 32, "f" * 32)),
    "bytea": Bounds(("\\x", "\\x00", "\\xff", "\\x" + bytes(range(256)).hex())),
    "bit": Bounds(("0", "1")),
    "bit varying": Bounds(("", "0" * 100, "1" * 65)),
    "json": Bounds(('{"a": 1e400, "a": -0.0}', "1" + "0" * 60, '"\\u0000"', "null", " [ ] ")),
    "jsonb": Bounds(('{"a": 1e400, "b": -0.0}', "1" + "0" * 60, '"\\ud83d\\ude00"', "null", "1.50", "[]")),
    "jsonpath": Bounds(("$", "strict $.a[*] ? (@ > 1.50)")),
    "inet": Bounds(("0.0.0.0", "255.255.255.255", "10.0.0.1/8", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/1")),
    "cidr": Bounds(("0.0.0.0/0", "::/0", "255.255.255.255/32")),
    "macaddr": Bounds(("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff")),
    "macaddr8": Bounds(("00:00:00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff:ff:ff")),
    "tsvector": Bounds(("", "'a':16383A 'b':1B,2C", "'it''s' 'back\\\\slash'")),
    "tsquery": Bounds(("", "'a' & !( 'b' | 'c':*A )", "'a' <16384> 'b'")),
    "pg_lsn": Bounds(("0/0", "FFFFFFFF/FFFFFFFF")),
    "point": Bounds(("(0,-0)", "(Infinity,NaN)", "(5e-324,1.7976931348623157e+308)")),
    "line": Bounds(("{1,-0,1.5}",)),
    "lseg": Bounds(("[(0,0),(1e300,-0)]",)),
    "box": Bounds(("(1,1),(-0,0)", "(Infinity,1),(0,0)")),
    "path": Bounds(("((0,0),(1,1))", "[(0,0),(1,-0)]")),
    "polygon": Bounds(("((0,0),(1,1),(1,-0))",)),
    "circle": Bounds(("<(0,-0),1e300>",)),
    "real[]": Bounds(("{0,-0,NaN,1e-45,3.4028235e38}",)),
    "double precision[]": Bounds(("{0,-0,NaN,-Infinity,5e-324}",)),
    "date[]": Bounds(("{0001-01-01,9999-12-31}",), ("{infinity}", "{NULL,10000-01-01}", '{"0001-01-01 BC"}')),
    "timestamp without time zone[]": Bounds(('{"9999-12-31 23:59:59.999999"}',), ("{-infinity}",)),
}

ELSEWHERE = {"xml": "the wheel's server has none; type_cases.py has it for the other"}
"""Types of `PLAIN_TYPES` that have their values elsewhere, and why."""
