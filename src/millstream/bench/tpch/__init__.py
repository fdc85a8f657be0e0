"""TPC-H: its 22 queries as stream tables, its data from a generator, and cycles of changes to its tables."""

from millstream.bench.tpch.changes import Changes
from millstream.bench.tpch.data import TABLES, generate, load
from millstream.bench.tpch.queries import NUMBERS, query

__all__ = ["NUMBERS", "TABLES", "Changes", "generate", "load", "query"]
