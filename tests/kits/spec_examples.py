"""The examples of fixtures/spec: what they say, and the two databases that they run in.

A file of examples has blocks with a title and a query in PostgreSQL's SQL. Further headers say what is to come of it:

- expect: `maintained` (unless said: no refresh computes it anew) or `refused CODE`
- spec: what the specification says, where millstream does otherwise
- oracle: a query that fixes what the query leaves open, for PostgreSQL
- name: how the stream table is called, for others that read it
- view: the name and the query of a view that it reads
- run: `always` for those that are no part of the long test only
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import sqlglot
from psycopg.types.json import set_json_loads

from kits.lake import FEED, Lake, plain, refused
from kits.paths import FIXTURES
from millstream import Action, Code
from millstream.testing.golden import Case, read_cases

if TYPE_CHECKING:
    import psycopg

CASES = FIXTURES / "spec"
CHAPTERS = ("started", "aggregates", "queries", "lateral", "expressions", "refused")
MAINTAINED = {Action.DIFFERENTIAL, Action.APPEND_ONLY, Action.NO_DATA}


@dataclass(frozen=True)
class Example:
    """One query with what is to come of it."""

    case: Case
    name: str

    @property
    def title(self) -> str:
        return self.case.title

    @property
    def query(self) -> str:
        return self.case.text

    @property
    def expect(self) -> str:
        return self.case.headers.get("expect", "maintained")

    @property
    def oracle(self) -> str:
        return self.case.headers.get("oracle", self.query)

    @property
    def view(self) -> tuple[str, str] | None:
        name, _, query = self.case.headers.get("view", "").partition(" ")
        return (name, query) if name else None


def examples(*, everything: bool) -> list[Example]:
    """The examples of all chapters, or those that are always run, with what is refused."""
    found = [
        Example(case, case.headers.get("name", f"{chapter}_{i}"))
        for chapter in CHAPTERS
        for i, case in enumerate(read_cases(CASES / f"{chapter}.sql"), 1)
    ]
    return [e for e in found if everything or e.case.headers.get("run") == "always" or e.expect.startswith("refused")]


def tables() -> list[str]:
    """The statements that make the tables, with the rows they have in the beginning."""
    return re.split(r";\s*", (CASES / "tables.sql").read_text().strip().removesuffix(";"))


def batches() -> list[list[str]]:
    """The changes, one list of statements per refresh."""
    blocks = (CASES / "changes.sql").read_text().strip().split("\n\n")
    return [block.split("\n", 1)[1].split("\n----\n") for block in blocks]


def table_of(statement: str) -> str:
    """The table that a statement is about.

    >>> table_of("DELETE FROM items WHERE qty = 1")
    'items'
    """
    found = re.match(r"(?:CREATE (?:TABLE|TYPE|VIEW)|INSERT INTO|UPDATE|DELETE FROM) (\w+)", statement)
    assert found is not None, statement
    return found[1]


@dataclass
class World:
    """The tables that the examples read, in a lake and in a PostgreSQL, changed by the same statements."""

    lake: Lake
    postgres: psycopg.Connection[tuple[Any, ...]]
    examples: list[Example]
    streams: list[Example] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def load(self) -> None:
        """Make the tables."""
        set_json_loads(lambda text: text if isinstance(text, str) else bytes(text).decode(), self.postgres)
        self.change(tables())

    def change(self, statements: list[str]) -> None:
        """Run the statements that are about tables in use, on both sides."""
        used = {word for e in self.examples for word in re.findall(r"\w+", f"{e.query} {e.view}")}
        for statement in statements:
            if table_of(statement) == "place":
                self.postgres.execute(statement)
            elif table_of(statement) in used:
                self._run(statement)

    def _run(self, statement: str) -> None:
        self.postgres.execute(statement)
        self.lake.sql(spark_statement(statement))

    def create(self) -> None:
        """Make the stream tables and, in PostgreSQL, views of the same names; look whether the rest is refused."""
        for example in self.examples:
            if view := example.view:
                self._run(f"CREATE VIEW {view[0]} AS {view[1]}")
            kind, _, code = example.expect.partition(" ")
            with self._noted(example, "is not refused" if kind == "refused" else "is not created"):
                if kind == "refused":
                    with refused(Code(code)) as caught:
                        self._create(example)
                    assert caught.value.hint or code == Code.SYNTAX_ERROR, caught.value
                else:
                    self._create(example)
                    self.streams.append(example)
                    self.postgres.execute(f"CREATE VIEW {example.name} AS {example.oracle}")

    def _create(self, example: Example) -> None:
        self.lake.ms.create_stream_table(example.name, example.query, refresh_mode="DIFFERENTIAL", dialect="postgres")

    def refresh(self) -> None:
        """Refresh all stream tables and look at each."""
        for example in self.streams:
            with self._noted(example, "is not refreshed"):
                result = self.lake.ms.refresh_stream_table(example.name)
                assert result.action in MAINTAINED, f"{result.action}: {result.reason}"
                verdict = self.lake.ms.verify(example.name)
                assert verdict.ok, str(verdict)

    def compare(self) -> None:
        """Hold the contents against PostgreSQL's."""
        for example in self.streams:
            with self._noted(example, "differs from PostgreSQL"):
                actual = bag(map(tuple, self.lake.ms.table(example.name).collect()))
                wanted = bag(self.postgres.execute(example.oracle).fetchall())
                assert actual == wanted, f"missing {dict(wanted - actual)}, extra {dict(actual - wanted)}"

    def _noted(self, example: Example, what: str) -> _Noted:
        return _Noted(self.wrong, f"{example.title} ({example.name}) {what}")


@dataclass
class _Noted:
    """Takes down what goes wrong in its block, so that all examples are looked at."""

    wrong: list[str]
    what: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception | pytest.fail.Exception):
            self.wrong.append(f"{self.what}: {type(error).__name__} {str(error)[:1500]}")
        return isinstance(error, Exception | pytest.fail.Exception)


def bag(rows: Any) -> Counter[Any]:
    """Rows with their multiplicity; the same number is the same, whatever its type (a variance is a double here)."""
    return Counter(tuple(map(_value, row)) for row in rows)


def _value(value: Any) -> Any:
    if isinstance(value, bool):  # for Python, True is 1
        return str(value)
    if isinstance(value, list | tuple):
        return tuple(map(_value, value))
    return plain(float(value)) if isinstance(value, Decimal) else plain(value)


def spark_statement(statement: str) -> str:
    """A statement about tables in Spark's SQL."""
    (text,) = sqlglot.transpile(statement, read="postgres", write="spark")
    text = re.sub(r"\bTIMESTAMP\b", "TIMESTAMP_NTZ", text).replace("JSONB", "STRING")
    text = re.sub(r"ROW\((.+?), (\d+)\)", r"NAMED_STRUCT('city', \1, 'zip', \2)", text)
    if text.startswith("CREATE TABLE"):
        text = text.replace(" place)", " STRUCT<city: STRING, zip: INT>)") + f" USING delta {FEED}"
    return text
