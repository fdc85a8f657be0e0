"""What a command prints: tables and prose for people, or one JSON document for programs."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TextIO

from millstream.cli import formats
from millstream.cli.progress import Progress
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from millstream.cli.facade import Graph
    from millstream.results import Explanation


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table of records: its title, where its value is, and how it is formatted.

    `prose` may be folded on a narrow terminal, and is omitted if no record has any.
    """

    title: str
    attribute: str
    format: Callable[[Any], str] = formats.text
    number: bool = False
    prose: bool = False


@dataclass(frozen=True, slots=True)
class ResultSet:
    """The rows a statement returned; `truncated` if there are more than were fetched."""

    statement: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """Anything that ends a command early, known or not."""

    code: str
    message: str
    hint: str | None = None
    detail: str = ""
    """What people see instead of the message: with the position underlined, or the usage line."""
    fields: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, error: MillstreamError) -> Problem:
        """A coded error, with its position."""
        return cls(str(error.code), error.message, error.hint, str(error), error.as_dict())

    def as_dict(self) -> dict[str, object]:
        """The error as data; known ones have a position."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "position": None, **self.fields}


class Output(ABC):
    """Where results go. Programs get exactly one JSON document on stdout; people get text, remarks on stderr."""

    @abstractmethod
    def records(self, records: Sequence[object], columns: Sequence[Column], empty: str) -> None:
        """Records of one kind; people see `columns` of them, or `empty`, programs all fields."""

    @abstractmethod
    def done(self, sentence: str, data: Mapping[str, object]) -> None:
        """Report that something was done; people see the sentence."""

    @abstractmethod
    def explanation(self, explanation: Explanation, *, with_sql: bool) -> None:
        """How a query is maintained."""

    @abstractmethod
    def graph(self, graph: Graph, form: str) -> None:
        """The dependency graph as `text`, `mermaid` or `dot`."""

    @abstractmethod
    def results(self, results: Sequence[ResultSet]) -> None:
        """The results of all statements; people have already seen each through `result`."""

    @abstractmethod
    def result(self, result: ResultSet) -> None:
        """One result as soon as it is available; programs get all of them together, through `results`."""

    @abstractmethod
    def note(self, sentence: str) -> None:
        """A remark for people."""

    def warning(self, sentence: str) -> None:
        """Something the user should know; on stderr, also for programs."""
        print(f"Warning: {sentence}", file=sys.stderr)

    @abstractmethod
    def problem(self, problem: Problem) -> None:
        """Why the command failed."""

    @abstractmethod
    def line(self, text: str = "") -> None:
        """A line of prose that is itself the result, as in the demo; programs do not get it."""

    @abstractmethod
    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table that is itself the result, as in the demo; programs do not get it."""

    @abstractmethod
    def entry(self, text: str, data: Mapping[str, object]) -> None:
        """One entry of a stream, written at once: a line of text, or of JSON for programs."""

    @abstractmethod
    def document(self, data: object) -> None:
        """The result as data, for programs only."""


