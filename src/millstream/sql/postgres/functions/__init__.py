"""PostgreSQL's functions by family; each family's module fills the registry when it is imported."""

from millstream.sql.postgres.functions import arrays, dates, json, numbers, strings
from millstream.sql.postgres.functions.registry import FUNCTIONS, call

__all__ = ["FUNCTIONS", "arrays", "call", "dates", "json", "numbers", "strings"]
