"""Watches a result in PostgreSQL as an application would, and records when it changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psycopg

_INTERVAL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Rows:
    """A result as psql would show it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        cells = [[_text(v) for v in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        is_number = [bool(self.rows) and all(_is_number(row[i]) for row in self.rows) for i in range(len(widths))]
        heads = [f" {name:^{width}} " for name, width in zip(self.columns, widths, strict=True)]
        lines = ["|".join(heads).rstrip(), "+".join("-" * (width + 2) for width in widths)]
        for row in cells:
            lines.append("|".join(_aligned(*cell) for cell in zip(row, widths, is_number, strict=True)).rstrip())
        count = len(self.rows)
        return "\n".join([*lines, f"({count} row{'' if count == 1 else 's'})"])


def _aligned(text: str, width: int, is_number: bool) -> str:
    return f" {text:>{width}} " if is_number else f" {text:<{width}} "


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _is_number(value: object) -> bool:
    return value is None or (hasattr(value, "__float__") and not isinstance(value, bool))


def fetched(connection: psycopg.Connection[tuple[Any, ...]], query: str) -> Rows:
    """The current result of a query."""
    cursor = connection.execute(query.encode())
    return Rows(tuple(c.name for c in cursor.description or ()), tuple(cursor.fetchall()))


class Watch:
    """Repeats a query over a separate connection.

    Args:
        seen: called with each result that differs from the one before.
    """

    def __init__(self, url: str, query: str, seen: Callable[[Rows], None]) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._query = query
        self._seen = seen
        self._last = fetched(self._connection, query)
        self._changed = threading.Condition()
        self._changes: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._seen(self._last)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._connection.close()

    def first_change_after(self, moment: float, timeout: float = 10.0) -> float | None:
        """When the first changed result after a time of `time.perf_counter` was seen; None if there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._since(moment), timeout)
            later = self._since(moment)
            return later[0] if later else None

    def _since(self, moment: float) -> Sequence[float]:
        return [change for change in self._changes if change > moment]

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_SECONDS):
            now = fetched(self._connection, self._query)
            if now == self._last:
                continue
            with self._changed:
                self._changes.append(time.perf_counter())
                self._changed.notify_all()
            self._last = now
            self._seen(now)
