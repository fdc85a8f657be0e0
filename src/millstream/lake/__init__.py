"""A lake: its tables, views and functions, in the catalog and in Spark, and the compilation of queries over them."""

from millstream.lake.compiled import Compiled, compile_query
from millstream.lake.objects import Lake

__all__ = ["Compiled", "Lake", "compile_query"]
