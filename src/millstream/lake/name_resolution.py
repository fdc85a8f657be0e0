"""Resolves the names in a query, in the current lake or in what a definition has recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from millstream.catalog.definition_body import DefinitionBody, RecordedSource
from millstream.lake import Lake
from millstream.ops import Column
from millstream.sql.sources import Source, View
from millstream.sql.text.table_exchange import table_references


class AsItIs:
    """The lake as it is.

    Args:
        obstacle: returns why the changes of a Delta table cannot be read; None if they can.
        recorded: the sources of an existing definition: columns that were added later are ignored, so that `*` keeps
            its meaning.
    """

    def __init__(
        self,
        lake: Lake,
        obstacle: Callable[[str], str | None],
        recorded: Mapping[str, RecordedSource] | None = None,
    ) -> None:
        self._lake = lake
        self._obstacle = obstacle
        self._recorded = recorded or {}

    def find(self, parts: Sequence[str], *, exact: bool = False) -> Source | View | None:
        """The table, stream table or view of a name; for `exact` see `Lake.resolve`."""
        found = self._lake.find(parts, exact=exact)
        if not isinstance(found, Source):
            return found
        columns = found.columns
        if found.id in self._recorded:
            now = {c.name.lower(): c for c in columns}
            before = [name.lower() for name, _ in self._recorded[found.id].columns]
            columns = tuple(now[name] for name in before if name in now)
        return replace(found, columns=columns, obstacle=found.obstacle or self._obstacle(found.id))

    def view_texts(self, query: str) -> list[str]:
        """The texts of all views that a query reads, directly or indirectly."""
        found: dict[str, str] = {}
        pending = [query]
        while pending:
            for reference in table_references(pending.pop()):
                view = self._lake.find(reference.parts)
                if isinstance(view, View) and view.id not in found:
                    found[view.id] = view.text
                    pending.append(view.text)
        return list(found.values())


class AsRecorded:
    """The tables and views that a definition has recorded."""

    def __init__(self, body: DefinitionBody) -> None:
        self._body = body

    def find(self, parts: Sequence[str]) -> Source | View | None:
        """The table, stream table or view of a name."""
        name = self._body.names.get(tuple(parts))
        if name is None:
            return None
        if name in self._body.views:
            return View(name, self._body.views[name])
        entry = self._body.sources[name]
        return Source(name, tuple(Column(n, t) for n, t in entry.columns), entry.obstacle)
