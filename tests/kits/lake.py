"""A lake of the test's own in the run's JVM, and an oracle that trusts nothing of millstream's.

After every refresh the product's own `verify` looks at a stream table; at the end of a test of operators a second judge
does too: the query itself, run by Spark on the tables as delta-rs reads them and compared row by row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row

import millstream
from kits.plain_changes import change_plainly
from kits.read_back import ReadBack
from millstream import Action, Code, MillstreamError, RefreshResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEED = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"


@dataclass
class Lake:
    """`ms` with the few things every test does."""

    ms: millstream.Millstream
    root: Path
    queries: dict[str, str] = field(default_factory=dict)
    is_compared_at_end: bool = False
    """All stream tables are compared at the end: first loads need not be compared by themselves."""
    read_back: ReadBack = field(init=False)

    def __post_init__(self) -> None:
        self.read_back = ReadBack(self.ms)

    def sql(self, *statements: str) -> None:
        """Run statements in order; plain changes of source tables are made by delta-rs."""
        for statement in statements:
            if not change_plainly(self.ms, statement):
                self.ms.sql(statement)

    def table(self, name: str, columns: str, *rows: str, more: str = "") -> None:
        """Make a table that records its changes, and fill it."""
        self.ms.sql(f"CREATE TABLE {name} ({columns}) USING delta {more} {FEED}")
        if rows:
            self.insert(name, *rows)

    def insert(self, name: str, *rows: str) -> None:
        """Insert rows given as SQL, without the parentheses."""
        self.sql(f"INSERT INTO {name} VALUES {', '.join(f'({row})' for row in rows)}")

    def stream(
        self,
        name: str,
        query: str,
        refresh_mode: str = "DIFFERENTIAL",
        *,
        initialize: bool = True,
        oracle: str | None = None,
    ) -> None:
        """Declare a stream table; DIFFERENTIAL, so that nothing is recomputed unnoticed.

        Args:
            oracle: a query with the result that is to come out, where SQL leaves that of the stream table's open.
        """
        self.ms.create_stream_table(name, query, refresh_mode=refresh_mode, initialize=initialize)
        self.queries[name] = oracle or query
        if initialize and not self.is_compared_at_end:
            self.assert_exact(name)

    def refresh(self, name: str, expected: Action | str | None = None, *, mode: str | None = None) -> RefreshResult:
        """Refresh, check what was done, and compare the contents with the query."""
        result = self.ms.refresh_stream_table(name, mode=mode)
        if expected is not None:
            assert result.action == expected, f"{name}: {result.action} ({result.reason})"
        self.assert_exact(name)
        return result

    def refresh_all(self, expected: Action | str | None = Action.DIFFERENTIAL) -> None:
        """Refresh every stream table; differences of all of them are shown together."""
        wrong: list[str] = []
        for name in self.queries:
            try:
                self.refresh(name, expected)
            except (AssertionError, MillstreamError) as e:
                wrong.append(f"{name}: {e}")
        assert not wrong, "\n".join(wrong)

    def assert_exact(self, name: str) -> None:
        """The contents are the query's result."""
        verdict = self.ms.verify(name)
        assert verdict.ok, f"{name}: {verdict}\n{self.difference(name)}"

    def difference(self, name: str) -> str:
        """Rows that only the stream table, or only the query, has."""
        actual, wanted = bag(self.read_back.table(name)), bag(self.read_back.query(self.queries[name]))
        return "" if actual == wanted else f"missing {dict(wanted - actual)}, extra {dict(actual - wanted)}"

    def rows(self, name: str) -> Counter[Any]:
        """The rows of a table as a bag of tuples."""
        return bag(self.read_back.table(name))

    @property
    def stored(self) -> list[str]:
        """The directories that stream tables have on disk."""
        directory = self.root / "stream_tables"
        return sorted(p.name for p in directory.iterdir()) if directory.exists() else []

    def last(self, name: str) -> millstream.RefreshRecord:
        """The newest row of the history."""
        return self.ms.refresh_history(name, 1)[0]


def bag(frame: DataFrame) -> Counter[Any]:
    """The rows of a frame with their multiplicity."""
    return Counter(plain(row) for row in frame.collect())


def plain(value: Any) -> Any:
    """A value that can be compared and hashed; doubles to ten digits, since their sums depend on the order."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.10g}") + 0.0
    if isinstance(value, dict):
        return frozenset((plain(k), plain(v)) for k, v in value.items())
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Row | list | tuple):
        return tuple(plain(v) for v in value)
    return value


@contextmanager
def refused(code: Code, *words: str) -> Iterator[pytest.ExceptionInfo[MillstreamError]]:
    """The block ends in an error of that code, whose text has the words."""
    with pytest.raises(MillstreamError) as caught:
        yield caught
    assert caught.value.code == code, caught.value
    for word in words:
        assert word in str(caught.value), caught.value


@contextmanager
def open_lake(root: Path, **settings: object) -> Iterator[Lake]:
    """Open a lake, with settings in its millstream.toml."""
    if settings:
        root.mkdir(parents=True, exist_ok=True)
        lines = [f"{key} = {_toml(value)}" for key, value in settings.items()]
        (root / "millstream.toml").write_text("\n".join(["[millstream]", *lines]))
    with millstream.connect(root) as ms:
        yield Lake(ms, root)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """An empty lake with the default settings, in the run's JVM."""
    with open_lake(tmp_path / "lake") as opened:
        yield opened


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | int | float) else f'"{value}"'


def values(*rows: Iterable[object]) -> Counter[Any]:
    """A bag of rows given as tuples."""
    return Counter(tuple(row) for row in rows)