class JsonOutput(Output):
    """One JSON document on stdout, an error too: `{"error": {"code": …}}`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout

    def records(self, records: Sequence[object], columns: Sequence[Column], empty: str) -> None:
        self.document(records)

    def done(self, sentence: str, data: Mapping[str, object]) -> None:
        self.document(data)

    def explanation(self, explanation: Explanation, *, with_sql: bool) -> None:
        steps = [{"name": name, "sql": sql} for name, sql in explanation.steps] if with_sql else []
        columns = [{"name": name, "type": type_} for name, type_ in explanation.columns]
        fallbacks = [{"code": code, "meaning": meaning} for code, meaning in explanation.fallbacks]
        self.document({**_fields(explanation), "steps": steps, "columns": columns, "fallbacks": fallbacks})

    def graph(self, graph: Graph, form: str) -> None:
        nodes = [{"name": n, "is_stream_table": n in graph.stream_tables} for n in graph.nodes]
        edges = [{"source": source, "reader": reader} for source, reader in graph.edges]
        self.document({"nodes": nodes, "edges": edges, "cycles": [sorted(cycle) for cycle in graph.cycles]})

    def results(self, results: Sequence[ResultSet]) -> None:
        self.document(results)

    def result(self, result: ResultSet) -> None:
        pass

    def note(self, sentence: str) -> None:
        pass

    def problem(self, problem: Problem) -> None:
        self.document({"error": problem.as_dict()})

    def line(self, text: str = "") -> None:
        pass

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        pass

    def entry(self, text: str, data: Mapping[str, object]) -> None:
        self._stream.write(json.dumps(formats.plain(data), ensure_ascii=False, allow_nan=False) + "\n")
        self._stream.flush()

    def document(self, data: object) -> None:
        json.dump(formats.plain(data), self._stream, indent=2, ensure_ascii=False, allow_nan=False)
        self._stream.write("\n")


def _fields(record: object) -> dict[str, object]:
    data = formats.plain(record)
    return data if isinstance(data, dict) else {}


class ConsoleOutput(Output):
    """Text: results on stdout, remarks and errors on stderr. Piped output is neither coloured nor truncated."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress or Progress(enabled=False)
        self._has_printed_a_table = False

    @cached_property
    def _out(self) -> Console:
        return _console(sys.stdout)

    @cached_property
    def _err(self) -> Console:
        return _console(sys.stderr)

    def records(self, records: Sequence[object], columns: Sequence[Column], empty: str) -> None:
        if not records:
            self.note(empty)
            return
        shown = [c for c in columns if not c.prose or any(getattr(r, c.attribute) for r in records)]
        rows = [[c.format(getattr(r, c.attribute)) for c in shown] for r in records]
        self._table("", shown, rows)

    def done(self, sentence: str, data: Mapping[str, object]) -> None:
        self.line(sentence)

    def explanation(self, explanation: Explanation, *, with_sql: bool) -> None:
        verdict = "maintained incrementally" if explanation.supported else "recomputed in full at each refresh"
        name = explanation.name or "the query"
        self.line(f"{name}: {verdict} (refresh mode {explanation.refresh_mode})")
        self._section("Columns", [f"{column}  {type_}" for column, type_ in explanation.columns])
        self._section("Operators", [str(o) for o in explanation.operators])
        self._section("Reasons", list(explanation.reasons))
        self._section("Recomputed in full when", [f"{code}: {meaning}" for code, meaning in explanation.fallbacks])
        if with_sql:
            for step, sql in explanation.steps:
                self._section(f"Step {step}", [])
                self._sql(sql)

    def graph(self, graph: Graph, form: str) -> None:
        if form != "text":
            self.line((graph.mermaid() if form == "mermaid" else graph.dot()).rstrip("\n"))
        elif not graph.nodes:
            self.note("There are no stream tables.")
        else:
            self._print(self._out, _tree(graph))

    def results(self, results: Sequence[ResultSet]) -> None:
        pass

    def result(self, result: ResultSet) -> None:
        if not result.columns:
            return
        self._table("", _columns(result.columns, result.rows), [[formats.cell(v) for v in row] for row in result.rows])

    def note(self, sentence: str) -> None:
        self._print(self._err, sentence, markup=False, highlight=False, style="dim", soft_wrap=True)

    def problem(self, problem: Problem) -> None:
        first, *rest = (problem.detail or problem.message).split("\n")
        self._print(self._err, f"Error: {first}", markup=False, highlight=False, style="bold red", soft_wrap=True)
        lines = rest if problem.detail else [f"Hint: {problem.hint}"] if problem.hint else []
        for text in lines:
            self._print(self._err, text, markup=False, highlight=False, soft_wrap=True)

    def line(self, text: str = "") -> None:
        self._print(self._out, text, markup=False, highlight=False, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self._table(title, _columns(columns, rows), [[formats.text(v) for v in row] for row in rows])

    def entry(self, text: str, data: Mapping[str, object]) -> None:
        self.line(text)
        self._out.file.flush()

    def document(self, data: object) -> None:
        pass

    def _table(self, title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        if self._has_printed_a_table:
            self.line()
        self._has_printed_a_table = True
        heading = Text(title) if title else None
        padding = (0, 1, 0, 0)
        table = Table(
            box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding, title=heading, title_justify="left"
        )
        fits = _least_width(columns, rows) <= self._out.width
        for column in columns:
            justify: Literal["left", "right"] = "right" if column.number else "left"
            no_wrap = fits and not column.prose
            table.add_column(Text(column.title), justify=justify, overflow="fold", no_wrap=no_wrap)
        for row in rows:
            table.add_row(*(Text(value) for value in row))
        self._print(self._out, table)

    def _print(self, console: Console, what: RenderableType, **options: Any) -> None:
        with self._progress.paused():
            console.print(what, **options)

    def _section(self, title: str, lines: Sequence[str]) -> None:
        self.line()
        self._print(self._out, title, markup=False, highlight=False, style="bold", soft_wrap=True)
        for text in lines:
            self.line(f"  {text}")

    def _sql(self, sql: str) -> None:
        if not self._out.is_terminal:
            self.line(sql)
            return
        from rich.syntax import Syntax

        self._print(self._out, Syntax(sql, "sql", background_color="default", word_wrap=True))


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    # A pipe has no width to wrap at: a table must reach a file unwrapped.
    width = None if stream.isatty() else 100_000
    return Console(file=stream, width=width, emoji=False)


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """How wide a table is with its prose folded and everything else on one line; two spaces between columns."""
    widths = [max(len(text) for text in (c.title, *(row[i] for row in rows))) for i, c in enumerate(columns)]
    return sum(2 + (min(width, 12) if c.prose else width) for c, width in zip(columns, widths, strict=True))


def _columns(names: Sequence[str], rows: Sequence[Sequence[object]]) -> list[Column]:
    """Columns of any result: numbers are aligned to the right, everything else may be folded."""
    found = []
    for i, name in enumerate(names):
        known = [row[i] for row in rows if row[i] is not None]
        is_number = bool(known) and all(hasattr(v, "__float__") and not isinstance(v, bool) for v in known)
        found.append(Column(name, "", number=is_number, prose=not is_number))
    return found


def _tree(graph: Graph) -> Any:
    """The graph, starting at its sources; a node that was already drawn is only named again."""
    from rich.console import Group
    from rich.text import Text
    from rich.tree import Tree

    readers: dict[str, list[str]] = {}
    for source, reader in graph.edges:
        readers.setdefault(source, []).append(reader)
    read = {reader for _, reader in graph.edges}
    circular = {name for cycle in graph.cycles for name in cycle}
    drawn: set[str] = set()

    def grow(name: str, parent: Tree | None) -> Tree:
        label = Text(name, style="bold" if name in graph.stream_tables else "")
        again = name in drawn and name in readers
        label.append("" if name in graph.stream_tables else "  (table)", style="dim")
        label.append("  (in a cycle)" if name in circular else "", style="dim")
        label.append("  (see above)" if again else "", style="dim")
        tree = Tree(label) if parent is None else parent.add(label)
        drawn.add(name)
        for reader in [] if again else readers.get(name, []):
            grow(reader, tree)
        return tree

    trees = [grow(name, None) for name in graph.nodes if name not in read]
    # what reads only a cycle that reads no table
    return Group(*trees, *(grow(name, None) for name in graph.nodes if name not in drawn))
