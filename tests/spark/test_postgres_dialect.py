"""Every expression of the fixture over a table of edge cases: PostgreSQL's own answer against the translation's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import set_json_loads
from pyspark.errors import PySparkException

from kits.catalog_server import new_schema_url
from kits.paths import FIXTURES
from millstream.engine.analyzer import SparkAnalyzer
from millstream.ops import Column
from millstream.sql.postgres import translate
from millstream.sql.sources import NativeType, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

CASES = FIXTURES / "postgres"
SPARK_TYPES = {
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float4": "float",
    "float8": "double",
    "text": "string",
    "varchar": "string",
    "bool": "boolean",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "json": "string",
    "jsonb": "string",
}


def expressions() -> dict[str, list[str]]:
    """The fixture's expressions by family."""
    families: dict[str, list[str]] = {}
    for line in (CASES / "expressions.sql").read_text().splitlines():
        if line.startswith("-- "):
            families[line[3:]] = []
        elif line:
            families[list(families)[-1]].append(line)
    return families


@pytest.fixture(scope="module")
def postgres() -> Iterator[psycopg.Connection[Any]]:
    """A PostgreSQL with the table of edge cases."""
    with psycopg.connect(new_schema_url(), autocommit=True) as connection:
        set_json_loads(lambda text: text if isinstance(text, str) else bytes(text).decode(), connection)
        connection.execute("SET TIME ZONE 'UTC'")
        connection.execute((CASES / "table.sql").read_text())
        connection.execute("CREATE TABLE e (LIKE v)")
        yield connection


@pytest.fixture(scope="module")
def world(postgres: psycopg.Connection[Any], spark: SparkSession) -> World:
    return World(postgres, spark)


class World:
    """The same table on both sides."""

    def __init__(self, postgres: psycopg.Connection[Any], spark: SparkSession) -> None:
        self.postgres = postgres
        self.spark = spark
        cursor = postgres.execute("SELECT * FROM v ORDER BY id")
        types = [spark_type(d) for d in cursor.description or ()]
        names = [d.name for d in cursor.description or ()]
        rows = [tuple(map(_local, row)) for row in cursor.fetchall()]
        schema = ", ".join(f"{n} {t}" for n, t in zip(names, types, strict=True))
        spark.createDataFrame(rows, schema).createOrReplaceTempView("v")
        spark.createDataFrame([], schema).createOrReplaceTempView("e")
        native = tuple((d.name, NativeType(d.type_display.removesuffix("[]"))) for d in cursor.description or ())
        self.source = Source("v", tuple(Column(n, t) for n, t in zip(names, types, strict=True)), native_types=native)

    def find(self, parts: tuple[str, ...]) -> Source | None:
        return replace(self.source, id=parts[0]) if parts in {("v",), ("e",)} else None

    def translated(self, query: str) -> str:
        return translate(query, self, SparkAnalyzer(self.spark)).spark_text

    def compare(self, query: str, titles: list[str] | None = None, *, is_bag: bool = False) -> list[str]:
        """What differs between the two answers, value by value and type by type."""
        cursor = self.postgres.execute(query)
        wanted = [tuple(map(_local, row)) for row in cursor.fetchall()]
        columns = list(cursor.description or ())
        frame = self.spark.sql(self.translated(query))
        actual = [tuple(row) for row in frame.collect()]
        if is_bag or "DISTINCT ON" in query:  # which also sorts, in PostgreSQL
            wanted, actual = sorted(wanted, key=repr), sorted(actual, key=repr)
        wrong = []
        for i, (column, field) in enumerate(zip(columns, frame.schema.fields, strict=True)):
            title = titles[i] if titles else column.name
            type_ = field.dataType.simpleString()
            if not fits(spark_type(column), type_):
                wrong.append(f"{title}: is {type_}, PostgreSQL has {spark_type(column)}")
            if titles is None and column.name != field.name:
                wrong.append(f"{title}: is called {field.name}")
        if len(wanted) != len(actual):
            return [*wrong, f"{len(actual)} rows, PostgreSQL has {len(wanted)}: {actual} {wanted}"]
        for row, (one, two) in enumerate(zip(actual, wanted, strict=True)):
            for i, (a, w) in enumerate(zip(one, two, strict=True)):
                if not same(a, w):
                    wrong.append(
                        f"{titles[i] if titles else columns[i].name}, row {row + 1}: {a!r}, PostgreSQL has {w!r}"
                    )
        return wrong


