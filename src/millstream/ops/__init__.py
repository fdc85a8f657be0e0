"""Frozen relational operators: what a query is, and what a delta plan is made of."""

from millstream.ops.relations import (
    Aggregate,
    AntiJoin,
    Column,
    Filter,
    InnerJoin,
    Item,
    OneRow,
    OuterJoin,
    Project,
    Recursion,
    Relation,
    Repeat,
    Scan,
    SemiJoin,
    Table,
    UnionAll,
    Window,
)
from millstream.ops.render import render
from millstream.ops.walk import transform, walk

__all__ = [
    "Aggregate",
    "AntiJoin",
    "Column",
    "Filter",
    "InnerJoin",
    "Item",
    "OneRow",
    "OuterJoin",
    "Project",
    "Recursion",
    "Relation",
    "Repeat",
    "Scan",
    "SemiJoin",
    "Table",
    "UnionAll",
    "Window",
    "render",
    "transform",
    "walk",
]
