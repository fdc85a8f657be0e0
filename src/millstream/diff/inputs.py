"""The tables through which a plan reads the inputs of a query: each at the new frontier, and its changes."""

from __future__ import annotations

from millstream.ops import Column, Item, Project, Relation, Scan, Table
from millstream.ops.expressions import col, keep
from millstream.ops.relations import WEIGHT_COLUMN


def new_table(scan: Scan) -> Relation:
    """The input at the new frontier, with the column names of the query."""
    return _named(scan, new_name(scan.source), ())


def delta_table(scan: Scan) -> Relation:
    """The input's change feed since the last frontier."""
    return _named(scan, delta_name(scan.source), (WEIGHT_COLUMN,))


def new_name(source: str) -> str:
    """The relation that holds an input at the new frontier."""
    return "new_" + _plain(source)


def delta_name(source: str) -> str:
    """The relation that holds an input's changes."""
    return "delta_" + _plain(source)


def _plain(source: str) -> str:
    """A source's name as one word, unique for each source, since no name begins with a digit.

    >>> _plain("sales.orders"), _plain("sales_orders")
    ('5_sales_orders', 'sales_orders')
    """
    schema, dot, name = source.partition(".")
    return f"{len(schema)}_{schema}_{name}" if dot else source


def _named(scan: Scan, table: str, extra: tuple[Column, ...]) -> Relation:
    # two columns may be one in the stored table of a hidden stage, e.g. COUNT(*) and COUNT(1)
    stored = tuple(dict.fromkeys(Column(o, c.type) for o, c in zip(scan.origin, scan.output, strict=True)))
    items = tuple(Item(col(o), c) for o, c in zip(scan.origin, scan.output, strict=True))
    return Project(Table(table, (*stored, *extra)), (*items, *keep(extra)))