def spark_type(column: psycopg.Column) -> str:
    """Spark's type for PostgreSQL's; a numeric of any size."""
    name = column.type_display.split("(")[0].removesuffix("[]")
    if column.type_display.endswith("[]"):
        return f"array<{SPARK_TYPES.get(name, 'decimal(38,18)')}>"
    if name == "numeric":
        return f"decimal({column.precision},{column.scale})" if column.precision else "decimal(38,18)"
    return SPARK_TYPES.get(name, name)


def fits(wanted: str, actual: str) -> bool:
    return (
        actual == wanted
        or (wanted.startswith("decimal") and actual.startswith("decimal"))
        or (wanted.startswith("array<decimal") and actual.startswith("array<decimal"))
    )


def _local(value: Any) -> Any:
    """Moments as Spark hands them out: on this machine's clock."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    return value


def same(actual: Any, wanted: Any) -> bool:
    """Equal; doubles nearly, numerics as far as PostgreSQL's division goes."""
    if isinstance(actual, float) and isinstance(wanted, float):
        return math.isclose(actual, wanted, rel_tol=1e-12) or (math.isnan(actual) and math.isnan(wanted))
    if isinstance(actual, Decimal) and isinstance(wanted, Decimal):
        return actual == wanted or (
            abs(actual.as_tuple().exponent) >= 16 and abs(actual - wanted) <= Decimal("1e-15") * max(1, abs(wanted))
        )
    if isinstance(actual, list) and isinstance(wanted, list):
        return len(actual) == len(wanted) and all(map(same, actual, wanted))
    return type(actual) is type(wanted) and actual == wanted


@pytest.mark.parametrize("family", list(expressions()))
def test_expressions_mean_what_postgresql_means(family: str, world: World) -> None:
    listed = expressions()[family]
    query = ", ".join(f"{e} AS c{i}" for i, e in enumerate(listed))
    wrong = world.compare(f"SELECT {query} FROM v ORDER BY id", listed)
    assert not wrong, "\n" + "\n".join(wrong)


def queries() -> dict[str, list[str]]:
    """The fixture's queries by title."""
    blocks = (CASES / "queries.sql").read_text().strip().split("\n\n")
    titled = [block.split("\n", 1) for block in blocks]
    return {title.removeprefix("# title: "): body.split("\n----\n") for title, body in titled}


@pytest.mark.parametrize("title", list(queries()))
def test_queries_mean_what_postgresql_means(title: str, world: World) -> None:
    wrong = []
    for query in queries()[title]:
        try:
            wrong += [f"{query}\n  {difference}" for difference in world.compare(query)]
        except Exception as e:  # noqa: BLE001 - all of a title's queries are looked at
            wrong.append(f"{query}\n  {str(e)[:1500]}\n  {world.translated(query)}")
    assert not wrong, "\n" + "\n".join(wrong)


def over_nothing() -> dict[str, list[str]]:
    """The fixture's queries over tables without rows, `e`, by family."""
    families: dict[str, list[str]] = {}
    for line in (CASES / "empty.sql").read_text().splitlines():
        if line.startswith("-- "):
            families[line[3:]] = []
        elif line:
            families[list(families)[-1]].append(line)
    return families


# the groups of no rows, and the rest, which has been right so far, when it is asked for
FAMILIES = [pytest.param(f, marks=[] if "GROUP BY" in f or "sets" in f else pytest.mark.long) for f in over_nothing()]


