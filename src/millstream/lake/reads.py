"""Finds the tables and views that a query reads, and replaces them in its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.errors import Code, MillstreamError
from millstream.lake.stand_ins import opaque
from millstream.naming import quote, split_name
from millstream.sql.parse import parse_query
from millstream.sql.refusals.in_every_mode import refuse_in_every_mode
from millstream.sql.sources import Source, Sources, View
from millstream.sql.text.table_exchange import TableReference, exchange_tables, table_references

Names = Mapping[tuple[str, ...], str]
"""The full names of what a text reads, by their parts as written: names in attached databases are case-sensitive."""


@dataclass(frozen=True)
class Known:
    """The sources and views that a compilation has looked up once, so that it sees one state of the lake."""

    names: Names
    tables: Mapping[str, Source]
    views: Mapping[str, str]

    def find(self, parts: Sequence[str]) -> Source | View | None:
        found = self.names.get(tuple(parts))
        if found is None:
            return None
        return View(found, self.views[found]) if found in self.views else self.tables[found]


def read_by(query: str, sources: Sources) -> tuple[dict[tuple[str, ...], str], dict[str, Source], dict[str, View]]:
    """All names that a query reads, directly or through views, and the tables and views they refer to."""
    names: dict[tuple[str, ...], str] = {}
    tables: dict[str, Source] = {}
    views: dict[str, View] = {}
    pending = [query]
    while pending:
        text = pending.pop()
        refuse_in_every_mode(parse_query(text), text)
        for reference in table_references(text):
            if reference.parts in names:
                continue
            found = sources.find(reference.parts)
            if found is None:
                name = ".".join(reference.parts)
                raise MillstreamError(
                    Code.UNKNOWN_TABLE,
                    f"there is no table {name} in the lake",
                    hint="temporary views are not part of it",
                )
            names[reference.parts] = found.id
            if isinstance(found, Source):
                tables[found.id] = found
            elif found.id not in views:
                views[found.id] = found
                pending.append(found.text)
    return names, tables, views


def over(text: str, names: Names, views: Mapping[str, str], tables: Mapping[str, str]) -> str:
    """The text with its tables replaced by other SQL and its views by their texts."""

    def replacement(reference: TableReference) -> str:
        name = names[reference.parts]
        return f"({over(views[name], names, views, tables)}\n)" if name in views else tables[name]

    return exchange_tables(text, replacement)


def over_unknown(text: str, names: Names, tables: Mapping[str, Source], views: Mapping[str, str]) -> str:
    """The text with only the tables and views of attached databases replaced: Spark knows the others."""
    known = {name: len(split_name(name)) < 3 for name in names.values()}
    if all(known.values()):
        return text

    def replacement(reference: TableReference) -> str:
        name = names[reference.parts]
        if known[name]:
            return ".".join(map(quote, reference.parts))
        return f"({over_unknown(views[name], names, tables, views)}\n)" if name in views else opaque(tables[name])

    return exchange_tables(text, replacement)
