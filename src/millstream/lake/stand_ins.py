"""Replaces tables that Spark does not know by constant queries, so that Spark can analyse a query over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millstream.errors import MillstreamError
from millstream.naming import quote
from millstream.sql.sources import Source, View
from millstream.sql.text.table_exchange import TableReference, exchange_tables, table_references

if TYPE_CHECKING:
    from millstream.lake.attached_names import AttachedNames


def empty(source: Source) -> str:
    """A constant query with a source's columns: enough to determine types."""
    columns = ", ".join(f"CAST(NULL AS {c.type}) AS {quote(c.name)}" for c in source.columns)
    return f"(SELECT {columns})"


def opaque(source: Source) -> str:
    """A query with a source's columns that Spark cannot optimise away: enough to compare the plans of two texts."""
    known = [c for c in source.columns if c.type != "void"]
    schema = ", ".join(f"{quote(c.name)} {c.type}" for c in known).replace("\\", "\\\\").replace("'", "\\'")
    voids = "".join(f", CAST(NULL AS void) AS {quote(c.name)}" for c in source.columns if c.type == "void")
    return f"(SELECT r.*{voids} FROM (SELECT FROM_JSON(CAST(id AS STRING), '{schema}') AS r FROM RANGE(2)))"


def analysable(text: str, attached: AttachedNames, find: Callable[[Sequence[str]], Source | View | None]) -> str:
    """A query with the tables and views of attached databases replaced by queries; others stay as they are."""
    try:
        references = table_references(text)
    except MillstreamError:
        return text  # Spark gives a better message
    if all(attached.database(r.parts) is None for r in references):
        return text

    def replacement(reference: TableReference) -> str:
        if attached.database(reference.parts) is None:
            return text[reference.start : reference.end]
        found = find(reference.parts)
        if isinstance(found, View):
            return f"({analysable(found.text, attached, find)}\n)"
        assert found is not None
        return empty(found)

    return exchange_tables(text, replacement)