@pytest.mark.parametrize("family", FAMILIES)
def test_queries_over_no_rows_mean_what_postgresql_means(family: str, world: World) -> None:
    wrong = []
    for query in over_nothing()[family]:
        try:
            wrong += [f"{query}\n  {difference}" for difference in world.compare(query, is_bag=True)]
        except Exception as e:  # noqa: BLE001 - all of a family's queries are looked at
            wrong.append(f"{query}\n  {str(e)[:600]}")
    assert not wrong, "\n" + "\n".join(wrong)


CLOCKS = [
    "timestamptz '2024-11-03 05:30+00' AT TIME ZONE 'UTC'",
    "timestamptz '2024-11-03 06:30+00' AT TIME ZONE 'UTC'",
    "timestamptz '2024-11-03 06:30+00' AT TIME ZONE 'Europe/Berlin'",
    "date_trunc('hour', timestamptz '2024-11-03 05:30+00')",
    "date_trunc('hour', timestamptz '2024-11-03 06:30:30+00')",
    "date_trunc('minute', timestamptz '2024-11-03 06:30:30+00')",
    "date_trunc('day', timestamptz '2024-11-03 06:30+00')",
    "date_trunc('month', date '2024-11-03')",
    "ts::timestamptz",
    "tz AT TIME ZONE 'UTC'",
    "ts AT TIME ZONE 'UTC'",
    "('2024-11-03 01:30'::timestamp) AT TIME ZONE 'UTC'",
    "'2024-11-03 01:30'::timestamptz",
    "'2024-11-03 00:30'::timestamptz",
    "'2024-11-03 02:00'::timestamptz",
    "'2024-03-10 02:30'::timestamptz",
    "'2024-03-10 01:30'::timestamptz",
    "('2024-11-03 01:30' || repeat('', i))::timestamptz",
    "('2024-11-03 01:30' || repeat('+00', 1))::timestamptz",
    "('2024-11-03' || repeat('', i))::timestamptz",
    "(d + 0)::timestamptz",
    "to_timestamp('2024-11-03 01:30:00', 'YYYY-MM-DD HH24:MI:SS')",
]


def test_times_that_come_twice_are_the_later_ones(world: World) -> None:
    """On a session's clock that is put back; what is compared are moments, or clocks of other places."""
    world.postgres.execute("SET TIME ZONE 'America/New_York'")
    before = world.spark.conf.get("spark.sql.session.timeZone")
    world.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        listed = ", ".join(f"{e} AS c{i}" for i, e in enumerate(CLOCKS))
        wrong = world.compare(f"SELECT {listed} FROM v WHERE id < 4 ORDER BY id", CLOCKS)
    finally:
        world.spark.conf.set("spark.sql.session.timeZone", before)
        world.postgres.execute("SET TIME ZONE 'UTC'")
    assert not wrong, "\n" + "\n".join(wrong)


FAILING = [
    "'abc'::text::integer",
    "'1.5'::text::integer",
    "''::text::integer",
    "'maybe'::text::boolean",
    "'2024'::text::date",
    "'2024-02-30'::text::date",
    "'noon'::text::timestamp",
    "1 / (k - k)",
    "n / 0",
    "f / 0",
    "i % 0",
    "i + 2147483647",
    "i * 2147483647",
    "b + 9223372036854775807",
    "(f * 1e30)::integer",
    "(n * 1000000000)::integer",
    "n::numeric(3, 2)",
    "sqrt(-abs(k))",
    "ln(k - k)",
    "substr(s, 1, -k)",
    "'x'::text::numeric(5, 2)",
]


@pytest.mark.parametrize("expression", FAILING)
def test_what_fails_in_postgresql_fails(expression: str, world: World) -> None:
    query = f"SELECT {expression} AS x FROM v WHERE id = 1"
    with pytest.raises(psycopg.Error):
        world.postgres.execute(query)
    with pytest.raises(PySparkException):
        world.spark.sql(world.translated(query)).collect()
